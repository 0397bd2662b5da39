"""Proves the generated kernel against the Program: same order, enough waits, barriers and buffers.

`T.Pipelined` derives the waits for the loads itself, and TileLang 0.1.15 gets some orders wrong without a word (a
load that was committed last is not waited for). So what it generated is checked, not what it was asked for.
"""

from __future__ import annotations

from typing import Callable, Iterator, Sequence

from tl_attention.errors import ScheduleRefused
from tl_attention.kernel.generated import Event, barrier_counts, ring_buffers, unrolled
from tl_attention.problem import DTYPE_BYTES
from tl_attention.program import CONSUMER, PRODUCER, Program
from tl_attention.schedule import Schedule
from tl_attention.statements import LOADS, PRODUCTS, READER

LOAD_OF = {reader: load for load, reader in READER.items()}


def check_generated(
    schedule: Schedule, program: Program, source: str, shared_bytes: int, head_dim: int,
    sizes: tuple[int, int, int, int] | None = None,
) -> None:
    """Raise ScheduleRefused where the generated code is not what the Program says, or races.

    Unrolls the code of the first row tile for every short loop and one long one, or for the fixed `sizes`.
    """
    if schedule.lowering == "warp_specialized":
        _check_roles(schedule, program, source, sizes)
        return
    found = ring_buffers(source, shared_bytes, schedule.block_N * head_dim * DTYPE_BYTES)
    for load, expected in program.buffers.items():
        _require(
            found[load] == expected, f"it has {found[load]} buffers for {load}, the Program has {expected}"
        )
    events = unrolled(source)
    for seq_q, seq_kv in [sizes[2:]] if sizes else _lengths(schedule, program):
        run = _read(events, seq_q, seq_kv)
        blocks = sum(event.kind == "mma0" for event in run)
        _same_order(program, run, blocks)
        _no_race(program, run)


def _lengths(schedule: Schedule, program: Program) -> list[tuple[int, int]]:
    """(seq_q, seq_kv) of loops from one block to beyond the Program's span, causal or not."""
    counts = [*range(1, program.span + 2), 2 * program.span + 2]
    return [(min(schedule.block_M, n * schedule.block_N), n * schedule.block_N) for n in counts]


def _read(events: Callable[..., list[Event]], seq_q: int, seq_kv: int, thread: int = 0) -> list[Event]:
    try:
        return events({"seq_q": seq_q, "seq_kv": seq_kv}, thread)
    except (NameError, SyntaxError) as error:
        raise _refusal(f"its structure cannot be read: {error}") from None


def _refusal(what: str) -> ScheduleRefused:
    return ScheduleRefused(f"the kernel that TileLang 0.1.15 generates is not safe: {what}")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _refusal(what)


def _same_order(program: Program, run: Sequence[Event], blocks: int) -> None:
    """Loads and products follow each other as in the Program."""
    expected = [
        (step.op.statement, step.block) for step in program.roles(blocks)[CONSUMER] if step.op.kind == "issue"
    ]
    _require(
        list(_numbered(run)) == expected, f"over {blocks} blocks its loads and products are not in the Program's order"
    )


def _numbered(run: Sequence[Event]) -> Iterator[tuple[str, int]]:
    """(statement, block) of each load and product: the n-th of its kind works on block n."""
    count = dict.fromkeys((*LOADS, *PRODUCTS), 0)
    for event in run:
        name = event.ring if event.kind == "load" else event.kind
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
        done = event.kind == "products wait" and event.outstanding == 0
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
            arrived.update(*groups[:max(0, len(groups) - 1 - event.outstanding)])
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
    schedule: Schedule, program: Program, source: str, sizes: tuple[int, int, int, int] | None
) -> None:
    """Both roles run the Program's operations, in its order, on the barriers, slots and parities that it means."""
    warps = str(schedule.threads // 32)
    expected_counts = {"K_full": {"32"}, "V_full": {"32"}, "K_free": {warps}, "V_free": {warps}}
    found_counts = {name: counts for name, counts in barrier_counts(source).items() if name != "Q_full"}
    _require(found_counts == expected_counts, f"its mbarriers count {found_counts}, expected {expected_counts}")
    events = unrolled(source)
    for seq_q, seq_kv in [sizes[2:]] if sizes else _lengths(schedule, program):
        for role, thread in ((CONSUMER, 0), (PRODUCER, schedule.threads)):
            run = [event for event in _read(events, seq_q, seq_kv, thread) if event.ring != "Q"]
            if role == CONSUMER:
                blocks = sum(event.kind == "mma0" for event in run)
            expected = list(_barrier_view(program, role, blocks))
            # __syncthreads follows the barriers' initialisation, before the roles part.
            found = [event for event in run if event.kind != "sync"]
            for number, (want, got) in enumerate(zip(expected, found)):
                _require(want == got, f"operation {number} of the {role} is {got}, the Program has {want}")
            _require(len(expected) == len(found), f"the {role} runs {len(found)} operations, not {len(expected)}")


def _barrier_view(program: Program, role: str, blocks: int) -> Iterator[Event]:
    """The Program's operations as events of the generated code."""
    for step in program.roles(blocks)[role]:
        name, kind = step.op.statement, step.op.kind
        if kind == "run":
            continue
        if name in PRODUCTS:
            yield Event(name) if kind == "issue" else Event("products wait", outstanding=step.outstanding)
            continue
        slot, lap = step.block % program.buffers[name], step.block // program.buffers[name] % 2
        if kind == "wait":
            yield Event("wait full", name, slot=slot, parity=lap)
        elif kind == "acquire":
            yield Event("wait free", name, slot=slot, parity=lap ^ 1)
        elif kind == "release":
            yield Event("arrive free", name, slot=slot)
        else:
            yield Event("tma load", name)
            yield Event("arrive full", name, slot=slot)
