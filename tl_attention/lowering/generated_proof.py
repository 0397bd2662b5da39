"""Proves the generated kernel against the Program: same order, enough waits, barriers and buffers.

`T.Pipelined` derives the waits for the loads itself, and TileLang 0.1.15 gets some orders wrong without a word (a
load that was committed last is not waited for). So what it generated is checked, not what it was asked for. The
warp-specialised kernel is held to the events of its roles, which `races.py` has proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

from tl_attention.errors import ScheduleRefused
from tl_attention.hardware.device import HOPPER
from tl_attention.hardware.warpgroup import MEETING, ROWS, WARP
from tl_attention.loop.statements import LOADS, PRODUCTS, READER
from tl_attention.problem.shape import DTYPE_BYTES, AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.program.program import CONSUMER, Program
from tl_attention.proof.generated.calls import Thread
from tl_attention.proof.generated.expression import UNREADABLE
from tl_attention.proof.generated.reader import allocated_buffers, unrolled
from tl_attention.proof.roles import CLUSTER, LOAD_OF, NAMED, Event, Process, Roles
from tl_attention.schedule.schedule import Schedule

# What the checks of the pipelined kernel read.
SYNCHRONOUS = {"load", "commit", "wait", "sync", "products wait", *PRODUCTS}
# Tiles of a block that are unrolled: with them its barriers and variables have been through every change of tile.
TILES = 4
# (seq_q, seq_kv) that fit no tile, so that blocks at the diagonal and at the end of the keys are masked: a loop of
# their own in the generated code, which multiples of the tile never enter.
RAGGED = ((700, 2500), (640, 740), (129, 192), (1, 300), (5, 7), (1000, 1777), (1, 1), (63, 63))


def check_generated(
    schedule: Schedule,
    program: Program,
    source: str,
    shared_bytes: int,
    head_dim: int,
    causal: bool,
    sizes: tuple[int, int, int, int] | None = None,
) -> None:
    """Raise ScheduleRefused where the generated code is not what the Program says, or races.

    Unrolls the code of a few row tiles for every short loop, a long one and ragged ones, or for the fixed `sizes`.
    Which head and batch it loads, and what it computes and stores, are not read: that is for the numbers to show.
    """
    found = allocated_buffers(source, shared_bytes, schedule.block_N * head_dim * DTYPE_BYTES)
    for load, expected in program.buffers.items():
        _require(found[load] == expected, f"it has {found[load]} buffers for {load}, the Program has {expected}")
    if schedule.lowering == "warp_specialized":
        _check_roles(schedule, program, source, head_dim, causal, sizes)
        return
    with _readable():
        events = unrolled(source)
    least_blocks = program.least_blocks
    for seq_q, seq_kv in [sizes[2:]] if sizes else _lengths(schedule, program):
        shape = AttentionShape(1, 1, seq_q, seq_kv, head_dim, causal=causal)
        for tile in sorted({0, row_tiles(shape, schedule.block_M) - 1}):
            with _readable():
                found = events({"seq_q": seq_q, "seq_kv": seq_kv}, Thread(block=tile))
            run = [event for event in found if event.kind in SYNCHRONOUS]
            _same_order(program, run, kv_blocks(shape, schedule.block_M, schedule.block_N, tile, least_blocks))
            _no_race(program, run)


def _lengths(schedule: Schedule, program: Program) -> list[tuple[int, int]]:
    """(seq_q, seq_kv) of loops from one block to beyond the Program's span, and of ragged ones, causal or not."""
    counts = [*range(1, program.span + 2), 2 * program.span + 2]
    return [*((min(schedule.block_M, n * schedule.block_N), n * schedule.block_N) for n in counts), *RAGGED]


@contextmanager
def _readable() -> Iterator[None]:
    """Refuses code that cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        raise _refusal(f"its structure cannot be read: {error}") from None


def _refusal(what: str) -> ScheduleRefused:
    return ScheduleRefused(f"the kernel that TileLang 0.1.15 generates is not safe: {what}")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _refusal(what)


def _same_order(program: Program, run: Sequence[Event], blocks: int) -> None:
    """Loads and products follow each other as in the Program."""
    expected = [(step.op.statement, step.block) for step in program.roles(blocks)[CONSUMER] if step.op.kind == "issue"]
    _require(
        list(_numbered(run)) == expected, f"over {blocks} blocks its loads and products are not in the Program's order"
    )


def _numbered(run: Sequence[Event]) -> Iterator[tuple[str, int]]:
    """(statement, block) of each load and product: the n-th of its kind works on block n."""
    count = dict.fromkeys((*LOADS, *PRODUCTS), 0)
    for event in run:
        name = event.name if event.kind == "load" else event.kind
        if name in count:
            yield name, count[name]
            count[name] += 1


def _no_race(program: Program, run: Sequence[Event]) -> None:
    """Every load has arrived, for all threads, before it is read, and is read, by all, before it is overwritten."""
    numbered = _numbered(run)
    groups: list[set[tuple[str, int]]] = [set()]
    arrived: set[tuple[str, int]] = set()
    visible: set[tuple[str, int]] = set()
    read: set[tuple[str, int]] = set()
    free: set[tuple[str, int]] = set()
    in_flight: set[tuple[str, int]] = set()
    for event in run:
        # The synchronous model: each product is waited for where it is issued.
        done = event.kind == "products wait" and event.value == 0
        _require(not in_flight or done, f"a product that reads {sorted(in_flight)} is not waited for at once")
        read |= in_flight
        in_flight = set()
        if event.kind == "load":
            name, block = next(numbered)
            before = (name, block - program.buffers[name])
            _require(
                before[1] < 0 or before in free,
                f"{name}({block}) overwrites what {READER[name]}({before[1]}) reads, with no barrier between",
            )
            groups[-1].add((name, block))
        elif event.kind == "commit":
            groups.append(set())
        elif event.kind == "wait":
            arrived.update(*groups[: max(0, len(groups) - 1 - event.value)])
        elif event.kind == "sync":
            visible |= arrived
            free |= read
        elif event.kind in PRODUCTS:
            product, block = next(numbered)
            load = LOAD_OF[product]
            _require((load, block) in visible, f"{product}({block}) does not wait for {load}({block})")
            in_flight = {(load, block)}


# --- the warp-specialised kernel -------------------------------------------------------------------------------


def _check_roles(
    schedule: Schedule,
    program: Program,
    source: str,
    head_dim: int,
    causal: bool,
    sizes: tuple[int, int, int, int] | None,
) -> None:
    """The threads of each role run its events, in their order, on mbarriers that count as they should.

    `races.py` proves these events, and no others: what else could make threads wait for each other is refused.
    """
    roles = Roles.of(schedule, program)
    counts = {
        Event("init", name, slot, count)
        for name, count in roles.counts.items()
        for slot in range(roles.slots(name.partition("_")[0]))
    }
    elements = {"Q": ROWS * head_dim, "K": schedule.block_N * head_dim, "V": schedule.block_N * head_dim}
    least_blocks = program.least_blocks
    with _readable():
        events = unrolled(source)
    for names in [_named(sizes)] if sizes else _sizes(schedule, program):

        def run(process: Process, lane: int = 0) -> list[Event]:
            group = process.warpgroup if process.warpgroup >= 0 else roles.warpgroups
            thread = Thread(
                lane, group, process.block, process.block, elements, TILES, next_tile=lambda tile: tile + HOPPER.sms
            )
            with _readable():
                found = events(names, thread)
            return _after_start(found, counts)

        tiles = _tiles(run(roles.processes[0]), schedule.block_N)
        shape = AttentionShape(**names, head_dim=head_dim, causal=causal)
        users: dict[tuple[int, int], Process] = {}
        for process in roles.processes:
            expected = tuple(roles.events(process, tiles))
            for lane in (0, process.warps * WARP - 1):
                found = run(process, lane)
                alone = [event for event in found if _alone(event, process) and event not in expected]
                for barrier in {event.index for event in alone if event.kind == "sync"}:
                    user = users.setdefault((process.block, barrier), process)
                    _require(user == process, f"{user} and {process} both use named barrier {barrier}")
                _same([event for event in found if event not in alone], expected, str(process))
            if process.warpgroup < 0:
                _check_lengths(schedule, least_blocks, shape, found, tiles, process.block)
        idle = [Event("sync", CLUSTER)] * 2 if roles.cluster > 1 else []
        _same(run(roles.processes[0], lane=WARP), idle, "an idle warp")


def _sizes(schedule: Schedule, program: Program) -> Iterator[dict[str, int]]:
    """One row tile for each head, then several: heads enough for every block to get TILES."""
    for seq_q, seq_kv in _lengths(schedule, program):
        yield _named((1, TILES * HOPPER.sms, seq_q, seq_kv))
    rows = (TILES + 1) * schedule.block_M * schedule.kernel.cluster
    yield _named((1, TILES * HOPPER.sms, rows, max(rows, schedule.block_N * (program.span + 2))))


def _named(sizes: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip(("batch", "heads", "seq_q", "seq_kv"), sizes))


def _after_start(run: list[Event], counts: set[Event]) -> list[Event]:
    """The events after the mbarriers are initialised for the whole block, which is the first thing to happen."""
    inits = [event for event in run if event.kind == "init"]
    _require(
        set(inits) == counts and len(inits) == len(counts),
        f"its mbarriers are initialised as {_words(inits)}, expected {_words(sorted(counts, key=str))}",
    )
    start = [*inits, Event("init fence"), Event("sync")]
    _require(run[: len(start)] == start, "its mbarriers are not initialised before anything else")
    return run[len(start) :]


def _tiles(producer: Sequence[Event], block_N: int) -> list[int]:
    """KV blocks of each tile, off the rows of K and V that the producer loads: from the last block to the first."""
    rows = {ring: [e.step for e in producer if (e.kind, e.name) == ("load", ring)] for ring in ("K", "V")}
    ends = [number for number, row in enumerate(rows["K"], 1) if row == 0]
    tiles = [end - start for start, end in zip([0, *ends], ends)]
    down = [block_N * block for blocks in tiles for block in reversed(range(blocks))]
    for ring, found in rows.items():
        _require(bool(down) and found == down, f"its producer loads rows {found[:20]} of {ring}, not block after block")
    return tiles


def _check_lengths(
    schedule: Schedule,
    least_blocks: int,
    shape: AttentionShape,
    producer: Sequence[Event],
    tiles: Sequence[int],
    rank: int,
) -> None:
    """Each tile has its own rows of Q, and the KV blocks up to the last that a row of its cluster sees."""
    rows = [event.step for event in producer if (event.kind, event.name) == ("load", "Q")]
    warpgroups, cluster = schedule.block_M // ROWS, schedule.kernel.cluster
    for number, blocks in enumerate(tiles):
        own = rows[warpgroups * number : warpgroups * (number + 1)]
        tile = own[0] // schedule.block_M
        expected_rows = [tile * schedule.block_M + ROWS * warpgroup for warpgroup in range(warpgroups)]
        _require(own == expected_rows and tile % cluster == rank, f"block {rank} loads rows {own} of Q")
        expected = kv_blocks(shape, schedule.block_M * cluster, schedule.block_N, tile // cluster, least_blocks)
        _require(blocks == expected, f"it takes {blocks} KV blocks for rows {own} of Q, expected {expected}")


def _alone(event: Event, process: Process) -> bool:
    """Whether it concerns the process alone: a fence, or a named barrier for as many threads as it has."""
    own = event.name == NAMED and event.index >= MEETING and event.value == process.warps * WARP
    return event.kind == "fence" or (event.kind == "sync" and own)


def _same(found: Sequence[Event], expected: Sequence[Event], who: str) -> None:
    for number, (got, want) in enumerate(zip_longest(found, expected)):
        if got != want or _operands(got) != _operands(want):
            raise _refusal(f"operation {number} of {who} is {got or 'missing'}, expected {want or 'none'}")


def _operands(event: Event | None) -> set[tuple[str, int]]:
    """The shared buffers that a product reads."""
    return {read[:2] for read in event.reads} if event and event.kind in PRODUCTS else set()


def _words(events: Sequence[Event]) -> str:
    return ", ".join(f"{event.name}[{event.index}] {event.value}" for event in events)
