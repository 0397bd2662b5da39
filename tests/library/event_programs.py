"""Event programs of warp-specialised kernels are small enough here to run in many orders, and get random faults."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from overlap import FORMS, overlap

from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.problem.warpgroup import WARPS
from tl_attention.program.derivation import derive
from tl_attention.program.events import CLUSTER, NAMED, Event, Process

ALONE, DYNAMIC = {"cluster": 1}, {"cluster": 1, "tile_scheduler": "dynamic"}
OPTIONS: dict[str, dict[str, Any]] = {
    "cluster": {},
    "alone": ALONE,
    "dynamic": DYNAMIC,
    "ping-pong": {**ALONE, "ping_pong": True},
    "cluster ping-pong": {"ping_pong": True},
    "dynamic ping-pong": {**DYNAMIC, "ping_pong": True},
    "one buffer each": {"k_stages": 1, "v_stages": 1},
    "one buffer each alone": {**ALONE, "k_stages": 1, "v_stages": 1},
    "three and four": {"k_stages": 3, "v_stages": 4},
    "Q in registers": {**ALONE, "q_operand": "registers"},
    "P in shared memory": {**ALONE, "p_operand": "shared"},
    "ping-pong, P in shared memory": {**ALONE, "ping_pong": True, "p_operand": "shared"},
    "output through Q": {**ALONE, "output": "tma"},
    "cluster both": {"q_operand": "registers", "output": "tma"},
    "both": {**ALONE, "q_operand": "registers", "output": "tma"},
}
# Blocks beyond the fewest that a tile has, tile by tile.
TILES = ((0,), (1,), (0, 0), (1, 0), (0, 1, 0))


@dataclass(frozen=True)
class EventProgram:
    """An event program has the events of each process of a cluster, and what its mbarriers count."""

    name: str
    roles: dict[Process, tuple[Event, ...]]
    counts: dict[str, int]

    @property
    def size(self) -> int:
        """Returns how many events all warps run."""
        return sum(process.warps * len(run) for process, run in self.roles.items())


def event_programs() -> Iterator[EventProgram]:
    """Yields programs of every form and option, with one or two warps a warpgroup; the shortest also with all four."""
    for form in FORMS:
        for option, keys in OPTIONS.items():
            schedule = overlap(form, **keys)
            # Two take turns, and no more than two store by TMA.
            if (keys.get("ping_pong") and schedule.block_M != 128) or (keys.get("output") and schedule.block_M > 128):
                continue
            roles = Roles.of(schedule, derive(schedule))
            for more in TILES:
                tiles = [max(1, roles.program.least_blocks) + blocks for blocks in more]
                for warps in (1, 2, WARPS) if more == TILES[0] else (1, 2):
                    yield _program(f"{form}, {option}, tiles {tiles}, {warps} warps", roles, tiles, warps)


def _program(name: str, roles: Roles, tiles: list[int], warps: int) -> EventProgram:
    """Makes a program with so many warps in a warpgroup: what counts warps counts fewer."""

    def scaled(event: Event) -> Event:
        return replace(event, value=event.value * warps // WARPS) if event.name == NAMED else event

    runs = {
        replace(process, warps=warps if process.warpgroup >= 0 else 1): tuple(map(scaled, roles.events(process, tiles)))
        for process in roles.processes
    }
    counts = {
        barrier: count * warps // WARPS if barrier.endswith("_empty") else count
        for barrier, count in roles.counts.items()
    }
    return EventProgram(name, runs, counts)


def mutant(program: EventProgram, rng: random.Random) -> EventProgram:
    """Returns the program with one to three faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        program = rng.choices(MUTATIONS, WEIGHTS)[0](program, rng)
    return program


def _with_run(program: EventProgram, what: str, process: Process, run: list[Event]) -> EventProgram:
    return replace(program, name=f"{program.name}; {what}", roles={**program.roles, process: tuple(run)})


def _place(program: EventProgram, rng: random.Random) -> tuple[Process, list[Event], int]:
    """Draws a process and a place in its run."""
    process = rng.choice([process for process, run in program.roles.items() if run])
    run = list(program.roles[process])
    return process, run, rng.randrange(len(run))


def _dropped(program: EventProgram, rng: random.Random) -> EventProgram:
    process, run, place = _place(program, rng)
    event = run.pop(place)
    return _with_run(program, f"{event} of {process} dropped at {place}", process, run)


def _doubled(program: EventProgram, rng: random.Random) -> EventProgram:
    process, run, place = _place(program, rng)
    run.insert(place, run[place])
    return _with_run(program, f"{run[place]} of {process} doubled at {place}", process, run)


def _swapped(program: EventProgram, rng: random.Random) -> EventProgram:
    process, run, place = _place(program, rng)
    if place:
        run[place - 1], run[place] = run[place], run[place - 1]
    return _with_run(program, f"{run[place]} of {process} swapped with what is behind, at {place}", process, run)


def _moved(program: EventProgram, rng: random.Random) -> EventProgram:
    process, run, place = _place(program, rng)
    event = run.pop(place)
    # Mostly not far.
    to = place + round(rng.gauss(0, 4)) if rng.random() < 0.8 else rng.randrange(len(run) + 1)
    run.insert(max(0, to), event)
    return _with_run(program, f"{event} of {process} moved from {place} to {to}", process, run)


def _given(program: EventProgram, rng: random.Random) -> EventProgram:
    """Gives an event to another process, which runs it instead."""
    process, run, place = _place(program, rng)
    event = run.pop(place)
    less = _with_run(program, f"{event} of {process} given away at {place}", process, run)
    other, longer, to = _place(less, rng)
    longer.insert(to, event)
    return _with_run(less, f"to {other} at {to}", other, longer)


def _counted(program: EventProgram, rng: random.Random) -> EventProgram:
    name = rng.choice(list(program.counts))
    count = max(1, program.counts[name] + rng.choice((-4, -2, -1, 1, 2, 4)))
    return replace(program, name=f"{program.name}; {name} counts {count}", counts={**program.counts, name: count})


def _changed(program: EventProgram, rng: random.Random) -> EventProgram:
    process, run, place = _place(program, rng)
    run[place] = rng.choice(_changes(program, run[place]) or [lambda event, rng: event])(run[place], rng)
    return _with_run(program, f"{run[place]} of {process} at {place}", process, run)


def _changes(program: EventProgram, event: Event) -> list[Callable[[Event, random.Random], Event]]:
    changes: list[Callable[[Event, random.Random], Event]] = []
    if event.kind == "wait":
        changes += [_other_parity]
    if event.kind in ("arrive", "expect", "products wait", "stored"):
        changes += [_other_value]
    if event.kind in ("sync", "signal") and event.name != CLUSTER:
        changes += [_other_threads]
    if event.index or (event.name and event.name != CLUSTER):
        changes += [_other_index]
    if event.blocks:
        changes += [_other_blocks]
    if event.kind in ("load", "take", "put") or event.reads:
        changes += [_other_step]
    return changes


def _other_parity(event: Event, rng: random.Random) -> Event:
    return replace(event, value=event.value ^ 1)


def _other_value(event: Event, rng: random.Random) -> Event:
    return replace(event, value=rng.choice([value for value in (0, 1, 2, 16, 31, 33, 64) if value != event.value]))


def _other_threads(event: Event, rng: random.Random) -> Event:
    return replace(event, value=rng.choice([event.value + 32, event.value * 2, max(32, event.value - 32)]))


def _other_index(event: Event, rng: random.Random) -> Event:
    """Changes the index of an event's barrier or buffer, also in what the event reads."""
    index = rng.choice([index for index in range(5) if index != event.index])
    reads = tuple((name, index if name == event.name else old, step) for name, old, step in event.reads)
    return replace(event, index=index, reads=reads)


def _other_blocks(event: Event, rng: random.Random) -> Event:
    return replace(event, blocks=rng.choice([blocks for blocks in ((), (0,), (1,), (0, 1)) if blocks != event.blocks]))


def _other_step(event: Event, rng: random.Random) -> Event:
    """Changes the number of a load: the load that an event makes, or one that it reads."""
    if not event.reads:
        return replace(event, step=max(0, event.step + rng.choice((-2, -1, 1, 2))))
    reads = list(event.reads)
    place = rng.randrange(len(reads))
    name, index, step = reads[place]
    reads[place] = (name, index, max(0, step + rng.choice((-2, -1, 1, 2))))
    return replace(event, reads=tuple(reads))


MUTATIONS = (_dropped, _doubled, _swapped, _moved, _given, _changed, _counted)
WEIGHTS = (20, 10, 25, 20, 4, 20, 1)
