"""Attention over two halves of the keys: `merge` combines their outputs, weighted by the LSE of each half."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention, merge


def main(device: str) -> None:
    q = torch.randn(2, 8, 64, 128, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(2, 8, 4000, 128, device=device, dtype=torch.bfloat16) for _ in range(2))

    # The halves are views here. They could also lie on two GPUs, or arrive one after the other.
    halves = [attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(2000), slice(2000, None))]
    outputs, lses = (torch.stack(parts) for parts in zip(*halves, strict=True))
    output, lse = merge(outputs, lses)

    expected, expected_lse = attention(q, k, v, return_lse=True)
    compare("output of two halves", output, expected)
    compare("LSE of two halves", lse, expected_lse)


if __name__ == "__main__":
    on_a_gpu(main)
