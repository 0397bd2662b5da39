"""The kernel reads the filled part of a KV cache and writes into part of a larger tensor. Nothing is copied."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention


def main(device: str) -> None:
    batch, heads, head_dim, longest, filled, new = 2, 4, 128, 2048, 1234, 100
    cache = torch.randn(2, batch, heads, longest, head_dim, device=device, dtype=torch.bfloat16)
    k, v = cache[:, :, :, :filled]
    q = torch.randn(batch, heads, new, head_dim, device=device, dtype=torch.bfloat16)

    # Each row has 64 more columns after the output. The kernel does not touch them.
    rows = torch.zeros(batch, heads, new, head_dim + 64, device=device, dtype=torch.bfloat16)
    output = attention(q, k, v, causal=True, out=rows[..., :head_dim])
    assert output.data_ptr() == rows.data_ptr() and not rows[..., head_dim:].any()

    # The new queries are the last positions of the sequence: query i sees the keys up to i + filled - new.
    visible = torch.ones(new, filled, dtype=torch.bool, device=device).tril(filled - new)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    compare("from a cache, into a view", output, expected)


if __name__ == "__main__":
    on_a_gpu(main)
