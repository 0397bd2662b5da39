"""A second loop has statements that load fragments from shared memory, as in an mma.sync kernel.

The loop's table is all that derivation, machine, legality and interpreter are told of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tl_attention.errors import ScheduleRefused
from tl_attention.loop.attention import SOURCE
from tl_attention.loop.table import statement
from tl_attention.oracle.interpret import POLICIES, interpret
from tl_attention.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.oracle.tile import STATEMENT_CODE, Tiles
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.derivation import dependences, derive
from tl_attention.program.program import Program
from tl_attention.proof.legality import check, find_violation
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.options import Releases, Waits

# ldmatrix brings K's columns in two halves, so its ring has two readers; V comes whole, and Q again for every block.
FRAGMENTS = (
    statement("vector", "copy_q", "Q_shared", "Q_fragment", "Q_fragment = Q_shared"),
    statement("vector", "copy_k_low", "K_shared", "K_low", "K_low = the first half of K_shared's columns"),
    statement("vector", "copy_k_high", "K_shared", "K_high", "K_high = the second half of K_shared's columns"),
    statement("vector", "copy_v", "V_shared", "V_fragment", "V_fragment = V_shared"),
    statement("product", "mma0", "Q_fragment K_low K_high acc_s", "acc_s", "acc_s += Q K^T", "mma0_fragments"),
    statement("product", "mma1", "acc_s_cast V_fragment acc_o", "acc_o", "acc_o += acc_s_cast V", "mma1_fragments"),
)
OWN = {s.name: s for s in FRAGMENTS}
COPIES_OF_K = ("copy_k_low", "copy_k_high")
SOFTMAX = SOURCE.names[SOURCE.number["max_prev"] : SOURCE.number["load_v"]]
NAMES = ("load_k", "copy_q", *COPIES_OF_K, "mask", "mma0", *SOFTMAX, "load_v", "copy_v", "mma1")
TABLE = replace(SOURCE, statements=tuple(OWN.get(name) or SOURCE.by_name[name] for name in NAMES))


def _high(t) -> None:
    t["K_high"] = t["K_shared"][:, t["K_shared"].shape[1] // 2 :]


def _low(t) -> None:
    t["K_low"] = t["K_shared"][:, : t["K_shared"].shape[1] // 2]


def _copy_q(t) -> None:
    t["Q_fragment"] = t["Q_shared"]


def _copy_v(t) -> None:
    t["V_fragment"] = t["V_shared"]


def _mma0(t) -> None:
    t["acc_s"] = t["acc_s"] + t["Q_fragment"] @ torch.cat([t["K_low"], t["K_high"]], dim=1).T


def _mma1(t) -> None:
    t["acc_o"] = t["acc_o"] + t["acc_s_cast"] @ t["V_fragment"]


CODE = {
    **STATEMENT_CODE,
    "copy_q": _copy_q,
    "copy_k_low": _low,
    "copy_k_high": _high,
    "copy_v": _copy_v,
    "mma0_fragments": _mma0,
    "mma1_fragments": _mma1,
}


class StandIn(SimpleNamespace):
    """A stand-in can be looked up in a dict, as a schedule can."""

    __hash__ = object.__hash__


def program(order: Iterable[tuple[str, int]], model: str = "synchronous", buffers: int = 2) -> Program:
    """Derives the Program of an order of (statement, stage), by a stand-in: a schedule cannot name these statements."""
    return derive(
        StandIn(
            has_program=True,
            dialect=Dialect("mma_sync", "", model="synchronous", table=TABLE),
            table=TABLE,
            emission=[((name,), stage) for name, stage in order],
            producers=("load_k", "load_v"),
            buffers=lambda load: buffers,
            wait_before=Waits(),
            release_before=Releases(),
        ),
        model,
    )


def staged(stage: int, *names: str) -> list[tuple[str, int]]:
    return [(name, stage) for name in names]


SOURCE_ORDER = staged(0, *(name for name in NAMES if name not in TABLE.loads))
# K's fragments of the next block are loaded while this one's scores are computed, and V's before the exponentials.
AHEAD = [
    *staged(1, "copy_q", "mask", "mma0", "copy_v", *SOFTMAX[:5]),
    *staged(0, *COPIES_OF_K),
    *staged(1, *SOFTMAX[5:], "mma1"),
]
TOO_EARLY = [*staged(0, *COPIES_OF_K), *staged(1, "copy_q", "mask", "mma0", *SOFTMAX, "copy_v", "mma1")]
TOO_LATE = [*(entry for entry in SOURCE_ORDER if entry[0] != "copy_v"), ("copy_v", 0)]
# Q's fragments of the next block before the product of this one: an edge is broken, and the value is the same.
Q_TWICE = [*staged(0, "copy_q"), *staged(1, *(name for name, _ in SOURCE_ORDER if name != "copy_q"))]


def test_the_facts_of_the_loop_are_read_off_its_table() -> None:
    assert TABLE.loads == ("load_k", "load_v") and TABLE.products == ("mma0", "mma1")
    assert TABLE.rings == {"K_shared": "load_k", "V_shared": "load_v"}
    assert TABLE.readers == {"load_k": COPIES_OF_K, "load_v": ("copy_v",)}
    assert TABLE.inputs == {"K", "V", "Q_shared"} and set(TABLE.results) == {"acc_o", "denominator"}
    assert TABLE.loads_of("mma0") == () and TABLE.loads_of("copy_v") == ("load_v",)
    edges = {edge[:4] for edge in dependences(TABLE, {"load_k": 2, "load_v": 2})}
    assert {("copy_k_low", "mma0", 0, "flow"), ("mma0", "copy_k_low", 1, "anti")} <= edges
    assert {("copy_k_high", "load_k", 2, "anti"), ("load_k", "copy_k_high", 0, "flow")} <= edges


def steady(derived: Program) -> list[str]:
    return [f"{op.kind} {op.statement}{-op.lag:+d}" for op in derived.phases.steady.operations]


@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
def test_a_ring_is_waited_for_by_each_reader_and_released_by_the_last(model) -> None:
    """A copy releases the ring as soon as it ran: the product reads registers."""
    listed = steady(program(SOURCE_ORDER, model))
    first = listed.index("run copy_k_low+0")
    assert listed[first - 1] == "wait load_k+0"
    assert listed[first + 1 :][:3] == ["wait load_k+0", "run copy_k_high+0", "release load_k+0"]
    assert listed[listed.index("run copy_v+0") + 1] == "release load_v+0"
    swapped = [*SOURCE_ORDER[:1], *SOURCE_ORDER[2:0:-1], *SOURCE_ORDER[3:]]
    listed = steady(program(swapped, model))
    assert listed[listed.index("run copy_k_low+0") + 1] == "release load_k+0"


def test_a_product_in_flight_is_waited_for_before_its_fragments_are_overwritten() -> None:
    listed = steady(program(AHEAD, "asynchronous"))
    assert listed.index("issue mma0-1") < listed.index("wait mma0-1") < listed.index("run copy_k_low+0")
    # mma1 stays in flight until the next iteration copies V: nothing before that touches what it reads or writes.
    assert [line for line in listed if line.startswith("wait mma1")] == ["wait mma1-2"]
    assert listed.index("wait mma1-2") < listed.index("run copy_v-1")


ACCEPTED = {"source order": SOURCE_ORDER, "fragments ahead": AHEAD, "Q for the next block": Q_TWICE}
REFUSED = {
    "K's fragments too early": (
        TOO_EARLY,
        "copy_k_low(t) overwrites K_low before mma0(t-1), emitted later, has read it: mma0(t-1) needs what "
        "copy_k_low(t-1) wrote",
    ),
    "V's fragments too late": (
        TOO_LATE,
        "mma1(t) reads V_fragment before copy_v(t), emitted later, has written it: mma1(t) needs what copy_v(t) wrote, "
        "and nothing has yet",
    ),
}


def errors(derived: Program) -> list[bool]:
    """Says whether each run of the interpreter is right, on several tiles of a ragged problem."""
    q, k, v = make_inputs(AttentionShape(1, 1, 70, 150, 64), seed=1)
    options = {"mask": CAUSAL, "scale": 0.125}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    given = (q, k, v), Tiles(32, 16, code=CODE)
    return [
        compare(interpret(derived, *given, policy=policy, **options), exact, peer).ok for policy in POLICIES.values()
    ]


@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_an_order_that_keeps_every_value_is_proved_and_right(name, model) -> None:
    for buffers in (1, 2, 3):
        derived = program(ACCEPTED[name], model, buffers)
        check(derived)
        assert all(errors(derived))


@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_order_that_does_not_is_refused_in_words_and_wrong(name, model) -> None:
    order, words = REFUSED[name]
    derived = program(order, model)
    with pytest.raises(ScheduleRefused) as error:
        check(derived)
    assert str(error.value) == words
    assert not all(errors(derived))


def test_values_tell_more_than_edges() -> None:
    """Every block's Q is the same, so it may be copied before the product that reads the copy for the block before."""
    derived = program(Q_TWICE)
    emitted = [op.statement for op in derived.consumer if op.kind in ("run", "issue")]
    assert emitted.index("copy_q") < emitted.index("mma0") and find_violation(derived) is None
    [edge] = [e for e in dependences(TABLE, {"load_k": 2, "load_v": 2}) if e[:2] == ("mma0", "copy_q")]
    lag = {op.statement: op.lag for op in derived.consumer}
    assert (edge.kind, edge.distance) == ("anti", 1) and lag["copy_q"] + edge.distance == lag["mma0"]
