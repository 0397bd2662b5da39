"""This module says which row tile of which head a tile number is, for arrays; `tiles.py` says it for kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.problem.mask import ceildiv
from tl_attention.problem.tiling import SECTION_BYTES, taper
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# numpy's arithmetic on arrays of numbers.
ARRAYS = SimpleNamespace(min=np.minimum, max=np.maximum, where=np.where)


def placed(
    number: Any, sizes: Any, heads: Any, rows: int, schedule: Schedule, variant: Variant, workers: Any, ops: Any = ARRAYS
) -> tuple[Any, Any]:  # fmt: skip
    """Returns (row tile, head) for each tile number, in the schedule's order, with heads counted over all batches.

    The function says a second time, for the proof, what `tiles.py` says. Numbers, sizes and the numbers of heads and of
    workers are arrays, or unknowns with their `ops`.
    """
    row_tiles = ops.max(ceildiv(sizes.seq_q, rows), 1)
    row, head, _ = ordered(number, row_tiles, heads, sizes, schedule, variant, workers, ops)
    return (row_tiles - 1 - row if variant.mask.grows else row), head


def entry_and_head(number: Any, few: Any, many: Any, heads: Any, turns_from: Any, ops: Any = ARRAYS) -> tuple[Any, Any]:
    """Returns (entry of the list, head) for each number of a tile of packed sequences, as `packed.py` does for kernels.

    Of the entries `few` are of sequences of few queries, `many` of others, whose heads from `turns_from` on take turns.
    """
    behind, width = number - few * heads, heads - turns_from
    within = behind - turns_from * many
    entry = ops.where(within >= 0, few + within // width, few + many + behind % many)
    head = ops.where(within >= 0, turns_from + within % width, behind // many)
    return ops.where(behind >= 0, entry, number // heads), ops.where(behind >= 0, head, number % heads)


def ordered(
    number: Any, row_tiles: Any, heads: Any, sizes: Any, schedule: Schedule, variant: Variant, workers: Any,
    ops: Any = ARRAYS,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns (row tile, head, whether its head takes turns with others) for each tile number in the schedule's order.

    A head has `row_tiles` row tiles.
    """
    order, last = schedule.kernel.tile_order, number >= 0
    row, head = number % row_tiles, number // row_tiles
    # Heads of one row tile come in their order, however many take turns: a kernel of such fixed sizes asks no number.
    if order == "tapered" and not (isinstance(row_tiles, int) and row_tiles == 1):
        together = taper(variant.tile_dim, variant.tile_dim_v) * workers
        width = ops.min(heads, ceildiv(together, row_tiles))
        within = number - (heads - width) * row_tiles
        last = within >= 0
        row = ops.where(last, within // width, row)
        head = ops.where(last, heads - width + within % width, head)
    if order == "sections":
        columns, group = variant.tile_dim + variant.tile_dim_v, variant.subgroups if variant.group else sizes.group
        section = group * ops.max(1, ops.min(heads // group, SECTION_BYTES // (sizes.seq_kv * columns * 2)))
        first, within = number // (section * row_tiles) * section, number % (section * row_tiles)
        width = ops.min(section, heads - first)
        row, head = within // width, first + within % width
    return row, head, last
