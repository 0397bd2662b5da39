"""Few queries on many keys: heads that share K and V may be rows of one, and keys computed in parts that are merged."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

from tl_attention.problem.features import keep_heads_apart
from tl_attention.problem.mask import FULL, ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import ROWS
from tl_attention.schedule.schedule import Schedule

# Times in those in which a thread block computes a KV block: a tile begins and ends, and another kernel merges parts.
TILE, MERGE, MERGE_PART = 1.5, 2.5, 0.03
# Of packed sequences more rows than these queries have take longer to merge than few keys take to compute. In parts they
# need room for another copy of the queries, and for outputs in fp32: 768 MB for so many rows of heads, of 128 columns.
FEW_QUERIES, MANY_KEYS, MOST_ROWS = 16, 8192, 1 << 20


class Parts(NamedTuple):
    """Parts are how many a row tile's keys have, and of how many KV blocks each; the last may have fewer."""

    number: int
    blocks: int


def in_one_tile(shape: AttentionShape, schedule: Schedule, in_parts: bool = True) -> tuple[AttentionShape, int]:
    """Returns the problem that the schedule's kernel computes, and how many heads of Q have rows in one of its tiles.

    They are those that share K and V, which are read once for all of them, if their rows of few queries then make fewer
    tiles. The problem has no mask where a single query sees all keys. Of the kernels that read a number of each head, only
    the one that merges parts knows which rows are which head's.
    """
    apart = shape.packed or keep_heads_apart(shape.asked.features, in_parts and may_have_parts(schedule))
    # Of more heads than a tile has rows, equally many lie in each of several.
    # Windows that are open to the right need some rows of each, for the proof to see all that they may do.
    most = ROWS if shape.mask.right in (None, 0) else 16
    heads = next(number for number in range(min(shape.group, most), 0, -1) if shape.group % number == 0)
    apart = apart or schedule.kernel.rows_of == "head" or shape.seq_q > schedule.block_M
    if apart or tiles_of_heads(shape, schedule, heads) >= tiles_of_heads(shape, schedule, 1):
        return shape, 1
    alone = shape.seq_q == 1 and (shape.mask.left is None or shape.mask.left >= shape.seq_kv - 1)
    return replace(shape, mask=FULL) if alone else shape, heads


def tiles_of_heads(shape: AttentionShape, schedule: Schedule, tile_heads: int) -> int:
    """Returns how many row tiles the problem has where so many heads have their rows in one."""
    rows = replace(shape.variant(), tile_heads=tile_heads).rows_of(schedule.block_M)
    return shape.batch * (shape.heads // tile_heads) * ceildiv(shape.seq_q, rows)


def parts_of(shape: AttentionShape, schedule: Schedule, sms: int) -> Parts | None:
    """Returns the parts in which a GPU of so many SMs computes the problem's keys soonest; None for all keys at once.

    The schedule says how many KV blocks a part has at least. Sinks are added as parts are merged, if there be one, and rows
    of packed sequences' heads are brought to where they belong; how many blocks a part of these has, the list of tiles says.
    """
    if not may_have_parts(schedule):
        return None
    if shape.packed:
        longest = shape.seq_q, shape.seq_kv
        number = packed_parts(shape.batch * shape.heads, longest, row_heads(shape, schedule), schedule, sms)
        return Parts(number, 0) if number else None
    tiles = tiles_of_heads(shape, schedule, in_one_tile(shape, schedule)[1])
    best = _soonest(tiles, ceildiv(shape.seq_kv, schedule.block_N), schedule, sms)
    merged_alone = keep_heads_apart(shape.asked.features, False) and not keep_heads_apart(shape.asked.features, True)
    return best if best.number > 1 or merged_alone else None


def packed_parts(heads: int, longest: tuple[int, int], row_heads: int, schedule: Schedule, sms: int) -> int:
    """Returns how many parts the keys of packed sequences have, 0 where all at once are computed sooner.

    There are so many heads of all sequences, of which `row_heads` lie together, and up to so many queries and keys.
    """
    queries, keys = longest
    if (queries > FEW_QUERIES and keys < MANY_KEYS) or heads * queries > MOST_ROWS:
        return 0
    tiles = heads // row_heads * ceildiv(queries * row_heads, schedule.block_M)
    number = _soonest(tiles, ceildiv(keys, schedule.block_N), schedule, sms).number
    return number if number > 1 or row_heads > 1 else 0


def _soonest(tiles: int, blocks: int, schedule: Schedule, sms: int) -> Parts:
    """Returns the parts of so many KV blocks of each of so many row tiles that a GPU of so many SMs computes soonest."""
    # A schedule's hash would take longer than the rest of this.
    return _of_places(tiles, max(1, blocks), sms * schedule.kernel.blocks_per_sm, schedule.kernel.part_blocks or 1)


@functools.lru_cache(maxsize=4096)
def _of_places(tiles: int, blocks: int, at_once: int, least: int) -> Parts:
    # More parts than two for each place would wait for each other.
    most = max(1, min(blocks // least, 2 * at_once // tiles))
    found = {Parts(ceildiv(blocks, each), each) for each in (ceildiv(blocks, count) for count in range(1, most + 1))}
    return min(found, key=lambda parts: (_time(parts, tiles, at_once), parts))


def row_heads(shape: AttentionShape, schedule: Schedule) -> int:
    """Returns how many heads of packed sequences have their rows behind each other for each query: those of a group, or 1.

    A row tile has two queries at least.
    """
    apart = schedule.kernel.rows_of == "head" or keep_heads_apart(shape.asked.features, in_parts=True)
    return 1 if apart or 2 * shape.group > schedule.block_M else shape.group


def packed_variant(shape: AttentionShape, schedule: Schedule, in_parts: bool) -> Variant:
    """Returns the variant of a schedule's kernel for packed sequences, whose keys may be in parts.

    Rows of heads that share K and V are put together only as parts are merged, which brings them to where they belong.
    """
    found, heads = shape.variant(parts=in_parts), row_heads(shape, schedule) if in_parts else 1
    return replace(found, row_heads=heads, group=shape.group // heads)


def smallest_parts(shape: AttentionShape, schedule: Schedule) -> Parts:
    """Returns as many parts of the problem's keys as the schedule allows, of packed sequences three."""
    if shape.packed:
        return Parts(3, 0)
    blocks = schedule.kernel.part_blocks or 1
    return Parts(ceildiv(shape.seq_kv, blocks * schedule.block_N), blocks)


def of_any_lengths(
    shape: AttentionShape, schedule: Schedule, invariant: bool
) -> list[tuple[AttentionShape, int, bool]]:
    """Returns the problems, heads of a tile, and whether in parts, of the schedule's kernels for calls of any lengths.

    `shape` is such a call of one query and one key.
    """
    lengths = (1, 2) if schedule.kernel.rows_of == "group" and not shape.packed else ()
    of_lengths = [replace(shape, seq_q=rows, seq_kv=rows) for rows in lengths]
    problems = dict.fromkeys([(shape, 1), *(in_one_tile(of_one, schedule) for of_one in of_lengths)])
    parts = (False, True) if may_have_parts(schedule) and not invariant else (False,)
    every = [(*problem, in_parts) for problem in problems for in_parts in parts]
    apart = {in_parts: keep_heads_apart(shape.asked.features, in_parts) for in_parts in parts}
    return [found for found in every if found[1] == 1 or not apart[found[2]]]


def may_have_parts(schedule: Schedule) -> bool:
    """Says whether the schedule may compute keys in parts."""
    return schedule.kernel.part_blocks is not None


def _time(parts: Parts, tiles: int, at_once: int) -> float:
    merging = MERGE + MERGE_PART * parts.number if parts.number > 1 else 0.0
    return ceildiv(tiles * parts.number, at_once) * (parts.blocks + TILE) + merging


def results_of_parts(output: Any, parts: int) -> tuple[Any, Any]:
    """Returns fp32 tensors for the output and the LSE of each part of a problem with this output, as more batches of it.

    PyTorch's allocator keeps their memory for the next call, apart for each stream and for each captured graph.
    """
    import torch

    batch, heads, rows, columns = output.shape
    sizes = (parts * batch, heads, rows)
    return output.new_empty((*sizes, columns), dtype=torch.float32), output.new_empty(sizes, dtype=torch.float32)


def work_of_packed_parts(q: Any, row_heads: int, columns: int, parts: int) -> tuple[Any, Any, Any]:
    """Returns room for packed queries as the kernel takes them, and for the fp32 output and the LSE of each part of the keys.

    A head has the rows of `row_heads` heads of q (rows, heads, head_dim), and each part more heads of results.
    """
    import torch

    total, heads, head_dim = q.shape
    rows, heads = total * row_heads, heads // row_heads
    outputs = q.new_empty((parts * heads, rows, columns), dtype=torch.float32)
    return q.new_empty((rows, heads, head_dim)), outputs, q.new_empty(outputs.shape[:2], dtype=torch.float32)
