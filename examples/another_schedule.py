"""The same attention by other schedules: names that ship, here; a file of yours goes the same way."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention

# `tl-attention list` shows all, `tl-attention which` the one that runs where none is named.
ON_HOPPER = ("best", "fa3_overlap", "ws_fa3_64x128", "seed")
# Those whose products are by mma.sync, which every card from the A100 on has.
ON_ANY_CARD = ("mma_sync", "mma_sync_small")


def main(device: str) -> None:
    q, k, v = (torch.randn(1, 4, 1000, 128, device=device, dtype=torch.bfloat16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    on_hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    for name in ON_HOPPER if on_hopper else ON_ANY_CARD:
        compare(name, attention(q, k, v, schedule=name), expected)


if __name__ == "__main__":
    on_a_gpu(main)
