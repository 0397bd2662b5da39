"""A session checks, compiles, verifies and times candidates, and records each once; what a comparison says."""

from __future__ import annotations

import random
import statistics

import pytest
from mutations import shipped
from stand_in import GOOD, Compilers, Gpu, on_a_machine

from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.records import CONFIDENCE, RoundRatios, Row, parse_line
from tl_attention.lab.measure.session import Session
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

__all__ = ["on_a_machine"]
pytestmark = pytest.mark.usefixtures("on_a_machine")
SHAPE = AttentionShape(1, 2, 256, 256, 128)


def candidate(name: str = "seed") -> Candidate:
    return Candidate(name, SHAPE, Planned(shipped().get(name, shipped()["seed"])))


def a_session(gpu: Gpu | None = None, record=lambda row: None, compilers=None) -> Session:
    return Session(record, seed=1, worker=gpu or Gpu(), compilers=compilers or Compilers())


def test_every_ticket_is_handed_out_once_in_the_order_of_their_compilation() -> None:
    asked, compilers = [], Compilers()

    def backwards(candidates):
        asked.extend(candidates)
        yield from compilers(candidates[::-1])

    with a_session(compilers=backwards) as session:
        tickets = [session.add(candidate(name)) for name in ("seed", "source_order", "seed_stages4", "prefetch")]
        assert tickets[2].done and "294,912 bytes" in tickets[2].row.reason
        compiled = session.compiled(tickets)
        names = [(ticket.candidate.name, ticket.done, ticket.row.registers) for ticket in compiled]
    assert names == [
        ("seed_stages4", True, None),
        ("prefetch", False, 200),
        ("source_order", False, 200),
        ("seed", False, 200),
    ]
    assert [of.name for of in asked] == ["seed", "source_order", "prefetch"]


def test_one_is_verified_before_the_next_is_compiled() -> None:
    calls = []

    class Noting(Compilers):
        def compiled(self, of: Candidate) -> Compiled:
            calls.append(f"compile {of.name}")
            return super().compiled(of)

    with a_session(compilers=Noting()) as session:
        for ticket in session.compiled([session.add(candidate(name)) for name in ("seed", "prefetch")]):
            assert session.verify(ticket)
            calls.append(f"verify {ticket.candidate.name}")
    assert calls == ["compile seed", "verify seed", "compile prefetch", "verify prefetch"]


def test_a_session_that_ends_early_ends_what_is_still_compiled() -> None:
    compilers = Compilers()
    with pytest.raises(KeyboardInterrupt), a_session(compilers=compilers) as session:
        for _ in session.compiled([session.add(candidate(name)) for name in ("seed", "prefetch")]):
            raise KeyboardInterrupt
    assert compilers.ended


def test_rows_are_recorded_when_they_are_complete_and_not_before() -> None:
    rows: list[Row] = []
    wrong = {("verify", "prefetch"): (ErrorReport(1.0, 1.0, 2e-4, 2e-4, True), True)}
    with a_session(Gpu(wrong), rows.append) as session:
        tickets = [session.add(candidate(name)) for name in ("racing", "seed", "prefetch", "seed_stages4")]
        assert [row.name for row in rows] == ["seed_stages4"]
        assert len(list(session.compiled(tickets))) == 4
        assert [row.name for row in rows] == ["seed_stages4", "racing"]
        assert [session.verify(ticket) for ticket in tickets if not ticket.done] == [True, False]
        assert [row.name for row in rows] == ["seed_stages4", "racing", "prefetch"]
        session.time([ticket for ticket in tickets if not ticket.done])
    assert [row.status for row in rows] == ["refused", "refused", "wrong", "ok"]
    assert {row.seed for row in rows} == {1} and {id(row) for row in rows} == {id(ticket.row) for ticket in tickets}


def test_a_comparison_is_of_samples_taken_in_turn() -> None:
    rows: list[Row] = []
    gpu = Gpu(ms=lambda of: 1.8 if of.name == "prefetch" else 2.0)
    with a_session(gpu, rows.append) as session:
        ours, theirs = session.compiled([session.add(candidate("prefetch")), session.add(candidate("seed"))])
        assert session.verify(ours) and session.verify(theirs)
        session.time([ours, theirs], rounds=3, against={"prefetch": "seed"})
    found = ours.row.against
    assert gpu.named("sample")[:6] == ["matmul", "prefetch", "seed", "seed", "prefetch", "matmul"]
    assert found.ratios == (0.9, 0.9, 0.9) and found.incumbent == theirs.candidate.label
    assert [row.name for row in rows] == ["prefetch", "seed"] and theirs.row.against is None
    assert ours.row.median_ms == 1.8 and "3 rounds" in ours.row.method
    assert parse_line(Row, rows[0].to_json().encode(), "here") == rows[0]


def test_what_is_not_verified_is_not_timed() -> None:
    gpu = Gpu({("verify", "prefetch"): (GOOD, False)})
    with a_session(gpu) as session:
        [prefetch] = session.compiled([session.add(candidate("prefetch"))])
        assert not session.verify(prefetch)
        with pytest.raises(ValueError, match="prefetch float16 is not verified"):
            session.time([prefetch])
    assert gpu.named("sample") == []


def of(*ratios: float) -> RoundRatios:
    return RoundRatios("seed", "f757c4ee1c97", ratios)


def test_ratios_are_those_of_each_round() -> None:
    found = RoundRatios.of("seed", None, [1.0, 2.2, 0.9], [1.0, 2.0, 1.0])
    assert found.ratios == pytest.approx((1.0, 1.1, 0.9)) and found.ratio == 1.0


# The ranks are those of tables of the sign test, two-sided at 5 %.
@pytest.mark.parametrize("rounds, skipped", [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)])
def test_the_interval_leaves_out_as_many_as_the_sign_test_allows(rounds, skipped) -> None:
    ratios = [1 + number / 1000 for number in range(rounds)]
    random.Random(0).shuffle(ratios)
    assert of(*ratios).interval == (1 + skipped / 1000, 1 + (rounds - 1 - skipped) / 1000)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_few_rounds_tell_nothing(rounds) -> None:
    assert of(*[0.5] * rounds).interval is None


@pytest.mark.parametrize("rounds", [6, 7, 15])
def test_the_median_lies_in_the_interval_as_often_as_it_says(rounds) -> None:
    rng = random.Random(rounds)
    draws = [[rng.lognormvariate(0, 0.1) for _ in range(rounds)] for _ in range(4000)]
    inside = [low <= 1.0 <= high for low, high in (of(*draw).interval for draw in draws)]
    assert CONFIDENCE - 0.01 <= statistics.mean(inside) <= 0.995


@pytest.mark.gpu
@pytest.mark.alone
def test_the_same_code_entered_twice_compares_as_equal() -> None:
    shape = AttentionShape(2, 16, 8192, 8192, 128, "bfloat16")
    names = ("best", "best again", "seed")
    with Session(lambda row: None) as session:
        added = [session.add(Candidate(name, shape, Planned(shipped()[name.partition(" ")[0]]))) for name in names]
        tickets = {ticket.candidate.name: ticket for ticket in session.compiled(added) if session.verify(ticket)}
        best, again, slower = (tickets[name] for name in names)
        session.time(list(tickets.values()), rounds=15, against={"best again": "best", "seed": "best"})
    assert abs(again.row.against.ratio - 1) < 0.005 and again.row.against.fingerprint == best.row.fingerprint
    assert slower.row.against.interval[0] > 1.2
