"""`schedule=` takes the name of a shipped schedule or your own file: the output is the same attention each time."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention

# `tl-attention list` shows all names, and `tl-attention explain --call` shows the schedule that runs if you name none.
ON_HOPPER = ("best", "fa3_overlap", "ws_fa3_64x128", "seed")
# These schedules use mma.sync, which every card since the A100 has.
ON_ANY_CARD = ("mma_sync", "mma_sync_small")


def main(device: str) -> None:
    q, k, v = (torch.randn(1, 4, 1000, 128, device=device, dtype=torch.bfloat16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    on_hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    for name in ON_HOPPER if on_hopper else ON_ANY_CARD:
        compare(name, attention(q, k, v, schedule=name), expected)


if __name__ == "__main__":
    on_a_gpu(main)
