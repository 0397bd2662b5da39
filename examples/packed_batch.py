"""Sequences of different lengths are packed by hand, one behind the other, without padding."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import attention_varlen

HEADS, HEADS_KV, HEAD_DIM = 16, 4, 64


def main(device: str) -> None:
    lengths = [70, 1, 300, 128]
    heads = HEADS + 2 * HEADS_KV
    sequences = [torch.randn(n, heads, HEAD_DIM, device=device, dtype=torch.bfloat16) for n in lengths]

    # Rows of one sequence behind those of the other: q, k and v are views of one tensor (total, heads, head_dim).
    packed = torch.cat(sequences)
    q, k, v = packed.split([HEADS, HEADS_KV, HEADS_KV], dim=1)
    # Sequence n begins at row cu_seqlens[n]. The offsets stay on the GPU; the longest lengths only choose the kernel.
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    output = attention_varlen(q, k, v, cu_seqlens, cu_seqlens, max(lengths), max(lengths), causal=True)

    for n, found in enumerate(output.split(lengths)):
        alone = sequences[n].transpose(0, 1)[None].split([HEADS, HEADS_KV, HEADS_KV], dim=1)
        expected = torch.nn.functional.scaled_dot_product_attention(*alone, is_causal=True, enable_gqa=True)
        compare(f"sequence {n}", found, expected[0].transpose(0, 1))


if __name__ == "__main__":
    on_a_gpu(main)
