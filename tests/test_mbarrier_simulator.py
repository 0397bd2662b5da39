"""The simulator that judges the proof of the roles follows the PTX ISA on programs of a few events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from event_programs import event_programs
from mbarrier_simulator import Machine
from race_trial import mutants
from simulated_orders import TooMany, explore

from tl_attention.proof.events import CLUSTER, NAMED, Event, Process

LOADER, READER, OTHER = Process(0, -1, 1), Process(0, 0, 1), Process(0, 1, 1)
LOADER_1, READER_1 = Process(1, -1, 1), Process(1, 0, 1)
TWO_WARPS = Process(0, 0, 2)
COUNTS = {"K_full": 32, "K_empty": 1, "both": 2}
EXPECT, FULL = Event("expect", "K_full", 0, 1), Event("arrive", "K_full", 0, 32, (0,))
WAIT, EMPTY = Event("wait", "K_full", 0, 0), Event("arrive", "K_empty", 0, 1, (0,))
HERE, READS = {"blocks": (0,), "step": 0}, (("K", 0, 0),)
LOAD, READ, PRODUCT = Event("load", "K", 0, **HERE), Event("read", "K", 0, reads=READS), Event("product", reads=READS)
FREE, LOAD_1 = Event("wait", "K_empty", 0, 0), Event("load", "K", 0, blocks=(0,), step=1)
WRITE, FENCE, STORE = Event("write", "K", 0, reads=READS), Event("fence"), Event("store", "K", 0, reads=READS)
PUT, PUT_1 = Event("put", "P", 0), Event("put", "P", 0, step=1)
MULTIPLY = Event("product", reads=(("P", 0, 0),))
DONE, STORED, MEET = Event("products wait"), Event("stored"), Event("sync", NAMED, 1, 64)
TOGETHER = Event("sync", CLUSTER)
Run = Sequence[Event]
LOADED = {LOADER: [EXPECT, LOAD, FULL]}
LOADED_TWICE = {LOADER: [EXPECT, LOAD, FULL, FREE, EXPECT, LOAD_1, FULL]}
WAIT_1 = Event("wait", "K_full", 0, 1)
# Each with what goes wrong in some order, or nothing.
PROGRAMS: dict[str, tuple[dict[Process, Run], str | None]] = {
    "a phase before the first has ended": ({READER: [Event("wait", "K_empty", 0, 1)]}, None),
    "the first phase has not": ({READER: [WAIT]}, "deadlock"),
    "a load that is waited for": ({**LOADED, READER: [WAIT, READ]}, None),
    "a load that is not": ({**LOADED, READER: [READ, WAIT]}, "reads something else"),
    "bytes that land before they are expected": ({LOADER: [LOAD, EXPECT, FULL], READER: [WAIT, READ]}, None),
    "bytes expected after all have arrived": ({LOADER: [LOAD, FULL, EXPECT], READER: [WAIT, READ]}, "reads something"),
    "bytes not expected": ({LOADER: [LOAD, FULL], READER: [WAIT, READ]}, "reads something else|deadlock"),
    "bytes that never come": ({LOADER: [EXPECT, FULL], READER: [WAIT]}, "deadlock"),
    "an arrival too many where bytes are missing": (
        {LOADER: [EXPECT, FULL, EMPTY, LOAD], READER: [Event("arrive", "K_full", 0, 1, (0,)), WAIT, READ]},
        "no arrival is pending",
    ),
    "an arrival missing": ({LOADER: [Event("arrive", "both", 0, 1, (0,))]}, "left over"),
    "a wait that two phases pass by": ({LOADER: [EMPTY, EMPTY], READER: [Event("wait", "K_empty", 0, 0)]}, "deadlock"),
    "a wait that two phases cannot pass by": (
        {LOADER: [EMPTY, Event("wait", "both", 0, 0), EMPTY], READER: [FREE, Event("arrive", "both", 0, 2, (0,))]},
        None,
    ),
    "a load over what is read later": (
        {LOADER: [EXPECT, LOAD, FULL, WAIT, EXPECT, LOAD_1, FULL], READER: [WAIT, READ, WAIT_1]},
        "reads something else|deadlock|loads over what is read and not fenced",
    ),
    "a load over what is read and not fenced": (
        {**LOADED_TWICE, READER: [WAIT, READ, EMPTY, WAIT_1]},
        "loads over what is read and not fenced",
    ),
    "a fence before the reading": (
        {**LOADED_TWICE, READER: [WAIT, FENCE, READ, EMPTY, WAIT_1]},
        "loads over what is read and not fenced",
    ),
    "a fence after the arrival": (
        {**LOADED_TWICE, READER: [WAIT, READ, EMPTY, FENCE, WAIT_1]},
        "loads over what is read and not fenced|reads something else",
    ),
    "a load over what is read and fenced": ({**LOADED_TWICE, READER: [WAIT, READ, FENCE, EMPTY, WAIT_1]}, None),
    "a load over a product in flight": (
        {**LOADED_TWICE, READER: [WAIT, PRODUCT, EMPTY, DONE, WAIT_1]},
        "loads over what is read",
    ),
    "a load over a product that is waited for": ({**LOADED_TWICE, READER: [WAIT, PRODUCT, DONE, EMPTY, WAIT_1]}, None),
    "a load that nobody waits for": (
        {**LOADED_TWICE, READER: [WAIT, PRODUCT, DONE, EMPTY]},
        "a block ends before something in flight reaches it|left over",
    ),
    "a product at the end": ({**LOADED, READER: [WAIT, PRODUCT]}, "ends with something in flight"),
    "what is stored": ({**LOADED, READER: [WAIT, WRITE, FENCE, STORE, STORED]}, None),
    "what is stored unfenced": ({**LOADED, READER: [WAIT, WRITE, STORE, FENCE, STORED]}, "not written and fenced"),
    "what is stored before another warp has written": (
        {**LOADED, TWO_WARPS: [WAIT, WRITE, FENCE, STORE, STORED]},
        "not written and fenced",
    ),
    "what is stored after all have written": ({**LOADED, TWO_WARPS: [WAIT, WRITE, FENCE, MEET, STORE, STORED]}, None),
    "what another warp reads": (
        {**LOADED, TWO_WARPS: [WAIT, PRODUCT, DONE, WRITE]},
        "writes over what is read|reads what was written over",
    ),
    "what other warps have read": ({**LOADED, TWO_WARPS: [WAIT, PRODUCT, DONE, MEET, WRITE]}, None),
    "a load over what is unfenced": (
        {LOADER: [EXPECT, LOAD, FULL, FREE, LOAD_1], READER: [WAIT, WRITE, EMPTY]},
        "loads over what is written and not fenced",
    ),
    "what is multiplied unfenced": ({READER: [PUT, MULTIPLY, DONE]}, "multiplies what is not written and fenced"),
    "what is multiplied fenced": ({READER: [PUT, FENCE, MULTIPLY, DONE, PUT_1]}, None),
    "what is put over a product in flight": ({READER: [PUT, FENCE, MULTIPLY, PUT_1, DONE]}, "writes over what is read"),
    "what is multiplied before another warp has put its part": (
        {TWO_WARPS: [PUT, FENCE, MULTIPLY, DONE]},
        "multiplies what is not written and fenced",
    ),
    "what all warps have put": ({TWO_WARPS: [PUT, FENCE, MEET, MULTIPLY, DONE]}, None),
    # Whose wait has passed knows that the product is over for all.
    "what is put again after the product": ({TWO_WARPS: [PUT, FENCE, MEET, MULTIPLY, DONE, PUT_1]}, None),
    "what another warpgroup has put": (
        {READER: [PUT, FENCE, MEET], OTHER: [MEET, MULTIPLY, DONE]},
        "multiplies what is not written and fenced",
    ),
    "a named barrier": ({READER: [MEET, MEET], OTHER: [MEET, Event("signal", NAMED, 1, 64)]}, None),
    "a named barrier that one arrives at twice": (
        {READER: [MEET, MEET], OTHER: [Event("signal", NAMED, 1, 64), MEET]},
        "deadlock",
    ),
    "a named barrier that one goes to alone": ({READER: [MEET]}, "deadlock"),
    "a named barrier of two numbers": (
        {READER: [MEET], OTHER: [Event("sync", NAMED, 1, 96)]},
        "two numbers of threads",
    ),
    "a block that may not have started": (
        {READER: [Event("arrive", "K_empty", 0, 1, (1,))], READER_1: [FREE]},
        "reaches a block that has not started",
    ),
    "blocks that start together": (
        {READER: [TOGETHER, Event("arrive", "K_empty", 0, 1, (1,))], READER_1: [TOGETHER, FREE]},
        None,
    ),
    "a block that may have ended": (
        {READER: [TOGETHER, Event("arrive", "K_empty", 0, 1, (1,))], READER_1: [TOGETHER]},
        "a block ends before|reaches a block that has ended",
    ),
    "who has exited is not waited for": ({READER: [TOGETHER], OTHER: [], READER_1: [TOGETHER]}, None),
    # Both of the first arrival may come after the second here, but not after what the warp does next.
    "arrivals at two blocks": (
        {
            READER: [TOGETHER, *[Event("arrive", "K_empty", 0, 1, (0, 1))] * 2, TOGETHER],
            READER_1: [TOGETHER, Event("wait", "K_empty", 0, 0), TOGETHER],
        },
        "deadlock",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("reduced", [True, False])
def test_what_goes_wrong(name, reduced):
    roles, expected = PROGRAMS[name]
    found = explore(Machine(roles, COUNTS), 10_000, reduced)
    if expected is None:
        assert found is None
    else:
        assert found and any(words in str(found) for words in expected.split("|"))


def test_no_order_of_the_smallest_programs_fails():
    for program in event_programs():
        if program.size <= 40:
            assert explore(Machine(program.roles, program.counts), 10_000) is None, program.name


def test_orders_that_are_left_out_show_nothing_else():
    """Programs, of which some are faulty, are explored with and without these orders."""
    faulty = []
    for program in mutants(300, seed=5, largest=40):
        machine = Machine(program.roles, program.counts)
        try:
            every = explore(machine, 20_000, reduced=False)
        except TooMany:
            continue
        faulty.append(every is not None)
        assert (explore(machine, 20_000) is not None) == faulty[-1], program.name
    assert 50 < sum(faulty) < len(faulty) - 50
