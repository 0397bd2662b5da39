"""This module proves that the blocks of a warp-specialised kernel work on all tiles of a grid, in turn.

Every number is one tile, every tile is taken by one block, and all roles of a block work on the same tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.run import Extent, Run
from tl_attention.codeproof.run.threads import Threads
from tl_attention.codeproof.tiles.alike import numbered
from tl_attention.codeproof.tiles.grid_tiles import check_places
from tl_attention.codeproof.tiles.row_tiles import ARRAYS, RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.codeproof.warp_specialized.packed_proof import DrawnTiles, ListedTiles
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.kernels.warp_specialized.tile_order import placed, workers
from tl_attention.problem.bounds import GRID_YZ
from tl_attention.problem.lengths import Lengths, Problems, cuts, part_blocks, results
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import PackedSizes
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import SECTION_BYTES, row_tiles, taper
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.problem.warpgroup import WARPS
from tl_attention.program.events import Event
from tl_attention.schedule.schedule import Schedule

# Where blocks of fixed sizes work on more tiles than this each, and on more than that together, their first tiles are
# looked at, and so many numbers of tiles at both ends of the grid.
MOST_TURNS, MOST_TILES, SAMPLE = 64, 1 << 13, 1 << 11


def whole_groups(heads: int, variant: Variant) -> int:
    """Returns the smallest multiple of a group's heads that has at least `heads` heads, or of tiles of several so many."""
    return min(ceildiv(heads, variant.subgroups), GRID_YZ // variant.group) * variant.group


def grids(schedule: Schedule, variant: Variant) -> Iterator[Sizes | PackedSizes]:
    """Yields sizes of problems whose grids show every way in which the order of tiles divides their number.

    Where few heads show it, a grid has as many heads of K and V.
    """
    for sizes, lengths in _grids(schedule, variant):
        gap = 2 * schedule.block_M * schedule.kernel.cluster
        yield PackedSizes.of(sizes.heads, lengths, gap) if variant.packed else sizes


def _grids(schedule: Schedule, variant: Variant) -> Iterator[tuple[Sizes, list[tuple[int, int]]]]:
    """Yields what `grids` does, with the lengths of packed sequences whose tiles show the same.

    There are sequences of many tiles and of none, and problems without a tile.
    """
    rows, group = variant.rows_of(schedule.block_M) * schedule.kernel.cluster, variant.group
    # One row tile of many heads, so that a number in the order of tiles is not divided by anything else.
    heads = whole_groups(9 * workers(schedule, variant), variant)
    yield Sizes(1, heads, rows, rows + 1), [(rows, rows + 1)]
    long = Lengths(5 * rows - rows // 3, 6 * rows)
    yield Sizes(2, 3 * group, *long), [long, (0, 9), (3, 0), (rows, 2 * rows), (1, 1), (rows + 1, rows // 2)]
    # Numbers of row tiles that divide the number of tapered tiles, or one less than that, and heads beyond those.
    tapered = taper(variant.tile_dim, variant.tile_dim_v) * workers(schedule, variant)
    for tiles in (4, next(n for n in range(2, tapered) if (tapered - 1) % n == 0)):
        sizes = Sizes(1, whole_groups(tapered // tiles + 4, variant), tiles * rows, tiles * rows)
        yield sizes, [(rows, 2 * rows), ((tiles - 1) * rows, tiles * rows)]
    # The window's edges lie in tiles of their own, with keys before and after them that no row of the tiles sees.
    for seq_q, seq_kv in [*cuts(variant.mask, rows, schedule.block_N, variant.box)][:1]:
        within = Lengths(seq_q + 3 * rows, seq_kv + 4 * rows)
        yield Sizes(1, 3 * group, *within), [within, (rows, rows)]
    # No tile, for blocks that look for one.
    if schedule.kernel.tile_scheduler != "one_tile":
        yield Sizes(2, 2 * group, 0, rows), [(0, rows), (0, 0)]
    # Keys that divide what a section has, and sections of one head; the last section has fewer heads.
    keys = SECTION_BYTES // (4 * 2 * (variant.tile_dim + variant.tile_dim_v))
    yield Sizes(3, 7 * group, 2 * rows + 1, keys), [(2 * rows + 1, keys), (rows, keys)]
    yield Sizes(1, 5 * group, 3 * rows, 4 * keys + 1), [(3 * rows, 4 * keys + 1)]


class GridProof:
    """A GridProof proves that the blocks of one kernel work on all tiles of a problem of some sizes, each once."""

    def __init__(self, proof: Proof, roles: Roles, sizes: Any):
        self.proof, self.roles, self.sizes = proof, roles, sizes
        self.schedule = proof.schedule
        variant = proof.code.variant
        of_heads = variant.heads_of_tiles(sizes.heads)
        if roles.packed:
            self.row_tiles = len(ListedTiles.of(sizes, proof, 1).entries) * roles.cluster
            self.total = self.row_tiles * of_heads
            return
        self.row_tiles = row_tiles(AttentionShape.of(variant, sizes), proof.rows) * roles.cluster
        self.total = self.row_tiles * of_heads * results(variant, sizes)

    def check(self) -> None:
        """Raises Unsafe unless the blocks work on all tiles of the grid, each once.

        A large grid is checked by a sample.
        """
        blocks = self._blocks()
        turns = ceildiv(self.total, blocks) + 1
        if turns > MOST_TURNS and self.total > MOST_TILES:
            self._check_sample(blocks)
            return
        run, numbers = self._grid(np.arange(blocks), turns)
        if sorted(numbers) != list(range(self.total)):
            raise Unsafe(f"its blocks work on {len(set(numbers))} of {self.total} tiles, {len(numbers)} times")
        if any(any(counts) for counts in run.tiles.counters.values()):
            raise Unsafe(f"it leaves the counters of tiles as {run.tiles.counters}")
        self.proof.note_places(run, [Event("tiles", place=tuple(numbers))])

    def _blocks(self) -> int:
        """Returns the number of blocks in the kernel's grid. Raises Unsafe unless that is how many there should be."""
        plan, cluster = self.proof.plan, self.roles.cluster
        grid = [part.at(self.sizes._asdict()) for part in plan.grid]
        one_tile = self.schedule.kernel.tile_scheduler == "one_tile"
        wanted = self.total if one_tile else workers(self.schedule, self.proof.code.variant) * cluster
        if grid != [wanted, 1, 1] or plan.cluster != (cluster, 1, 1):
            raise Unsafe(f"a grid of {grid} blocks in clusters of {plan.cluster}, expected {wanted} in {cluster}")
        return wanted

    def _check_sample(self, blocks: int) -> None:
        """Raises Unsafe if, in a sample of a large grid, two numbers give one tile, or a block skips a number.

        Blocks must take the next number. The sample has the first and the last numbers.
        """
        cluster = self.roles.cluster
        ends = np.concatenate([np.arange(SAMPLE), np.arange(self.total // cluster * cluster - SAMPLE, self.total)])
        some = np.unique(ends[(ends >= 0) & (ends < self.total)])
        run, numbers = self._grid(some, 1, whole=False)
        if len({*numbers}) != len(some):
            raise Unsafe(f"{len({*numbers})} tiles have {len(some)} numbers")
        self.proof.note_places(run, [Event("tiles", place=tuple(numbers))])
        run, _ = self._grid(np.arange(blocks), SAMPLE // blocks, whole=False)
        self.proof.note_places(run)

    def _grid(self, blocks: np.ndarray, count: int, whole: bool = True) -> tuple[Run, list[int]]:
        """Runs one thread per warpgroup of these blocks for `count` tiles; returns the Run and the tiles' numbers.

        They are all tiles of the blocks if `whole`. A number tells the place of a tile.
        """
        proof, cluster, reading = self.proof, self.roles.cluster, self.proof.reading(self.sizes)
        clusters = blocks[::cluster] // cluster
        tiles = turns(proof, of_clusters(proof, self.sizes, len(clusters)), clusters, count, reading.tensors)
        run = Run(
            proof.kernel, Threads(blocks, self.roles.warpgroups + 1, (0,), lanes=1), proof.names(self.sizes),
            Extent(count, ends=True), cluster, {"TileCounter": (0, 0)}, proof.iterations, whole=whole, workers=len(clusters),
            sizes=self.sizes, entries=entries_of(proof, self.sizes),
        )  # fmt: skip
        run.go()
        check_places(run, tiles, reading, self.roles.warpgroups, proof.code.variant.acting)
        places = [self._number(of) for of in tiles]
        return run, [number for place, of in zip(places, tiles) for number in place[of.there].tolist()]

    def _number(self, of: RowTiles) -> np.ndarray:
        """Returns a number that tells each tile from all others. The batch of a packed tile tells the cluster's tile."""
        variant = of.cut.variant
        group, own = divmod(of.head, variant.group)
        head = group * variant.subgroups + ceildiv(own, variant.tile_heads)
        if self.roles.packed:
            return (head * self.row_tiles + of.batch * self.roles.cluster) + of.rank
        head = of.place_of_results()[2] * variant.heads_of_tiles(self.sizes.heads) + head
        return head * self.row_tiles + of.row // of.cut.block_M


# The first value of the counter of tiles, in each run.
COUNTED = (0, 100_000)
# More than any problem's tiles.
NO_TILE = 1 << 40


def check_samples(proof: Proof, roles: Roles) -> None:
    """Raises Unsafe if the code uses a tile's number for more than to find the tile, or the wrong tile comes next."""
    schedule, variant, cluster = proof.schedule, proof.code.variant, roles.cluster
    for start, counted in enumerate(COUNTED):
        problems: Any = None
        if roles.packed:
            # Each cluster has a problem of its own.
            problems = DrawnTiles.of(schedule, variant, proof.rows, turns=3)
            of, number = problems.sizes, problems.number
        else:
            # The number of heads in a section is a quotient by the number of keys, so there must be keys.
            keyless = schedule.kernel.tile_order != "sections"
            of, number = numbered(variant, proof.rows, schedule.block_N, without_keys=keyless)
        number, sizes = first_numbers(schedule, variant, number), _of_blocks(of, cluster)
        blocks = np.repeat(number, cluster) * cluster + np.arange(len(number) * cluster) % cluster
        threads = Threads(blocks, roles.warpgroups + 1, tuple(range(WARPS)), lanes=1)
        working = turns(proof, problems or of, number, 3 if roles.packed else 2, proof.sample_tensors(sizes), counted)
        # Of packed sequences it shows during a tile whether there is one behind it.
        behind = working.pop().there if roles.packed else None
        proof.check_alike(
            working, threads, proof.sample_names(sizes), roles.warpgroups, variant.box, behind, cluster=cluster,
            counter={"TileCounter": (counted, 0)}, start=start, workers=workers(schedule, variant), entries=problems,
        )  # fmt: skip


def first_numbers(schedule: Schedule, variant: Variant, number: np.ndarray) -> np.ndarray:
    """Returns each cluster's first tile number, which is the cluster's own, or 0 if one worker takes all tiles.

    A single worker's code has no cluster number: it begins with the first tile.
    """
    alone = workers(schedule, variant) == 1 and schedule.kernel.tile_scheduler != "one_tile"
    return np.zeros_like(number) if alone else number


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
