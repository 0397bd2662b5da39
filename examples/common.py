"""What the examples share: they run where there is a Hopper GPU, and compare with PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch


def on_a_gpu(example: Callable[[str], None]) -> None:
    """Run an example on the GPU; without a Hopper one say so in one line and end with exit code 2."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("error: no Hopper GPU (H100, H200) is visible, which this example needs", file=sys.stderr)
        sys.exit(2)
    example("cuda")


def compare(what: str, output: torch.Tensor, expected: torch.Tensor) -> None:
    """Print the largest difference, and raise AssertionError where it is more than bf16's rounding."""
    difference = (output.float() - expected.float()).abs().max().item()
    print(f"{what}: {tuple(output.shape)} {output.dtype}, largest difference {difference:.1e}")
    torch.testing.assert_close(output.float(), expected.float(), atol=2e-2, rtol=2e-2)
