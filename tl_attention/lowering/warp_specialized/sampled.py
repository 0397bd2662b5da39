"""Proves that all tiles of a generated warp-specialised kernel are treated alike: tiles of many problems, run at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tl_attention.hardware.warpgroup import ROWS, WARPS
from tl_attention.lowering.warp_specialized.grid_proof import workers
from tl_attention.lowering.warp_specialized.roles import Roles
from tl_attention.problem.arithmetic import ceildiv
from tl_attention.problem.lengths import Problems
from tl_attention.problem.variant import Variant
from tl_attention.proof.generated.alike import Comparison, kv_loops
from tl_attention.proof.generated.proof import Proof
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.samples import Samples, numbered, of_threads
from tl_attention.proof.generated.seen import Lengths
from tl_attention.proof.generated.threads import Threads
from tl_attention.schedule.schedule import Schedule

# What the counter of tiles begins with in each run.
COUNTED = (0, 100_000)
# More than any problem's tiles.
NONE = 1 << 40


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
    """The numbers of the tiles that blocks work on in turn, which begin with `number`, if they have any. NONE is no tile's."""
    yield number
    # A block without a tile draws no other one.
    following = {"static": number, "dynamic": counted + np.cumsum(there) - 1, "one_tile": np.full_like(number, NONE)}
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
