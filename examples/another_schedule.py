"""The same attention by other schedules: names that ship, here; a file of yours goes the same way."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention

# `tl-attention list` shows all, `tl-attention which` the one that runs where none is named.
NAMES = ("best", "fa3_overlap", "ws_fa3_64x128", "seed")


def main(device: str) -> None:
    q, k, v = (torch.randn(1, 4, 1000, 128, device=device, dtype=torch.bfloat16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for name in NAMES:
        compare(name, attention(q, k, v, schedule=name), expected)


if __name__ == "__main__":
    on_a_gpu(main)
