"""Runs a Program on the CPU with torch: the pipelined order, the real number of buffers, both adversaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tl_attention.oracle.features import of_head as of_one_head
from tl_attention.oracle.reference import (
    ErrorReport,
    attention_fp64,
    attention_same_precision,
    compare,
    compare_lse,
    lse_fp64,
    lse_same_precision,
    make_inputs,
)
from tl_attention.oracle.statements import STATEMENT_CODE
from tl_attention.oracle.tile import Tile, Tiles
from tl_attention.problem.features import INPUTS, features_of
from tl_attention.problem.lengths import ragged
from tl_attention.problem.mask import Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.machine import EARLY, LATE, Policy, execute
from tl_attention.program.program import Program
from tl_attention.schedule.schedule import Schedule

POLICIES: Mapping[str, Policy] = {"late": LATE, "early": EARLY}


def interpret(
    program: Program,
    inputs: tuple[Tensor, Tensor, Tensor],
    tiles: Tiles,
    *,
    mask: Mask,
    scale: float,
    policy: Policy,
    lse: Tensor | None = None,
    **asked: Any,
) -> Tensor:
    """Attention by the Program on the CPU, in tiles of any size.

    `inputs` are q (batch, heads, seq_q, head_dim), k (batch, heads_kv, seq_kv, head_dim) and v (batch, heads_kv, seq_kv,
    head_dim_v), fp16 or bf16; returns (batch, heads, seq_q, head_dim_v) in q's dtype. Each row's logarithm is written to
    `lse`, fp32 (batch, heads, seq_q). `asked` are features by word: numbers, or tensors (heads,). Raises machine.Deadlock.
    """
    q, k, v = inputs
    batch, heads, seq_q, head_dim = q.shape
    dtype = str(q.dtype).removeprefix("torch.")
    shape = AttentionShape(
        batch, heads, seq_q, k.shape[2], head_dim, dtype, mask, head_dim_v=v.shape[3], heads_kv=k.shape[1]
    )
    code = {**STATEMENT_CODE, **tiles.code}
    output = q.new_empty(batch, heads, seq_q, v.shape[3])
    for b in range(batch):
        for h in range(heads):
            of_head = {"Q": q[b, h], "K": k[b, h // shape.group], "V": v[b, h // shape.group]}
            for index in range(row_tiles(shape, tiles.block_M)):
                blocks = kv_blocks(shape, tiles.block_M, tiles.block_N, index, program.least_blocks)
                tile = Tile(shape, of_head, tiles, index, blocks, program.table, scale, of_one_head(asked, h), code)
                execute(program, len(blocks), tile, policy)
                own = slice(index * tiles.block_M, (index + 1) * tiles.block_M)
                rows = output[b, h, own]
                rows.copy_(tile.result()[: len(rows)])
                if lse is not None:
                    lse[b, h, own] = tile.lse()[: len(rows)]
    return output


def verify(program: Program, schedule: Schedule, variant: Variant, seed: int = 0) -> dict[str, ErrorReport]:
    """Both runs of the interpreter against fp64 on a ragged problem of several tiles: {"late": ..., "early": ...}.

    With "late LSE" and "early LSE" where the variant has it.
    """
    lengths = ragged(variant.mask, schedule.block_M, schedule.block_N)
    # Two heads of K and V, if heads share them.
    sizes = Sizes(1, 1 if variant.group == 1 else 2 * variant.group, *lengths)
    q, k, v = make_inputs(AttentionShape.of(variant, sizes), seed)
    options: dict[str, Any] = {"mask": variant.mask, "scale": variant.head_dim**-0.5}
    for feature in features_of(variant.optional):
        if feature in INPUTS:
            # Another of each head, so that those of two cannot be mixed up.
            of_heads = feature.tried + torch.arange(sizes.heads, dtype=torch.float32)
            options[feature.word] = feature.tried if feature.is_number else of_heads
    tiles = Tiles(schedule.block_M, schedule.block_N, schedule.kv_order, schedule.softmax)
    exact = attention_fp64(q, k, v, **options)
    peer = attention_same_precision(q, k, v, **options)
    lse = exact_lse = peer_lse = None
    if "LSE" in variant.optional:
        lse = torch.empty(q.shape[:3])
        exact_lse, peer_lse = lse_fp64(q, k, **options), lse_same_precision(q, k, **options)
    reports: dict[str, ErrorReport] = {}
    for name, policy in POLICIES.items():
        output = interpret(program, (q, k, v), tiles, policy=policy, lse=lse, **options)
        reports[name] = compare(output, exact, peer)
        if lse is not None and exact_lse is not None and peer_lse is not None:
            reports[f"{name} LSE"] = compare_lse(lse, exact_lse, peer_lse)
    return reports
