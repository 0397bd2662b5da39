"""Runs a Program on the CPU with torch: the pipelined order, the real number of buffers, both adversaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from tl_attention.oracle.reference import ErrorReport, attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.oracle.statements import STATEMENT_CODE
from tl_attention.oracle.tile import Observer, Tile
from tl_attention.problem.mask import Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.machine import EARLY, LATE, Policy, execute
from tl_attention.program.program import Program
from tl_attention.schedule.options import SoftmaxOptions
from tl_attention.schedule.schedule import Schedule

POLICIES: Mapping[str, Policy] = {"late": LATE, "early": EARLY}


def interpret(
    program: Program,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_M: int,
    block_N: int,
    kv_order: str = "ascending",
    mask: Mask,
    scale: float,
    policy: Policy,
    softmax: SoftmaxOptions = SoftmaxOptions(),
    observer: Observer | None = None,
    code: Mapping[str, Callable[[Tile], None]] = STATEMENT_CODE,
) -> Tensor:
    """Attention by the Program on the CPU, in tiles of block_M queries and block_N keys of any size.

    q (batch, heads, seq_q, head_dim), k and v (batch, heads, seq_kv, head_dim), fp16 or bf16; returns the output in
    q's dtype. v, and with it the output, may have another head size. `code` is what the statements of the Program's table name. Raises machine.Deadlock.
    """
    batch, heads, seq_q, head_dim = q.shape
    dtype = str(q.dtype).removeprefix("torch.")
    shape = AttentionShape(batch, heads, seq_q, k.shape[2], head_dim, dtype, mask, v.shape[3])
    output = q.new_empty(batch, heads, seq_q, v.shape[3])
    least_blocks = program.least_blocks
    for b in range(batch):
        for h in range(heads):
            for index in range(row_tiles(shape, block_M)):
                blocks = kv_blocks(shape, block_M, block_N, index, least_blocks)
                tile = Tile(
                    shape,
                    {"Q": q[b, h], "K": k[b, h], "V": v[b, h]},
                    block_M=block_M,
                    block_N=block_N,
                    kv_order=kv_order,
                    index=index,
                    blocks=blocks,
                    scale=scale,
                    table=program.table,
                    code=code,
                    softmax=softmax,
                    observer=observer,
                )
                execute(program, len(blocks), tile, policy)
                rows = output[b, h, index * block_M : (index + 1) * block_M]
                rows.copy_(tile.result()[: len(rows)])
    return output


def verify(program: Program, schedule: Schedule, variant: Variant, seed: int = 0) -> dict[str, ErrorReport]:
    """Both runs of the interpreter against fp64 on a ragged problem of several tiles: {"late": ..., "early": ...}."""
    seq_q = schedule.block_M + 37
    seq_kv = seq_q + 3 * schedule.block_N + 5
    q, k, v = make_inputs(AttentionShape.of(variant, Sizes(1, 1, seq_q, seq_kv)), seed)
    options = {"mask": variant.mask, "scale": variant.head_dim**-0.5}
    tile = {key: getattr(schedule, key) for key in ("block_M", "block_N", "kv_order", "softmax")}
    exact = attention_fp64(q, k, v, **options)
    peer = attention_same_precision(q, k, v, **options)
    return {
        name: compare(interpret(program, q, k, v, policy=policy, **tile, **options), exact, peer)
        for name, policy in POLICIES.items()
    }
