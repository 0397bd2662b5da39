"""What the examples share: they run on the GPU at hand, and compare with PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from tl_attention import InputError


def on_a_gpu(example: Callable[[str], None]) -> None:
    """Run an example on the GPU; where there is none, or no schedule for it, say so in one line: exit code 2."""
    if not torch.cuda.is_available():
        print("error: torch sees no CUDA GPU, which this example needs", file=sys.stderr)
        sys.exit(2)
    try:
        example("cuda")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def compare(what: str, output: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-2) -> None:
    """Print the largest difference, and raise AssertionError where it is more than bf16's rounding, `tolerance`."""
    difference = (output.float() - expected.float()).abs().max().item()
    print(f"{what}: {tuple(output.shape)} {output.dtype}, largest difference {difference:.1e}")
    torch.testing.assert_close(output.float(), expected.float(), atol=tolerance, rtol=tolerance)
