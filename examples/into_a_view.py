"""Keys and values from the filled part of a cache, and the output into a part of a larger tensor: nothing is copied."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention


def main(device: str) -> None:
    batch, heads, head_dim, longest, filled, new = 2, 4, 128, 2048, 1234, 100
    cache = torch.randn(2, batch, heads, longest, head_dim, device=device, dtype=torch.bfloat16)
    k, v = cache[:, :, :, :filled]
    q = torch.randn(batch, heads, new, head_dim, device=device, dtype=torch.bfloat16)

    # Each row has room for another 64 columns behind the output, which stay as they are.
    rows = torch.zeros(batch, heads, new, head_dim + 64, device=device, dtype=torch.bfloat16)
    output = attention(q, k, v, causal=True, out=rows[..., :head_dim])
    assert output.data_ptr() == rows.data_ptr() and not rows[..., head_dim:].any()

    # The new queries are the last of all: query i sees keys up to i + filled - new.
    visible = torch.ones(new, filled, dtype=torch.bool, device=device).tril(filled - new)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    compare("from a cache, into a view", output, expected)


if __name__ == "__main__":
    on_a_gpu(main)
