"""A simulator judges the proof of the roles' events, under chosen and random faults of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from event_programs import EventProgram, event_programs
from mbarrier_simulator import Machine
from overlap import overlap
from race_trial import mutants, proved, trial
from simulated_orders import explore, tried
from test_roles import OPTIONS, ORDERS, TILES, Events, changed, events_of, moved, place, removed, roles_of
from tiers import sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.program.events import CLUSTER, NAMED, Event, Process
from tl_attention.program.mbarrier import Rule
from tl_attention.program.races import prove

PRODUCER, FIRST, PRODUCER_1 = Process(0, -1, 1), Process(0, 0, 2), Process(1, -1, 1)
LEFT_OUT = ("as shipped", "ping-pong", "dynamic ping-pong", "both", "one K buffer")
# Of all programs; and of those small enough for all orders, what `make test` tries.
SAMPLE, FEW, SEED = 120, 70, 10
Change = Callable[[Events], None]


def doubled(process: Process, kind: str, name: str = "", nth: int = 0) -> Change:
    def change(events: Events) -> None:
        index = place(events[process], kind, name, nth)
        events[process].insert(index, events[process][index])

    return change


def both(*changes: Change) -> Change:
    def change(events: Events) -> None:
        for each in changes:
            each(events)

    return change


# A program's name, the fault, the rule that it breaks.
FAULTS: dict[str, tuple[str, Change, Rule]] = {
    "bytes expected before the buffer is free": (
        "one warpgroup, one buffer each alone, tiles [2]",
        moved(PRODUCER, ("expect", "K", 1), ("wait", "K_empty", 1)),
        Rule.EARLY,
    ),
    "a tile's number after the arrival": (
        "one warpgroup, dynamic, tiles [1, 1]",
        moved(PRODUCER, ("arrive", "tile"), ("take",)),
        Rule.NOT_SEEN,
    ),
    "a store that is not waited for": (
        "one warpgroup, output through Q, tiles [1, 1]",
        removed(FIRST, "stored"),
        Rule.OVERWRITE,
    ),
    "the last store not waited for": (
        "one warpgroup, output through Q, tiles [1, 1]",
        removed(FIRST, "stored", nth=-1),
        Rule.IN_FLIGHT,
    ),
    "the last product not waited for": (
        "one warpgroup, alone, tiles [1]",
        removed(FIRST, "products wait", nth=-1),
        Rule.IN_FLIGHT,
    ),
    "an output without a fence": ("one warpgroup, output through Q, tiles [1]", removed(FIRST, "fence"), Rule.PROXY),
    "a fence before the write": (
        "one warpgroup, output through Q, tiles [1]",
        moved(FIRST, ("fence",), ("write",)),
        Rule.PROXY,
    ),
    "a store before all warps have fenced": (
        "one warpgroup, output through Q, tiles [1]",
        moved(FIRST, ("sync", NAMED, 1), ("fence",)),
        Rule.PROXY,
    ),
    "a store of what is not written": (
        "one warpgroup, output through Q, tiles [1]",
        removed(FIRST, "write"),
        Rule.PROXY,
    ),
    "a write that other warps do not wait for": (
        "one warpgroup, output through Q, tiles [1]",
        removed(FIRST, "sync"),
        Rule.OVERWRITE,
    ),
    "a write before all warps know that the store has read": (
        "one warpgroup, output through Q, tiles [1]",
        both(doubled(FIRST, "write"), moved(FIRST, ("write", "Q", 1), ("stored",))),
        Rule.OVERWRITE,
    ),
    "a product of what was written over": (
        "one warpgroup, output through Q, tiles [1]",
        moved(FIRST, ("write",), ("product", "K")),
        Rule.OTHER,
    ),
    "a load over what was not fenced": (
        "one warpgroup, output through Q, tiles [1, 1]",
        both(removed(FIRST, "fence"), removed(FIRST, "store"), removed(FIRST, "stored")),
        Rule.PROXY,
    ),
    "a load over what is read": ("one warpgroup, Q in registers, tiles [1, 1]", removed(FIRST, "fence"), Rule.PROXY),
    "a load over what threads may still read before their fence": (
        "one warpgroup, Q in registers, tiles [1, 1]",
        moved(FIRST, ("arrive", "Q_empty"), ("fence",)),
        Rule.OVERWRITE,
    ),
    "P without a fence": ("one warpgroup, P in shared memory, tiles [1]", removed(FIRST, "fence"), Rule.PROXY),
    "P fenced before it is put": (
        "one warpgroup, P in shared memory, tiles [1]",
        moved(FIRST, ("fence",), ("put",)),
        Rule.PROXY,
    ),
    "P multiplied before all warps have put theirs": (
        "one warpgroup, P in shared memory, tiles [1]",
        removed(FIRST, "sync"),
        Rule.PROXY,
    ),
    "P multiplied while it is fenced": (
        "one warpgroup, P in shared memory, tiles [1]",
        moved(FIRST, ("sync",), ("fence",)),
        Rule.PROXY,
    ),
    "P put while the product before reads it": (
        "one warpgroup, P in shared memory, tiles [2]",
        moved(FIRST, ("put", "P", 1), ("products wait", "", 1)),
        Rule.OVERWRITE,
    ),
    "P put by nobody": ("one warpgroup, P in shared memory, tiles [1]", removed(FIRST, "put"), Rule.OTHER),
    "P put for the block after": (
        "one warpgroup, P in shared memory, tiles [2]",
        changed(FIRST, "put", step=1),
        Rule.OTHER,
    ),
    "P put where the other warpgroup's is": (
        "overlap, P in shared memory, tiles [1]",
        both(doubled(FIRST, "put"), changed(FIRST, "put", index=1)),
        Rule.OVERWRITE,
    ),
    "P of the other warpgroup multiplied": (
        "overlap, P in shared memory, tiles [1]",
        changed(FIRST, "product", "V", reads=(("V", 0, 0), ("P", 1, 0))),
        Rule.OTHER,
    ),
    "the bytes of two loads": ("one warpgroup, alone, tiles [1]", changed(PRODUCER, "expect", value=2), Rule.DEADLOCK),
    "the bytes of no load": ("one warpgroup, alone, tiles [1]", changed(PRODUCER, "expect", value=0), Rule.DEADLOCK),
    "a named barrier of more threads for one": (
        "overlap, ping-pong, tiles [1]",
        changed(FIRST, "sync", NAMED, value=160),
        Rule.THREADS,
    ),
    "the bytes of a load that comes again": (
        "one warpgroup, alone, tiles [1]",
        lambda events: events[PRODUCER].extend(
            (Event("wait", "Q_empty", 0, 0), Event("expect", "Q_full", 0, 1), Event("load", "Q", 0, blocks=(0,)))
        ),
        Rule.LEFT_OVER,
    ),
    "bytes of another block's load after the arrival": (
        "one warpgroup, cluster, tiles [1]",
        moved(PRODUCER_1, ("arrive", "K_full"), ("expect", "K")),
        Rule.DEADLOCK,
    ),
    "a block that is not there": (
        "one warpgroup, cluster, tiles [1]",
        changed(PRODUCER, "load", "Q", blocks=(2,)),
        Rule.NOT_STARTED,
    ),
    "a load by a warpgroup": (
        "one warpgroup, alone, tiles [1]",
        both(removed(PRODUCER, "expect"), lambda events: events[FIRST].insert(0, Event("expect", "K_full", 0, 1))),
        Rule.ONE_WARP,
    ),
}


def program_of(name: str, change: Change) -> EventProgram:
    (program,) = (program for program in event_programs() if program.name == f"{name}, 2 warps")
    events = {process: [*run] for process, run in program.roles.items()}
    change(events)
    return replace(program, roles={process: tuple(run) for process, run in events.items()})


@pytest.mark.parametrize("name", sampled(FAULTS, [*FAULTS][::4]))
def test_a_fault_is_refused_by_its_rule_and_fails_in_some_order(name):
    program, change, rule = FAULTS[name]
    faulty = program_of(program, change)
    refusals = proved(faulty)
    assert all(refusals) and refusals[0].rule == rule, [str(refusal) for refusal in refusals]
    machine = Machine(faulty.roles, faulty.counts)
    assert tried(machine, 1000, random.Random(0)) or explore(machine, 10_000)


def test_an_arrival_does_not_count_in_the_place_of_another():
    """Three warps arrive where two count, and all of them twice: no order says which two count."""
    full, counts = Process(0, -1, 1), {"K_full": 32, "K_empty": 2}
    reads = (("K", 0, 0),)
    reader = [Event("wait", "K_full", 0, 0), Event("read", "K", 0, reads=reads), Event("arrive", "K_empty", 0, 1, (0,))]
    loads = [
        Event("expect", "K_full", 0, 1),
        Event("load", "K", 0, blocks=(0,)),
        Event("arrive", "K_full", 0, 32, (0,)),
    ]
    again = [replace(event, step=1) for event in loads]
    late = [Event("wait", "K_full", 0, 1), Event("arrive", "K_empty", 0, 1, (0,))]
    roles = {
        full: (*loads, Event("wait", "K_empty", 0, 0), *again),
        Process(0, 0, 1): (*reader, *late),
        Process(0, 1, 1): tuple(reader),
        Process(0, 2, 1): (Event("arrive", "K_empty", 0, 1, (0,)),),
    }
    program = EventProgram("three for two", roles, counts)
    assert all(proved(program))
    assert explore(Machine(roles, counts), 10_000)


# As above, and no order fails: `mbarrier.py` says why they are refused.
HARMLESS: dict[str, tuple[str, Change, Rule]] = {
    "a release too many that nobody waits for": (
        "one warpgroup, alone, tiles [1]",
        doubled(FIRST, "arrive", "Q_empty"),
        Rule.EARLY,
    ),
    "a release of two phases": ("one warpgroup, alone, tiles [1]", changed(FIRST, "arrive", "Q", value=2), Rule.COUNT),
    "a named barrier of fewer threads later": (
        "one warpgroup, output through Q, tiles [1]",
        changed(FIRST, "sync", NAMED, 2, value=32),
        Rule.THREADS,
    ),
    "a load by one of two warps": (
        "one warpgroup, alone, tiles [1]",
        both(
            removed(PRODUCER, "load", "K"), lambda events: events[FIRST].insert(0, Event("load", "K", 0, blocks=(0,)))
        ),
        Rule.ONE_WARP,
    ),
    "a tile's number taken twice": ("one warpgroup, dynamic, tiles [1]", doubled(PRODUCER, "take"), Rule.OVERWRITE),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_refused_and_fails_in_no_order(name):
    program, change, rule = HARMLESS[name]
    harmless = program_of(program, change)
    assert {refusal and refusal.rule for refusal in proved(harmless)} == {rule}
    assert explore(Machine(harmless.roles, harmless.counts), 10_000) is None


def test_a_warp_that_has_exited_is_waited_for_all_the_same():
    """The cluster's barrier would not wait for the warp that has exited."""
    program = program_of("one warpgroup, cluster, tiles [1]", removed(PRODUCER_1, "sync", CLUSTER, -1))
    assert {refusal and refusal.rule for refusal in proved(program)} == {Rule.DEADLOCK}
    assert not tried(Machine(program.roles, program.counts), 100, random.Random(0))


@pytest.mark.parametrize("options", sampled(LEFT_OUT, ["both"]))
def test_a_barrier_operation_can_be_left_out_only_where_others_do_its_work(options):
    """The last release of Q is an exception: block 1 loads nothing, so it waits for no buffer that block 0 needs."""
    roles = roles_of(overlap(**OPTIONS[options]))
    rng = random.Random(0)
    whole = events_of(roles, TILES)
    places = [
        (process, index)
        for process, events in whole.items()
        for index, event in enumerate(events)
        if event.kind in ("wait", "arrive", "expect", "sync", "signal", "load", "take")
        and event.value != 128
        and process != PRODUCER_1
        and index != place(events, "arrive", "Q", -1)
    ]
    for process, index in rng.sample(places, 60):
        events = {**whole, process: [*whole[process][:index], *whole[process][index + 1 :]]}
        try:
            prove(events, roles.counts, **rng.choice(ORDERS))
        except ScheduleRefused:
            continue
        left_out = whole[process][index]
        assert left_out.kind == "wait", left_out
        assert not tried(Machine(events, roles.counts), 5, rng), left_out


@pytest.mark.parametrize("number,largest", sampled([(SAMPLE, 10_000), (SAMPLE, 100), (FEW, 100)], [(FEW, 100)]))
def test_what_is_accepted_runs_in_every_order(number, largest):
    """docs/DESIGN.md speaks of 10,000 programs: these tests with that SAMPLE, which takes ten minutes of a core."""
    trials = [trial(program, seed) for seed, program in enumerate(mutants(number, SEED, largest))]
    assert not [(each.program.name, each.wrong) for each in trials if each.wrong]
    accepted = [each for each in trials if each.rule is None]
    refused = [each for each in trials if each.rule]
    assert len(accepted) > number / 10 and len(refused) > number / 3
    assert sum(each.fault is not None for each in refused) > 0.9 * len(refused)
    # All orders of the small ones.
    assert largest > 100 or sum(each.all_orders for each in accepted) > len(accepted) / 3
