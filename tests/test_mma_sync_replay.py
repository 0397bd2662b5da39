"""The proof of mma_sync's waits and barriers is compared with two warps that run a Program adversarially."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from mma_sync_schedules import EAGER, SHIPPED, changed
from simulated_warps import wrong
from tiers import sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.mma_sync.replay import prove
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import Iteration, Phases, Program

# A schedule whose first products are in the prologue, with Q in shared memory and in registers.
AHEAD = changed(
    SHIPPED["mma_sync_small"],
    stage=(0, 0, 0, 1, 1),
    order=(0, 3, 4, 1, 2),
    wait_before={"load_k": None, "load_v": None},
)
SCHEDULES = {**SHIPPED, "products ahead": AHEAD}


def refusal(program: Program) -> str | None:
    try:
        prove(program)
    except ScheduleRefused as refused:
        return str(refused)
    return None


def with_phases(program: Program, phases: Phases) -> Program:
    """Returns the Program with these phases."""
    return replace(program, passes=(lambda _: phases,))


def faults(program: Program) -> Iterator[tuple[str, Program]]:
    """Yields Programs with one fault: a wait, barrier or load of Q's registers left out, a wait for less, a shorter ring.

    A wait for less leaves one more in flight; a shorter ring has one buffer less.
    """
    phases = program.phases
    iterations = (*phases.prologue, phases.steady, *phases.epilogue)
    for number, (t, operations) in enumerate(iterations):
        for index, op in enumerate(operations):
            told = f"{op.kind} {op.statement} of iteration {number}"
            others = {}
            if op.kind in ("wait", "sync", "keep"):
                others[f"{told} left out"] = ()
            if op.kind == "wait":
                others[f"{told}, one more in flight"] = (op._replace(outstanding=op.outstanding + 1),)
            for what, instead in others.items():
                changed_too = Iteration(t, (*operations[:index], *instead, *operations[index + 1 :]))
                listed = (*iterations[:number], changed_too, *iterations[number + 1 :])
                first = len(phases.prologue)
                yield what, with_phases(program, Phases(listed[:first], listed[first], listed[first + 1 :]))
    for load, count in program.buffers.items():
        if count > 1:
            shorter = replace(with_phases(program, phases), buffers=program.buffers | {load: count - 1})
            yield f"one buffer of {load} fewer", shorter


@pytest.mark.parametrize("name", sampled(SCHEDULES, [*SCHEDULES][::2]))
def test_each_schedule_is_proved_and_right_in_every_run(name):
    program = derive(SCHEDULES[name])
    assert refusal(program) is None and wrong(program, random_runs=20) is None


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_fault_is_refused_in_words_and_every_wait_and_barrier_is_needed(name):
    """No wait or barrier is redundant: without it two warps read what they should not."""
    program, words = derive(SCHEDULES[name]), set()
    for what, faulty in faults(program):
        refused = refusal(faulty)
        assert refused, f"{what}: accepted"
        assert wrong(faulty), f"{what}: refused, but right in every run: {refused}"
        words.add(next(word for word in WORDS if word in refused))
    assert words >= {WORDS[0], WORDS[1]}


WORDS = (
    "copies, with no wait between",
    "copied, with no barrier of all threads behind the wait",
    "has not copied",
    "copies over what a warp may still read of block",
    "copies to where the copies of block",
    "reads Q in registers, which are not loaded yet",
)


def test_a_refusal_names_the_read_and_the_copy():
    program = derive(EAGER)
    found = {what: refusal(faulty) for what, faulty in faults(program)}
    assert (
        found["wait load_k of iteration 1 left out"] == "frag_k.0(0) reads what load_k(0) copies, with no wait between"
    )
    assert len([words for words in found.values() if words and "load_v(" in words]) >= 2


def test_q_is_in_registers_before_the_first_product_also_where_that_is_in_the_prologue():
    refuse_unless_safe(Planned(AHEAD), 128)
    phases = derive(AHEAD).phases
    kinds = [op.kind if op.kind != "run" else op.statement for _, ops in phases.prologue for op in ops]
    assert kinds.index("keep") < kinds.index("mma0.0")
