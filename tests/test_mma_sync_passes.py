"""Tests check which waits and barriers mma_sync's Programs have, and what `explain` says of them."""

from __future__ import annotations

import pytest
from mma_sync_schedules import SHIPPED, changed

from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation
from tl_attention.show.explain import explain

# What the threads do for copies in an iteration. Both loads are behind a barrier that is needed anyhow: two of them a block.
TWO_BARRIERS = ["wait load_k, 0", "sync", "issue load_v", "wait load_v, 0", "sync", "issue load_k"]
STEADY = {
    **dict.fromkeys(SHIPPED, TWO_BARRIERS),
    "mma_sync/plain": ["issue load_k", "wait load_k, 0", "sync", "issue load_v", "wait load_v, 0", "sync"],
    # With K in two buffers it is copied while V is still on its way; with V in two the wait leaves both in flight.
    "mma_sync/double_k": ["wait load_k, 0", "sync", "issue load_v", "issue load_k", "wait load_v, 1", "sync"],
    "mma_sync/double_both": ["wait load_k, 1", "issue load_k", "sync", "issue load_v", "wait load_v, 2", "sync"],
}


def told(operations: tuple[Operation, ...]) -> list[str]:
    """Says waits, barriers and copies in words."""
    words = {"wait": "wait {0.statement}, {0.outstanding}", "sync": "sync", "issue": "issue {0.statement}"}
    return [words[op.kind].format(op) for op in operations if op.kind in words]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_steady_state_has_these_waits_and_barriers(name):
    assert told(derive(SHIPPED[name]).phases.steady.operations) == STEADY[name]


def test_nothing_else_of_the_model_is_left():
    for schedule in SHIPPED.values():
        phases = derive(schedule).phases
        for _, operations in (*phases.prologue, phases.steady, *phases.epilogue):
            assert {op.kind for op in operations} <= {"wait", "sync", "issue", "run", "keep"}


def test_q_is_waited_for_with_the_first_block_or_by_itself_where_it_stays_in_registers():
    def q(name: str) -> list[list[str]]:
        return [
            [op.kind for op in ops if op.statement in ("load_q", "threads")]
            for _, ops in derive(SHIPPED[name]).phases.prologue
        ]

    assert q("mma_sync") == [[]] and q("mma_sync_small") == [[], ["wait", "sync", "keep"]]
    wait = derive(SHIPPED["mma_sync_small"]).phases.prologue[1].operations[0]
    # K's first block is behind it, and stays in flight.
    assert wait == Operation("wait", "load_q", 0, outstanding=1)


def test_q_that_is_read_before_any_block_has_a_wait_of_its_own():
    group = [name for name in SHIPPED["mma_sync/plain"].group[1] if name != "frag_q.0"]
    groups = [["frag_q.0"], *SHIPPED["mma_sync/plain"].group[:1], group, *SHIPPED["mma_sync/plain"].group[2:]]
    first = changed(SHIPPED["mma_sync/plain"], group=groups, order=(0, 1, 2, 4, 3, 5), stage=(0,) * 6)
    prologue = derive(first).phases.prologue
    assert next(op for _, ops in prologue for op in ops) == Operation("wait", "load_q", 0)


def test_explain_says_who_computes_what_is_waited_for_and_what_all_meet_for():
    text = explain(Planned(SHIPPED["mma_sync_small"]))
    assert "threads: 128 compute, a warp for each 16 rows, and load" in text
    for line in (
        "  wait     load_k(t-1), 0 later in flight\n",
        "   wait     load_q, 1 later in flight\n   sync     all threads\n   keep     Q in registers\n",
        "  sync     all threads\n  issue    load_v(t-1)\n",
        "registers: 148 of 255 for fragments: acc_s 32, acc_o 64, Q 32, K 16, row vectors 4\n",
    ):
        assert line in text
    assert "a warp for each 32 rows" in explain(Planned(SHIPPED["mma_sync"]))
    assert "kernel.cluster" not in text and "* kernel.q_operand registers: MMA0 reads Q from registers" in text
