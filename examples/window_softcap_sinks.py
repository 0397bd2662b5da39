"""A causal sliding window with softcap and sinks. Some models have such a window in every second layer."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention

WINDOW, SOFTCAP = 256, 30.0


def main(device: str) -> None:
    batch, heads, seq, head_dim = 1, 4, 1000, 64
    q, k, v = (torch.randn(batch, heads, seq, head_dim, device=device, dtype=torch.bfloat16) for _ in range(3))
    sinks = torch.randn(heads, device=device)

    # Each query sees the key at its own position and the 255 keys before it.
    output = attention(q, k, v, window_size=(WINDOW - 1, 0), softcap=SOFTCAP, sinks=sinks)

    scores = q.float() @ k.float().transpose(2, 3) / head_dim**0.5
    scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
    before = torch.arange(seq, device=device)[:, None] - torch.arange(seq, device=device)
    scores = scores.masked_fill((before < 0) | (before >= WINDOW), -float("inf"))
    # A sink is one more score in each row. It enters the sum but has no value vector.
    scores = torch.cat([scores, sinks[:, None, None].expand(batch, heads, seq, 1)], dim=3)
    compare("window, softcap, sinks", output, scores.softmax(dim=3)[..., :-1] @ v.float())


if __name__ == "__main__":
    on_a_gpu(main)
