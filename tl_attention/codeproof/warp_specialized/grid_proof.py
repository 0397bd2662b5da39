"""This module says which tiles the blocks of a warp-specialised kernel work on, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.tiles.row_tiles import ARRAYS, RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.warp_specialized.packed_proof import ListedTiles
from tl_attention.kernels.warp_specialized.tile_order import placed, workers
from tl_attention.problem.bounds import GRID_YZ
from tl_attention.problem.lengths import Problems, part_blocks, results
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.variant import Variant


def whole_groups(heads: int, variant: Variant) -> int:
    """Returns the smallest multiple of a group's heads that has at least `heads` heads, or of tiles of several so many."""
    return min(ceildiv(heads, variant.subgroups), GRID_YZ // variant.group) * variant.group


# More than any problem's tiles.
NO_TILE = 1 << 40


def turns(
    proof: Proof, sizes: Any, number: np.ndarray, count: int, tensors: Mapping[str, Tensor], counted: int = 0
) -> list[RowTiles]:
    """Returns `count` RowTiles, the tiles that the clusters work on one after another, with an entry for each block.

    The clusters begin with the tiles of these numbers.
    """
    schedule, variant = proof.schedule, proof.code.variant
    scheduler, step = schedule.kernel.tile_scheduler, workers(schedule, variant)
    if variant.packed:
        total = sizes.row_tiles * variant.heads_of_tiles(sizes.sizes.heads)
    else:
        total = ceildiv(sizes.seq_q, proof.rows) * variant.heads_of_tiles(sizes.heads) * results(variant, sizes)
    found = []
    for _ in range(count):
        there = number < total
        found.append(_tiles(proof, sizes, number, there, tensors))
        if scheduler == "dynamic":
            # A block without a tile draws no other one.
            number = np.where(there, counted + np.cumsum(there) - 1 + step, NO_TILE)
            counted += int(there.sum())
        else:
            number = number + step if scheduler == "static" else np.full_like(number, NO_TILE)
    return found


def _tiles(
    proof: Proof, problems: Any, number: np.ndarray, there: np.ndarray, tensors: Mapping[str, Tensor]
) -> RowTiles:
    """Returns the tiles of these numbers as RowTiles, with an entry for each block of a tile's cluster.

    The batch of packed sequences' tiles is their number in the list.
    """
    schedule, variant, cluster = proof.schedule, proof.code.variant, proof.schedule.kernel.cluster
    number, begins = np.where(there, number, 0), None
    if variant.packed:
        # The list's first entry for each head, and then the next.
        heads = variant.heads_of_tiles(problems.sizes.heads)
        at, of_heads = divmod(number, heads)
        batch, (first, q_begin, seq_q, k_begin, seq_kv, *part, place) = problems.found(at, there)
        sizes = problems.sizes._replace(seq_q=seq_q, seq_kv=seq_kv)
        begins = np.repeat(q_begin, cluster), np.repeat(k_begin, cluster)
        head = variant.first_head(of_heads, ARRAYS)
        result = np.where(place > 0, ((place - 1) * heads + of_heads) * schedule.block_M, -1)
    else:
        sizes = problems
        heads = variant.heads_of_tiles(sizes.heads) * results(variant, sizes)
        tile, head = placed(number, sizes, heads, proof.rows, schedule, variant)
        first, (result, head) = tile * cluster, divmod(head, variant.heads_of_tiles(sizes.heads))
        head = variant.first_head(head, ARRAYS)
        number_of_part, batch = divmod(result, sizes.batch)
        each = part_blocks(sizes.seq_kv)
        part = [number_of_part * each, (number_of_part + 1) * each]
    own = (first, head, batch, there, result, *part)
    first, head, batch, there, result, *part = (np.repeat(numbers, cluster) for numbers in own)
    rank, of_blocks = np.arange(len(first)) % cluster, _of_blocks(sizes, cluster)
    of_part: Any = {"part": tuple(part), "result": result} if variant.parts else {}
    row = (first + rank) * proof.cut.block_M
    return RowTiles(proof.cut, of_blocks, row, head, batch, rank, there, tensors, begins=begins, **of_part)


def entries_of(proof: Proof, sizes: Any) -> ListedTiles | None:
    """Returns the list of tiles that a run at these sizes reads, None for sequences of one length."""
    return ListedTiles.of(sizes, proof, 1) if proof.code.variant.packed else None


def of_clusters(proof: Proof, sizes: Any, count: int) -> Any:
    """Returns the problem of these sizes once for each of `count` clusters, as `turns` takes it."""
    if proof.code.variant.packed:
        return ListedTiles.of(sizes, proof, count)
    return Problems(*(np.full(count, size) for size in sizes))


def _of_blocks(sizes: Problems, cluster: int) -> Problems:
    return Problems(*(np.repeat(size, cluster) for size in sizes))
