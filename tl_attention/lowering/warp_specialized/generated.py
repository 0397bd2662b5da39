"""Proves the generated warp-specialised kernel: its threads run the events of their roles, and no others.

`races.py` has proved these events; what else could make threads wait for each other is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tl_attention.hardware.device import HOPPER
from tl_attention.hardware.warpgroup import MEETING, ROWS, WARP
from tl_attention.lowering.warp_specialized.roles import Roles
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks
from tl_attention.program.program import Program
from tl_attention.proof.events import CLUSTER, NAMED, Event, Process
from tl_attention.proof.generated.calls import Thread
from tl_attention.proof.generated.reader import unrolled
from tl_attention.proof.generated.verdict import (
    GeneratedCode,
    Verdict,
    check_buffers,
    check_parameters,
    readable,
    refusal,
    require,
    sizes_to_prove,
)
from tl_attention.schedule.schedule import Schedule

# Tiles of a block that are unrolled: with them its barriers and variables have been through every change of tile.
TILES = 4


def check(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """Raises ScheduleRefused unless every role's threads run its events, on mbarriers that count as they should."""
    check_parameters(code)
    check_buffers(schedule, program, code)
    roles = Roles.of(schedule, program)
    counts = {
        Event("init", name, slot, count)
        for name, count in roles.counts.items()
        for slot in range(roles.slots(name.partition("_")[0]))
    }
    head_dim, head_dim_v = code.variant.head_dim, code.variant.head_dim_v
    elements = {"Q": ROWS * head_dim, "K": schedule.block_N * head_dim, "V": schedule.block_N * head_dim_v}
    with readable():
        events = unrolled(code.source)
    # One row tile for each head, then several: heads enough for every block to get TILES.
    rows = (TILES + 1) * schedule.block_M * schedule.kernel.cluster
    longer = (rows, max(rows, schedule.block_N * (program.span + 2)))
    for sizes in sizes_to_prove(schedule, program, code.variant, TILES * HOPPER.sms, [longer]):

        def run(process: Process, lane: int = 0) -> list[Event]:
            group = process.warpgroup if process.warpgroup >= 0 else roles.warpgroups
            thread = Thread(
                lane, group, process.block, process.block, elements, TILES, next_tile=lambda tile: tile + HOPPER.sms
            )
            with readable():
                found = events(sizes._asdict(), thread)  # noqa: B023  (called in this turn of the loop)
            return _after_start(found, counts)

        tiles = _tiles(run(roles.processes[0]), schedule.block_N)
        shape = AttentionShape.of(code.variant, sizes)
        users: dict[tuple[int, int], Process] = {}
        for process in roles.processes:
            expected = tuple(roles.events(process, [len(blocks) for blocks in tiles]))
            for lane in (0, process.warps * WARP - 1):
                found = run(process, lane)
                alone = [event for event in found if _alone(event, process) and event not in expected]
                for barrier in {event.index for event in alone if event.kind == "sync"}:
                    user = users.setdefault((process.block, barrier), process)
                    require(user == process, f"{user} and {process} both use named barrier {barrier}")
                _same([event for event in found if event not in alone], expected, str(process))
            if process.warpgroup < 0:
                _check_blocks(schedule, program.least_blocks, shape, found, tiles, process.block)
        idle = [Event("sync", CLUSTER)] * 2 if roles.cluster > 1 else []
        _same(run(roles.processes[0], lane=WARP), idle, "an idle warp")
    return Verdict(kinds=(), unreached=(), digest="")


def _after_start(run: list[Event], counts: set[Event]) -> list[Event]:
    """The events after the mbarriers are initialised for the whole block, which is the first thing to happen."""
    inits = [event for event in run if event.kind == "init"]
    require(
        set(inits) == counts and len(inits) == len(counts),
        f"its mbarriers are initialised as {_words(inits)}, expected {_words(sorted(counts, key=str))}",
    )
    start = [*inits, Event("init fence"), Event("sync")]
    require(run[: len(start)] == start, "its mbarriers are not initialised before anything else")
    return run[len(start) :]


def _tiles(producer: Sequence[Event], block_N: int) -> list[range]:
    """KV blocks of each tile, off the rows of K and V that the producer loads: from the last block to the first."""
    rows: dict[str, list[int]] = {"K": [], "V": []}
    starts: list[int] = []
    for event in producer:
        if event.kind == "load" and event.name in rows:
            rows[event.name].append(event.step)
        elif event.kind == "load" and rows["K"] and len(rows["K"]) - 1 not in starts:
            # Q, which comes with the first block of its tile.
            starts.append(len(rows["K"]) - 1)
    tiles = [
        range(rows["K"][end - 1] // block_N, rows["K"][start] // block_N + 1)
        for start, end in zip(starts, [*starts[1:], len(rows["K"])])
    ]
    down = [block_N * block for blocks in tiles for block in reversed(blocks)]
    for ring, found in rows.items():
        require(bool(down) and found == down, f"its producer loads rows {found[:20]} of {ring}, not block after block")
    return tiles


def _check_blocks(
    schedule: Schedule,
    least_blocks: int,
    shape: AttentionShape,
    producer: Sequence[Event],
    tiles: Sequence[range],
    rank: int,
) -> None:
    """Each tile has its own rows of Q, and the KV blocks that rows of its cluster see."""
    rows = [event.step for event in producer if (event.kind, event.name) == ("load", "Q")]
    warpgroups, cluster = schedule.block_M // ROWS, schedule.kernel.cluster
    for number, blocks in enumerate(tiles):
        own = rows[warpgroups * number : warpgroups * (number + 1)]
        tile = own[0] // schedule.block_M
        expected_rows = [tile * schedule.block_M + ROWS * warpgroup for warpgroup in range(warpgroups)]
        require(own == expected_rows and tile % cluster == rank, f"block {rank} loads rows {own} of Q")
        expected = kv_blocks(shape, schedule.block_M * cluster, schedule.block_N, tile // cluster, least_blocks)
        require(
            blocks == expected, f"it takes KV blocks {_span(blocks)} for rows {own} of Q, expected {_span(expected)}"
        )


def _span(blocks: range) -> str:
    return f"{blocks.start} to {blocks.stop - 1}"


def _alone(event: Event, process: Process) -> bool:
    """Whether it concerns the process alone: a fence, or a named barrier for as many threads as it has."""
    own = event.name == NAMED and event.index >= MEETING and event.value == process.warps * WARP
    return event.kind == "fence" or (event.kind == "sync" and own)


def _same(found: Sequence[Event], expected: Sequence[Event], who: str) -> None:
    for number, (got, want) in enumerate(zip_longest(found, expected)):
        if got != want or _operands(got) != _operands(want):
            raise refusal(f"operation {number} of {who} is {got or 'missing'}, expected {want or 'none'}")


def _operands(event: Event | None) -> set[tuple[str, int]]:
    """The shared buffers that a product reads."""
    return {read[:2] for read in event.reads} if event and event.kind == "product" else set()


def _words(events: Sequence[Event]) -> str:
    return ", ".join(f"{event.name}[{event.index}] {event.value}" for event in events)
