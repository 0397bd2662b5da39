"""Few tiles on many keys leave most SMs without work: then each row's keys are computed in parts, side by side."""

from __future__ import annotations

from typing import NamedTuple

from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import row_tiles
from tl_attention.schedule.schedule import Schedule

# A part has at least so many KV blocks: its first and last steps, and its result, cost about one.
LEAST_BLOCKS = 8


class Parts(NamedTuple):
    """Parts say into how many parts a row's keys are cut, and how many KV blocks each has; the last may have fewer."""

    number: int
    blocks: int


def parts_for(shape: AttentionShape, schedule: Schedule, sms: int) -> Parts | None:
    """Returns the Parts in which a problem's keys are computed on a GPU of so many SMs; None for all keys at once.

    There are as many as fill the GPU. A sink counts once, and the keys of a window are few.
    """
    if shape.mask.left is not None or any(feature.kind == "per head" for feature in shape.asked.features):
        return None
    if not lowering_of(schedule).computes_parts(schedule):
        return None
    tiles = row_tiles(shape, schedule.block_M) * shape.heads * shape.batch
    blocks = ceildiv(shape.seq_kv, schedule.block_N)
    most = min(sms * schedule.kernel.blocks_per_sm // tiles, blocks // LEAST_BLOCKS)
    if most < 2:
        return None
    each = ceildiv(blocks, most)
    return Parts(ceildiv(blocks, each), each)
