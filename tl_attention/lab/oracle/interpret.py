"""This interpreter runs a Program on the CPU with torch.

It keeps the pipelined order and the real number of buffers, and runs under both adversaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tl_attention.lab.oracle.features import values_of_head as of_one_head
from tl_attention.lab.oracle.reference import ErrorReport, attention_and_lse, compare, compare_lse, make_inputs
from tl_attention.lab.oracle.tile import STATEMENT_CODE, InterpretedTile, Settings
from tl_attention.problem.features import INPUTS, features_of
from tl_attention.problem.lengths import ragged, windows
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
    tiles: Settings,
    *,
    mask: Mask,
    scale: float,
    policy: Policy,
    lse: Tensor | None = None,
    **asked: Any,
) -> Tensor:
    """Computes attention by running the Program on the CPU under an adversary, `policy`, in tiles of any size.

    `inputs` are q (batch, heads, seq_q, head_dim), k (batch, heads_kv, seq_kv, head_dim) and v (batch, heads_kv,
    seq_kv, head_dim_v), fp16 or bf16; returns (batch, heads, seq_q, head_dim_v) in q's dtype. Each row's logarithm is
    written to `lse`, fp32 (batch, heads, seq_q). `asked` are features by word: numbers, or tensors (heads,). Raises
    machine.Deadlock.
    """
    code = {**STATEMENT_CODE, **tiles.code}
    q, k, v = inputs
    (_, heads, seq_q, head_dim), seq_kv, head_dim_v = q.shape, k.shape[2], v.shape[3]
    dtype = str(q.dtype).removeprefix("torch.")
    shape = AttentionShape(1, heads, seq_q, seq_kv, head_dim, dtype, mask, head_dim_v, k.shape[1])
    output = q.new_empty(*q.shape[:3], head_dim_v)
    for b, h, index in product(range(len(q)), range(heads), range(row_tiles(shape, tiles.block_M))):
        of_head = {"Q": q[b, h], "K": k[b, h // shape.group], "V": v[b, h // shape.group]}
        blocks = kv_blocks(shape, tiles.block_M, tiles.block_N, index, program.least_blocks)
        tile = InterpretedTile(shape, of_head, tiles, index, blocks, program.table, scale, of_one_head(asked, h), code)
        execute(program, len(blocks), tile, policy)
        tile_rows = slice(index * tiles.block_M, (index + 1) * tiles.block_M)
        rows = output[b, h, tile_rows]
        rows.copy_(tile.result()[: len(rows)])
        if lse is not None:
            lse[b, h, tile_rows] = tile.lse()[: len(rows)]
    return output


def verify(program: Program, schedule: Schedule, variant: Variant, seed: int = 0) -> dict[str, ErrorReport]:
    """Runs the Program on the CPU under both adversaries, late and early, and returns each one's error against fp64.

    The problem is sequences of several lengths. One sequence has several tiles, others are empty or have rows without a
    key: all rows count as those of one. "late LSE" and "early LSE" are added where the variant has an LSE.
    """
    # Of a window that the kernel reads, one stands for all.
    mask = next(windows(variant.mask, schedule.block_M, schedule.block_N))
    variant, lengths = replace(variant, mask=mask), ragged(mask, schedule.block_M, schedule.block_N)
    # Two heads of K and V, if heads share them.
    heads = 1 if variant.group == 1 else 2 * variant.some_group
    problems = [AttentionShape.of(variant, Sizes(1, heads, *of_one)) for of_one in lengths]
    sequences = [make_inputs(problem, seed + number) for number, problem in enumerate(problems)]
    options: dict[str, Any] = {"mask": mask, "scale": variant.head_dim**-0.5}
    for feature in features_of(variant.optional):
        if feature in INPUTS:
            # Each head has another value, so that two heads cannot be mixed up.
            of_heads = feature.tried + torch.arange(heads, dtype=torch.float32)
            options[feature.word] = feature.tried if feature.is_number else of_heads
    tiles = Settings(schedule.block_M, schedule.block_N, schedule.kv_order, schedule.softmax)
    exact, peer = (
        _together(attention_and_lse(*sequence, precise=precise, **options) for sequence in sequences)
        for precise in (True, False)
    )

    def interpreted(sequence: tuple[Tensor, Tensor, Tensor], policy: Policy) -> tuple[Tensor, Tensor]:
        lse = torch.empty(sequence[0].shape[:3])
        return interpret(program, sequence, tiles, policy=policy, lse=lse, **options), lse

    reports: dict[str, ErrorReport] = {}
    for name, policy in POLICIES.items():
        output, lse = _together(interpreted(sequence, policy) for sequence in sequences)
        reports[name] = compare(output, exact[0], peer[0])
        if "LSE" in variant.optional:
            reports[f"{name} LSE"] = compare_lse(lse, exact[1], peer[1])
    return reports


def _together(of_sequences: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Returns all sequences' outputs joined along their rows, and all their LSEs, as if of one sequence."""
    outputs, lses = zip(*of_sequences)
    return torch.cat(outputs, dim=2), torch.cat(lses, dim=2)
