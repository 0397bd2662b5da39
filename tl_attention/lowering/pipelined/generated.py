"""Proves the generated pipelined kernel against the Program: same order, enough waits, barriers and buffers.

`T.Pipelined` derives the waits for the loads itself, and TileLang 0.1.15 gets some orders wrong without a word (a
load that was committed last is not waited for). So what it generated is checked, not what it was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.program.program import CONSUMER, Program
from tl_attention.proof.events import Event, ring_names
from tl_attention.proof.generated.calls import Thread
from tl_attention.proof.generated.reader import unrolled
from tl_attention.proof.generated.verdict import (
    GeneratedCode,
    Verdict,
    check_buffers,
    check_parameters,
    readable,
    require,
    sizes_to_prove,
)
from tl_attention.schedule.schedule import Schedule

# What is read of the code.
KINDS = {"load", "commit", "wait", "sync", "products wait", "product"}


def check(schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """Raises ScheduleRefused where the generated code is not what the Program says, or races."""
    check_parameters(code)
    check_buffers(schedule, program, code)
    with readable():
        events = unrolled(code.source)
    least_blocks = program.least_blocks
    for sizes in sizes_to_prove(schedule, program, code.variant):
        shape = AttentionShape.of(code.variant, sizes)
        for tile in sorted({0, row_tiles(shape, schedule.block_M) - 1}):
            with readable():
                found = events(sizes._asdict(), Thread(block=tile))
            run = [event for event in found if event.kind in KINDS]
            _same_order(program, run, len(kv_blocks(shape, schedule.block_M, schedule.block_N, tile, least_blocks)))
            _no_race(program, run)
    return Verdict(kinds=(), unreached=(), digest="")


def _same_order(program: Program, run: Sequence[Event], blocks: int) -> None:
    """Loads and products follow each other as in the Program."""
    expected = [(step.op.statement, step.block) for step in program.roles(blocks)[CONSUMER] if step.op.kind == "issue"]
    require(
        list(_numbered(program, run)) == expected,
        f"over {blocks} blocks its loads and products are not in the Program's order",
    )


def _numbered(program: Program, run: Sequence[Event]) -> Iterator[tuple[str, int]]:
    """(statement, block) of each load and product: the n-th of its kind works on block n.

    A product is known by the ring that it reads.
    """
    loads = {ring: load for load, ring in ring_names(program.table).items()}
    count: Counter[str] = Counter()
    for event in run:
        if event.kind in ("load", "product"):
            require(event.name in loads, f"a {event.kind} of {event.name}, which no load of the Program fills")
            load = loads[event.name]
            name = load if event.kind == "load" else program.table.readers[load][0]
            yield name, count[name]
            count[name] += 1


def _no_race(program: Program, run: Sequence[Event]) -> None:
    """Every load has arrived, for all threads, before it is read, and is read, by all, before it is overwritten."""
    numbered = _numbered(program, run)
    groups: list[set[tuple[str, int]]] = [set()]
    arrived: set[tuple[str, int]] = set()
    visible: set[tuple[str, int]] = set()
    read: set[tuple[str, int]] = set()
    free: set[tuple[str, int]] = set()
    in_flight: set[tuple[str, int]] = set()
    for event in run:
        # The synchronous model: each product is waited for where it is issued.
        done = event.kind == "products wait" and event.value == 0
        require(not in_flight or done, f"a product that reads {sorted(in_flight)} is not waited for at once")
        read |= in_flight
        in_flight = set()
        if event.kind == "load":
            name, block = next(numbered)
            before = (name, block - program.buffers[name])
            require(
                before[1] < 0 or before in free,
                f"{name}({block}) overwrites what {program.table.readers[name][0]}({before[1]}) reads, with no barrier between",
            )
            groups[-1].add((name, block))
        elif event.kind == "commit":
            groups.append(set())
        elif event.kind == "wait":
            arrived.update(*groups[: max(0, len(groups) - 1 - event.value)])
        elif event.kind == "sync":
            visible |= arrived
            free |= read
        elif event.kind == "product":
            product, block = next(numbered)
            in_flight = {(load, block) for load in program.table.loads_of(product)}
            for load, _ in in_flight:
                require((load, block) in visible, f"{product}({block}) does not wait for {load}({block})")
