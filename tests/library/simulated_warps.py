"""Two warps of a thread block copy by cp.async and run adversarially: the numbers, not the rules, say what is safe.

Each warp copies its half of a tile. A copy may land at once, or as late as a wait of its warp makes it; a warp may run
ahead of the other as far as a barrier lets it. Where a read finds another block in its tile, the Program is wrong.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator

from tl_attention.kernels.mma_sync.dialect import Q_LOAD
from tl_attention.program.program import Program, Step

WARPS = 2
# A Turn chooses one of the warps that can go on; Lands says whether a copy lands that need not land yet.
Turn = Callable[[list[int]], int]
Lands = Callable[[], bool]


class Wrong(Exception):
    """Raised where a read finds what it should not."""


class Warps:
    """Warps are the warps of one run, and have the tiles in shared memory."""

    def __init__(self, program: Program, blocks: int, turn: Turn, lands: Lands):
        self.program, self.turn, self.lands = program, turn, lands
        self.left = [deque(program.phases.steps(blocks)) for _ in range(WARPS)]
        # What each half of a tile holds: (load, number of the buffer, warp that copies it) -> block.
        self.memory: dict[tuple[str, int, int], int] = {}
        # The groups of each warp that have not landed, oldest first.
        self.groups: list[list[list[tuple[tuple[str, int, int], int]]]] = [[] for _ in range(WARPS)]
        self.kept = [False] * WARPS
        for warp in range(WARPS):
            self.copy(warp, Q_LOAD, 0)

    def run(self) -> None:
        while any(self.left):
            ready = [warp for warp in range(WARPS) if self.left[warp] and self.left[warp][0].op.kind != "sync"]
            if not ready:
                for steps in self.left:
                    steps.popleft()
                continue
            warp = self.turn(ready)
            self.step(warp, self.left[warp].popleft())

    def step(self, warp: int, step: Step) -> None:
        op, block = step
        if op.kind == "issue":
            self.copy(warp, op.statement, block)
        elif op.kind == "wait":
            self.land(warp, len(self.groups[warp]) - op.outstanding)
        elif op.kind == "keep":
            self.read(Q_LOAD, 0)
            self.kept[warp] = True
        elif op.kind == "run":
            self.run_statement(warp, op.statement, block)

    def run_statement(self, warp: int, statement: str, block: int) -> None:
        table = self.program.table
        for load in table.loads_of(statement):
            self.read(load, block)
        reads = table.by_name[statement].reads
        if "Q_shared" in reads:
            self.read(Q_LOAD, 0)
        if "Q_local" in table.inputs and "Q_local" in reads and not self.kept[warp]:
            raise Wrong(f"{statement}({block}): nothing is in Q's registers")

    def copy(self, warp: int, load: str, block: int) -> None:
        place = load, block % self.program.buffers.get(load, 1), warp
        group = [(place, block)]
        self.groups[warp].append(group)
        if self.lands():
            self.write(group)

    def land(self, warp: int, count: int) -> None:
        """Lands the first `count` groups of the warp."""
        for group in self.groups[warp][: max(0, count)]:
            self.write(group)

    def write(self, group: list[tuple[tuple[str, int, int], int]]) -> None:
        for place, block in group:
            self.memory[place] = block
        group.clear()

    def read(self, load: str, block: int) -> None:
        number = block % self.program.buffers.get(load, 1)
        found = [self.memory.get((load, number, warp)) for warp in range(WARPS)]
        if found != [block] * WARPS:
            raise Wrong(f"{load}({block}): its halves hold {found}")


def runs(program: Program, blocks: int, random_runs: int) -> Iterator[Warps]:
    """Yields runs with either warp ahead, with copies early and late, and some random runs."""
    for ahead in (min, max):
        for early in (True, False):
            yield Warps(program, blocks, ahead, lambda early=early: early)
    for seed in range(random_runs):
        rng = random.Random(seed)
        yield Warps(program, blocks, rng.choice, lambda rng=rng: rng.random() < 0.5)


def wrong(program: Program, random_runs: int = 4) -> str | None:
    """Says what goes wrong in some run of the whole Program, over few blocks and many; None where nothing does."""
    for blocks in range(program.least_blocks, program.least_blocks + 2 * program.span + 3):
        for run in runs(program, blocks, random_runs):
            try:
                run.run()
            except Wrong as found:
                return f"{blocks} blocks: {found}"
    return None
