"""Proves that the blocks of a generated warp-specialised kernel share a grid's tiles, and treat all tiles alike.

Every number is one tile, every tile is taken by one block, and all roles of a block work on the same one. Tiles of many
problems are run at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tl_attention.hardware.warpgroup import ROWS, WARPS
from tl_attention.lowering.warp_specialized.roles import Roles
from tl_attention.problem.lengths import Problems, cuts
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import row_tiles
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.proof.events import Event
from tl_attention.proof.generated.alike import Comparison, kv_loops
from tl_attention.proof.generated.grid_tiles import NONE, GridTiles
from tl_attention.proof.generated.per_head import TENSORS
from tl_attention.proof.generated.proof import Proof
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.samples import Samples, numbered, of_threads
from tl_attention.proof.generated.seen import Lengths
from tl_attention.proof.generated.threads import Threads
from tl_attention.schedule.schedule import Schedule

# Where blocks of fixed sizes work on more tiles than this each, and on more than that together, their first tiles are
# looked at, and so many numbers of tiles at both ends of the grid.
MOST_TURNS, MOST_TILES, SAMPLE = 64, 1 << 13, 1 << 11


def workers(schedule: Schedule, variant: Variant) -> int:
    """Blocks, or clusters, that there are where they work on one tile after another: at least one."""
    return max(1, variant.sms * schedule.kernel.blocks_per_sm // schedule.kernel.cluster)


def whole_groups(heads: int, variant: Variant) -> int:
    """At least so many heads, of which no group lacks any."""
    return ceildiv(heads, variant.group) * variant.group


def grids(schedule: Schedule, variant: Variant) -> Iterator[Sizes]:
    """Small grids that show every way in which the order of tiles divides their number.

    Where few heads show it, as many of K and V.
    """
    # Late: it imports tilelang.
    from tl_attention.lowering.warp_specialized.tiles import SECTION_BYTES, taper

    rows, group = schedule.block_M * schedule.kernel.cluster, variant.group
    # One row tile of many heads, so that a number in the order of tiles is not divided by anything else.
    yield Sizes(1, whole_groups(9 * workers(schedule, variant), variant), rows, rows + 1)
    yield Sizes(2, 3 * group, 5 * rows - rows // 3, 6 * rows)
    # As many row tiles as divide the tapered tiles, and those but one, and heads beyond them.
    tapered = taper(variant.tile_dim, variant.tile_dim_v) * workers(schedule, variant)
    for tiles in (4, next(n for n in range(2, tapered) if (tapered - 1) % n == 0)):
        yield Sizes(1, whole_groups(tapered // tiles + 4, variant), tiles * rows, tiles * rows)
    # The window's edges in tiles of their own, and keys before and after them that none of these sees.
    for lengths in [*cuts(variant.mask, rows, schedule.block_N, ROWS)][:1]:
        yield Sizes(1, 3 * group, lengths.seq_q + 3 * rows, lengths.seq_kv + 4 * rows)
    # No tile, for blocks that look for one.
    if schedule.kernel.tile_scheduler != "one_tile":
        yield Sizes(2, 2 * group, 0, rows)
    # Keys that divide what a section has, and sections of one head; the last section has fewer heads.
    keys = SECTION_BYTES // (4 * 2 * (variant.tile_dim + variant.tile_dim_v))
    yield Sizes(3, 7 * group, 2 * rows + 1, keys)
    yield Sizes(1, 5 * group, 3 * rows, 4 * keys + 1)


class GridProof:
    """The proof of one kernel's grid at some sizes."""

    def __init__(self, proof: Proof, roles: Roles, sizes: Sizes):
        self.proof, self.roles, self.sizes = proof, roles, sizes
        self.schedule = proof.schedule
        self.shape = AttentionShape.of(proof.code.variant, sizes)
        cluster = roles.cluster
        self.row_tiles = row_tiles(self.shape, self.schedule.block_M * cluster) * cluster
        self.total = self.row_tiles * sizes.heads * sizes.batch

    def check(self) -> None:
        """Raise Unsafe unless it holds."""
        blocks = self._blocks()
        turns = ceildiv(self.total, blocks) + 1
        if turns > MOST_TURNS and self.total > MOST_TILES:
            self._check_sample(blocks)
            return
        run, found = self._grid(np.arange(blocks), turns)
        numbers = self._numbers(found)
        there = numbers[numbers != NONE]
        if sorted(there.tolist()) != list(range(self.total)):
            raise Unsafe(f"its blocks work on {len(set(there.tolist()))} of {self.total} tiles, {len(there)} times")
        if any(any(counts) for counts in run.counters.values()):
            raise Unsafe(f"it leaves the counters of tiles as {run.counters}")
        self.proof.note_places(run, [Event("tiles", place=tuple(there.tolist()))])

    def _blocks(self) -> int:
        """How many there are, which is how many there should be."""
        plan, cluster = self.proof.plan, self.roles.cluster
        grid = [part.at(self.sizes._asdict()) for part in plan.grid]
        one_tile = self.schedule.kernel.tile_scheduler == "one_tile"
        wanted = self.total if one_tile else workers(self.schedule, self.proof.code.variant) * cluster
        if grid != [wanted, 1, 1] or plan.cluster != (cluster, 1, 1):
            raise Unsafe(f"a grid of {grid} blocks in clusters of {plan.cluster}, expected {wanted} in {cluster}")
        return wanted

    def _check_sample(self, blocks: int) -> None:
        """Of a large grid: the first and the last numbers are tiles, each another one; blocks take the next number."""
        cluster = self.roles.cluster
        ends = np.concatenate([np.arange(SAMPLE), np.arange(self.total // cluster * cluster - SAMPLE, self.total)])
        some = np.unique(ends[(ends >= 0) & (ends < self.total)])
        run, found = self._grid(some, 1, whole=False)
        numbers = self._numbers(found)[0]
        if (numbers == NONE).any() or len(np.unique(numbers)) != len(numbers):
            raise Unsafe(f"{len(np.unique(numbers))} tiles have {len(numbers)} numbers")
        self.proof.note_places(run, [Event("tiles", place=tuple(numbers.tolist()))])
        turns = SAMPLE // blocks
        run, found = self._grid(np.arange(blocks), turns, whole=False)
        wanted = numbers[np.searchsorted(some, np.arange(turns * blocks))].reshape(turns, blocks)
        taken = self._numbers(found)
        if (taken != wanted).any():
            turn, block = np.argwhere(taken != wanted)[0]
            raise Unsafe(f"tile {turn} of block {block} is {taken[turn, block]}, expected {wanted[turn, block]}")
        self.proof.note_places(run)

    def _numbers(self, found: GridTiles) -> np.ndarray:
        """(turn, block): a number for each tile's place, NONE where there is no tile."""
        row, head, batch = np.moveaxis(found["Q", 0], -1, 0)
        number = (batch * self.sizes.heads + head) * self.row_tiles + row // self.schedule.block_M
        return np.where(row == NONE, NONE, number)

    def _grid(self, blocks: np.ndarray, turns: int, whole: bool = True) -> tuple[Run, GridTiles]:
        """One thread of each warpgroup and producer of the blocks, for `turns` tiles, which are all if `whole`."""
        proof, cluster = self.proof, self.roles.cluster
        threads = Threads(blocks, self.roles.warpgroups + 1, (0,), lanes=1)
        names, counter = proof.names(self.sizes), {"TileCounter": (0, 0)}
        lengths = Lengths(turns, ends=True)
        run = Run(
            proof.kernel,
            threads,
            names,
            lengths,
            cluster,
            counter,
            proof.iterations,
            whole=whole,
            workers=len(blocks) // cluster,
        )
        run.go()
        found = GridTiles.of(run, turns, proof.expected(self.sizes))
        found.check(
            self.shape,
            self.roles.warpgroups,
            self.schedule.block_M,
            self.schedule.block_N,
            cluster,
            proof.program.least_blocks,
            proof.lse,
        )
        for tensor in TENSORS:
            if tensor in proof.code.variant.optional:
                found.check_per_head(tensor, self.roles.warpgroups)
        return run, found


# What the counter of tiles begins with in each run.
COUNTED = (0, 100_000)
# More than any problem's tiles.
NO_TILE = 1 << 40


def check_samples(proof: Proof, roles: Roles) -> None:
    """Raise Unsafe where a tile decides something besides where it lies, or is not followed by the next one."""
    schedule, variant, cluster = proof.schedule, proof.code.variant, roles.cluster
    # A section has as many heads as have so many keys, which divides by these.
    keyless = schedule.kernel.tile_order != "sections"
    sizes, row_tiles, number = numbered(variant, schedule.block_M * cluster, schedule.block_N, without_keys=keyless)
    if workers(schedule, variant) == 1 and schedule.kernel.tile_scheduler != "one_tile":
        # The code of a single worker has no block's number: it begins with the first tile.
        number = np.zeros_like(number)
    rank = np.arange(len(number) * cluster) % cluster
    threads = Threads(
        np.repeat(number, cluster) * cluster + rank, roles.warpgroups + 1, tuple(range(WARPS)), lanes=1
    )  # fmt: skip
    for start, counted in enumerate(COUNTED):
        turns = [
            _samples(proof, cluster, sizes, row_tiles, one)
            for one in _numbers(schedule, variant, number, sizes.seq_q > 0, counted)
        ]
        names = of_threads(proof.sample_names(turns[0].sizes), threads)
        run = Run(
            proof.kernel, threads, names, Lengths(len(turns), ends=True), cluster, {"TileCounter": (counted, 0)},
            proof.iterations, start, whole=False, workers=workers(schedule, variant),
        )  # fmt: skip
        run.go()
        found = Comparison(run, turns, proof.iterations.period)
        found.check()
        found.check_loops(kv_loops(proof.kernel), roles.warpgroups, ROWS, proof.program)


def _numbers(
    schedule: Schedule, variant: Variant, number: np.ndarray, there: np.ndarray, counted: int
) -> Iterator[np.ndarray]:
    """The numbers of the tiles that blocks work on in turn, from `number` on, where one is `there`. NO_TILE is no tile's."""
    yield number
    # A block without a tile draws no other one.
    following = {"static": number, "dynamic": counted + np.cumsum(there) - 1, "one_tile": np.full_like(number, NO_TILE)}
    yield following[schedule.kernel.tile_scheduler] + workers(schedule, variant)


def _samples(proof: Proof, cluster: int, sizes: Problems, row_tiles: np.ndarray, number: np.ndarray) -> Samples:
    """The tiles of these numbers, each for all blocks of its cluster."""
    schedule, variant = proof.schedule, proof.code.variant
    rows = schedule.block_M * cluster
    there = number < row_tiles * sizes.heads * sizes.batch
    tile, head = placed(np.where(there, number, 0), np.maximum(row_tiles, 1), sizes, schedule, variant)
    sizes = Problems(*(np.repeat(size, cluster) for size in sizes))
    first, head, there = (np.repeat(part, cluster) for part in (tile * rows, head, there))
    rank = np.arange(len(first)) % cluster
    return Samples(
        sizes, first, first + rank * schedule.block_M, head % sizes.heads, head // sizes.heads, rank, there, rows,
        schedule.block_M, schedule.block_N, variant.group, variant.mask, proof.program.least_blocks,
        proof.sample_tensors(sizes),
    )  # fmt: skip


def placed(
    number: np.ndarray, row_tiles: np.ndarray, sizes: Problems, schedule: Schedule, variant: Variant
) -> tuple[np.ndarray, np.ndarray]:
    """(row tile, head of all batches) of the tiles with these numbers: `tiles.py`, said a second time for the proof."""
    # Late: it imports tilelang.
    from tl_attention.lowering.warp_specialized.tiles import SECTION_BYTES, taper

    heads, order = sizes.heads * sizes.batch, schedule.kernel.tile_order
    row, head = number % row_tiles, number // row_tiles
    if order == "tapered":
        together = taper(variant.tile_dim, variant.tile_dim_v) * workers(schedule, variant)
        width = np.minimum(heads, ceildiv(together, row_tiles))
        within = number - (heads - width) * row_tiles
        row = np.where(within < 0, row, within // width)
        head = np.where(within < 0, head, heads - width + within % width)
    if order == "sections":
        columns, group = variant.tile_dim + variant.tile_dim_v, variant.group
        section = group * np.maximum(1, np.minimum(heads // group, SECTION_BYTES // (sizes.seq_kv * columns * 2)))
        first, within = number // (section * row_tiles) * section, number % (section * row_tiles)
        width = np.minimum(section, heads - first)
        row, head = within // width, first + within % width
    return (row_tiles - 1 - row if variant.mask.grows else row), head
