"""Few queries on many keys: heads that share K and V may be rows of one, and keys computed in parts that are merged."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

from tl_attention.problem.features import keep_heads_apart
from tl_attention.problem.head_dims import tile_dim
from tl_attention.problem.mask import FULL, ceildiv
from tl_attention.problem.packed import LEAST_BLOCKS, places_of_parts
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import MERGE, MERGE_PART, TILE
from tl_attention.problem.variant import rows_of_box
from tl_attention.problem.warpgroup import ROWS
from tl_attention.schedule.schedule import Schedule

# Heads that lie in one tile where each must have some rows.
SOME_HEADS = 16


class KeySplit(NamedTuple):
    """A KeySplit says into how many parts a row tile's keys are split, and how many KV blocks each part has at most."""

    number: int
    blocks: int


def packed_heads(shape: AttentionShape, schedule: Schedule) -> tuple[AttentionShape, int]:
    """Returns the problem to compute where heads of Q share row tiles (GQA packing), and how many heads share one.

    They are heads that share K and V, which are read once for all of them. For packed sequences that is always so; for
    a batch they are as many as make the fewest tiles of few queries: 64 rows of two heads fill a tile where ten rows of
    each of six leave a fourth tile for the rest. The problem has no mask where a single query sees all keys.
    """
    # Windows that are open to the right need some rows of each head, for the proof to see all that they may do. Prompts
    # need some, as each box is a load of its own. If there are more heads than a tile may have, several tiles have
    # equally many.
    few_boxes = shape.mask.right not in (None, 0) or (shape.packed and schedule.kernel.rows_of == "head")
    most = SOME_HEADS if few_boxes else ROWS // rows_of_box(tile_dim(shape.head_dim))
    heads = ceildiv(shape.group, ceildiv(shape.group, most))
    apart = keep_heads_apart(shape.asked.features)
    if shape.packed:
        return shape, heads if schedule.groups_heads and not apart else 1
    if apart or schedule.kernel.rows_of == "head" or shape.seq_q > schedule.block_M:
        return shape, 1
    numbers = [1, heads, *(number for number in range(heads - 1, 1, -1) if shape.group % number == 0)]
    heads = min(numbers, key=lambda number: tiles_of_heads(shape, schedule, number))
    alone = heads > 1 and shape.seq_q == 1 and (shape.mask.left is None or shape.mask.left >= shape.seq_kv - 1)
    return replace(shape, mask=FULL) if alone else shape, heads


def tiles_of_heads(shape: AttentionShape, schedule: Schedule, tile_heads: int) -> int:
    """Returns how many row tiles the problem has if `tile_heads` heads of Q share each one."""
    variant = shape.variant(tile_heads=tile_heads)
    return shape.batch * variant.heads_of_tiles(shape.heads) * ceildiv(shape.seq_q, variant.rows_of(schedule.block_M))


def split_plan(shape: AttentionShape, schedule: Schedule, sms: int) -> KeySplit | None:
    """Returns the KeySplit by which so many SMs compute the problem soonest (split-KV); None if that is no split.

    The schedule says how many KV blocks a part has at least.
    """
    if schedule.kernel.part_blocks is None:
        return None
    tiles = tiles_of_heads(shape, schedule, packed_heads(shape, schedule)[1])
    best = _soonest(tiles, ceildiv(shape.seq_kv, schedule.block_N), schedule, sms)
    return best if best.number > 1 else None


def may_be_split(heads: int, schedule: Schedule, sms: int) -> bool:
    """Says whether packed sequences that are long enough, of so many heads of tiles, may be split on so many SMs.

    A split sequence has two places at least for the results of its parts.
    """
    return schedule.splits_sequences and result_places(heads, schedule, sms) > 1


def splits_equal(sequences: int, keys: int, heads: int, schedule: Schedule, sms: int) -> bool:
    """Says whether so many packed sequences of one row tile and equally many keys are computed sooner if split."""
    return _soonest(sequences * heads, ceildiv(keys, schedule.block_N), schedule, sms).number > 1


def result_places(heads: int, schedule: Schedule, sms: int) -> int:
    """Returns how many parts of packed sequences may have results at a time, for each of so many heads of tiles."""
    return places_of_parts(schedule.workers(sms), heads)


def most_unsplit_keys(schedule: Schedule) -> int:
    """Returns the largest number of keys with which a packed sequence is never split."""
    return 2 * LEAST_BLOCKS * schedule.block_N


def _soonest(tiles: int, blocks: int, schedule: Schedule, sms: int) -> KeySplit:
    """Returns the parts, of so many KV blocks of each of so many row tiles, that so many SMs compute soonest."""
    # A schedule's hash would take longer than the rest of this.
    return _of_places(tiles, max(1, blocks), schedule.workers(sms), schedule.kernel.part_blocks or 1)


@functools.lru_cache(maxsize=4096)
def _of_places(tiles: int, blocks: int, at_once: int, least: int) -> KeySplit:
    # More parts than two for each place would wait for each other.
    most = max(1, min(blocks // least, 2 * at_once // tiles))
    plans = {KeySplit(ceildiv(blocks, each), each) for each in (ceildiv(blocks, count) for count in range(1, most + 1))}
    return min(plans, key=lambda parts: (_time(parts, tiles, at_once), parts))


def finest_split(shape: AttentionShape, schedule: Schedule) -> KeySplit:
    """Returns the KeySplit with as many parts of the problem's keys as the schedule allows."""
    blocks = schedule.kernel.part_blocks or 1
    return KeySplit(ceildiv(shape.seq_kv, blocks * schedule.block_N), blocks)


def kernels_for_any_lengths(
    shape: AttentionShape, schedule: Schedule, invariant: bool
) -> list[tuple[AttentionShape, int, bool]]:
    """Returns, for calls of any lengths, the schedule's kernels as (problem, heads of a tile, whether keys are split).

    `shape` is such a call of one query and one key.
    """
    lengths = range(1, 2 if shape.packed else schedule.block_M + 1)
    few = (packed_heads(replace(shape, seq_q=rows, seq_kv=rows), schedule) for rows in lengths)
    of_few = ((replace(shape, mask=problem.mask), heads) for problem, heads in few)
    problems = dict.fromkeys(of_few if shape.packed else [(shape, 1), *of_few])
    may = schedule.splits_sequences if shape.packed else schedule.kernel.part_blocks is not None
    return [(*problem, in_parts) for problem in problems for in_parts in (False, True)[: 1 + (may and not invariant)]]


def _time(parts: KeySplit, tiles: int, at_once: int) -> float:
    merging = MERGE + MERGE_PART * parts.number if parts.number > 1 else 0.0
    return ceildiv(tiles * parts.number, at_once) * (parts.blocks + TILE) + merging


def results_of_parts(output: Any, parts: int) -> tuple[Any, Any]:
    """Returns new fp32 tensors for the output and the LSE of all parts, each part's as large as this output.

    PyTorch's allocator keeps their memory for the next call, apart for each stream and for each captured graph.
    """
    import torch

    batch, heads, rows, columns = output.shape
    sizes = (parts * batch, heads, rows)
    return output.new_empty((*sizes, columns), dtype=torch.float32), output.new_empty(sizes, dtype=torch.float32)


def tensors_for_parts(q: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """Returns new fp32 tensors for the output and the LSE of parts of packed sequences, with so many rows of tiles."""
    import torch

    return q.new_empty((rows, columns), dtype=torch.float32), q.new_empty(rows, dtype=torch.float32)
