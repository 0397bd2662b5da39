"""Grouped heads: 40 heads of Q share 8 heads of K and V. The kernel reads all three from one packed projection."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention

HEADS, HEADS_KV, HEAD_DIM = 40, 8, 128


def main(device: str) -> None:
    batch, seq, width = 2, 777, 512
    x = torch.randn(batch, seq, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn((HEADS + 2 * HEADS_KV) * HEAD_DIM, width, device=device, dtype=torch.bfloat16) / width**0.5

    # q, k and v are views of one tensor, (batch, seq, heads, head_dim): nothing is copied, and no head is repeated.
    packed = torch.nn.functional.linear(x, weight).unflatten(2, (-1, HEAD_DIM))
    q, k, v = packed.split([HEADS, HEADS_KV, HEADS_KV], dim=2)
    output = attention(q, k, v, causal=True, layout="bshd")

    # PyTorch expects the heads before the sequence.
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    compare("40 heads on 8, packed", output, expected.transpose(1, 2))


if __name__ == "__main__":
    on_a_gpu(main)
