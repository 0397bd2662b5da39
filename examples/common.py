"""The examples share this: it runs them on the GPU of this machine and compares their output with PyTorch's."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from tl_attention import InputError


def on_a_gpu(example: Callable[[str], None]) -> None:
    """Run an example on the GPU. Without a GPU, or without a schedule for it, print one line and exit with code 2."""
    if not torch.cuda.is_available():
        print("error: torch sees no CUDA GPU, which this example needs", file=sys.stderr)
        sys.exit(2)
    try:
        example("cuda")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def compare(what: str, output: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-2) -> None:
    """Print the largest difference. Raise AssertionError if it exceeds `tolerance`, which allows for bf16 rounding."""
    difference = (output.float() - expected.float()).abs().max().item()
    print(f"{what}: {tuple(output.shape)} {output.dtype}, largest difference {difference:.1e}")
    torch.testing.assert_close(output.float(), expected.float(), atol=tolerance, rtol=tolerance)
