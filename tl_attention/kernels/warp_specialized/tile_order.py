"""This module says which row tile of which head a tile number is, for arrays; `tiles.py` says it for kernels."""

from __future__ import annotations

import numpy as np

from tl_attention.problem.lengths import Problems, results
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.tiling import SECTION_BYTES, taper
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule


def workers(schedule: Schedule, variant: Variant) -> int:
    """Returns how many blocks, or clusters of blocks, the variant's SMs hold at once, at least one.

    Each works on one tile after another.
    """
    return max(1, variant.sms * schedule.kernel.blocks_per_sm // schedule.kernel.cluster)


def placed(
    number: np.ndarray, sizes: Problems, rows: int, schedule: Schedule, variant: Variant
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (row tile, head counted over all batches) for each tile number, in the schedule's order of tiles.

    The function says a second time, for the proof, what `tiles.py` says.
    """
    row_tiles = np.maximum(ceildiv(sizes.seq_q, rows), 1)
    row, head, _ = ordered(
        number,
        row_tiles,
        variant.heads_of_tiles(sizes.heads) * results(variant, sizes),
        sizes.seq_kv,
        schedule,
        variant,
    )
    return (row_tiles - 1 - row if variant.mask.grows else row), head


def ordered(
    number: np.ndarray, row_tiles: np.ndarray, heads: np.ndarray, keys: np.ndarray, schedule: Schedule, variant: Variant
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (row tile, head, whether its head takes turns with others) for each tile number in the schedule's order.

    A head has `row_tiles` row tiles and `keys` keys.
    """
    order, last = schedule.kernel.tile_order, number >= 0
    row, head = number % row_tiles, number // row_tiles
    if order == "tapered":
        together = taper(variant.tile_dim, variant.tile_dim_v) * workers(schedule, variant)
        width = np.minimum(heads, ceildiv(together, row_tiles))
        within = number - (heads - width) * row_tiles
        last = within >= 0
        row = np.where(last, within // width, row)
        head = np.where(last, heads - width + within % width, head)
    if order == "sections":
        columns, group = variant.tile_dim + variant.tile_dim_v, variant.subgroups
        section = group * np.maximum(1, np.minimum(heads // group, SECTION_BYTES // (keys * columns * 2)))
        first, within = number // (section * row_tiles) * section, number % (section * row_tiles)
        width = np.minimum(section, heads - first)
        row, head = within // width, first + within % width
    return row, head, last
