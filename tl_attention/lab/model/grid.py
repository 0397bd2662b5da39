"""This module goes from a tile's cycles to a kernel's: which blocks take which tiles, and when the last one ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tl_attention.kernels.warp_specialized.tile_order import placed
from tl_attention.lab.measure.candidate import Candidate, tiling_of
from tl_attention.problem.tiling import row_tiles, visited_blocks, whole_blocks


@dataclass(frozen=True)
class Grid:
    """A Grid has the row tiles of a problem in the order in which a kernel's workers take them.

    A worker is a thread block, or a cluster of them, and its tile the rows of all of them.
    """

    blocks: np.ndarray  # the number of KV blocks of each row tile of a head
    masked: np.ndarray  # how many of these need a mask
    order: np.ndarray  # the row tile of each tile number
    workers: int  # that run at once
    strided: bool  # worker w takes the tiles w, w + workers and so on; otherwise the next one when it is free
    cluster: int

    @classmethod
    def of(cls, candidate: Candidate, per_sm: int) -> Grid:
        """Returns the grid of a candidate's kernel, of which an SM holds `per_sm` thread blocks."""
        planned, shape = candidate.ours, candidate.shape
        schedule, tiling = planned.schedule, tiling_of(planned)
        rows = candidate.variant.rows_of(tiling.block_M) * tiling.cluster
        heads = shape.batch * candidate.variant.heads_of_tiles(shape.heads)
        first_row = np.arange(tiles := row_tiles(shape, rows)) * rows
        at = [(int(row), rows, tiling.block_N) for row in first_row]
        seen = [visited_blocks(shape, shape.mask, *place, tiling.least_blocks) for place in at]
        whole = [whole_blocks(shape, shape.mask, *place) for place in at]
        blocks = np.array([end - first for first, end in seen])
        masked = np.array(
            [end - first - max(0, min(end, b) - max(first, a)) for (first, end), (a, b) in zip(seen, whole)]
        )
        number = np.arange(tiles * heads)
        if schedule.lowering == "warp_specialized":
            together = schedule.workers(candidate.sms)
            order, _ = placed(number, shape, np.array(heads), rows, schedule, candidate.variant, together)
        else:
            order = number % tiles
            if shape.mask.grows and schedule.lowering == "mma_sync":
                order = tiles - 1 - order
        strided = schedule.lowering == "warp_specialized" and schedule.kernel.tile_scheduler == "static"
        workers = max(1, candidate.sms * per_sm // tiling.cluster)
        return cls(blocks, masked, order, workers, strided, tiling.cluster)

    def usual_tile(self, most: int) -> tuple[int, int]:
        """Returns the KV blocks of a usual tile, at most so many, and how many of them need a mask."""
        return min(round(float(self.blocks.mean())), most), round(float(np.median(self.masked)))

    def blocks_of_sm(self, sms: int) -> float:
        """Returns how many KV blocks each of so many SMs works on, in the mean."""
        return float(self.blocks[self.order].sum()) * self.cluster / sms

    def mean_cycles(self, tile: Callable[[int], float]) -> float:
        """Returns how long a worker works, in the mean, if a tile of n KV blocks takes `tile(n)` cycles."""
        return float(self._durations(tile).sum()) / self.workers

    def cycles(self, tile: Callable[[int], float], spread: float) -> float:
        """Returns when the last worker ends, if a tile of n KV blocks takes `tile(n)` cycles.

        Workers differ in speed: the slowest takes 1 + `spread` times the mean, the fastest 1 - `spread` times.
        """
        durations = self._durations(tile)
        workers = min(self.workers, len(durations))
        if self.strided:
            return max(float(durations[worker::workers].sum()) for worker in range(workers))
        slowness = 1 + spread * np.linspace(-1, 1, workers)
        free = [(float(durations[worker] * slowness[worker]), worker) for worker in range(workers)]
        heapq.heapify(free)
        for duration in durations[workers:]:
            ends, worker = free[0]
            heapq.heapreplace(free, (ends + float(duration * slowness[worker]), worker))
        return max(free)[0]

    def _durations(self, tile: Callable[[int], float]) -> np.ndarray:
        """Returns the cycles of each tile number."""
        return np.array([tile(int(n)) for n in self.blocks])[self.order]
