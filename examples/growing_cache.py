"""A model generates: each token's keys and values go into a cache that grows in place, and its query reads them."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention


def main(device: str) -> None:
    batch, heads, heads_kv, head_dim, longest, prompt, new = 2, 8, 2, 128, 4096, 2100, 12
    q, k, v = (
        torch.randn(batch, n, prompt + new, head_dim, device=device, dtype=torch.bfloat16)
        for n in (heads, heads_kv, heads_kv)
    )
    cache = torch.zeros(2, batch, heads_kv, longest, head_dim, device=device, dtype=torch.bfloat16)
    rows = []
    for first, end in [(0, prompt), *((n, n + 1) for n in range(prompt, prompt + new))]:
        cache[0, :, :, first:end], cache[1, :, :, first:end] = k[:, :, first:end], v[:, :, first:end]
        # A view of what is filled: nothing is copied. The heads that share keys and values read them once.
        filled = cache[:, :, :, :end]
        rows.append(attention(q[:, :, first:end], *filled, causal=True))

    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    compare("a prompt, then token by token", torch.cat(rows, dim=2), expected)


if __name__ == "__main__":
    on_a_gpu(main)
