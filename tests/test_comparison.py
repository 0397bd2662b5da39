"""What a comparison of two kernels says, and that it says nothing where the rounds do not."""

from __future__ import annotations

import random
import statistics

import pytest
from mutations import shipped

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.comparison import CONFIDENCE, Comparison
from tl_attention.measure.session import Session
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned


def of(*ratios: float) -> Comparison:
    return Comparison("seed", "f757c4ee1c97", ratios)


def test_ratios_are_those_of_each_round() -> None:
    found = Comparison.of("seed", None, [1.0, 2.2, 0.9], [1.0, 2.0, 1.0])
    assert found.ratios == pytest.approx((1.0, 1.1, 0.9)) and found.ratio == 1.0


# The ranks are those of tables of the sign test, two-sided at 5 %.
@pytest.mark.parametrize("rounds, skipped", [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)])
def test_the_interval_leaves_out_as_many_as_the_sign_test_allows(rounds, skipped) -> None:
    ratios = [1 + number / 1000 for number in range(rounds)]
    random.Random(0).shuffle(ratios)
    assert of(*ratios).interval == (1 + skipped / 1000, 1 + (rounds - 1 - skipped) / 1000)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_few_rounds_tell_nothing(rounds) -> None:
    assert of(*[0.5] * rounds).interval is None and not of(*[0.5] * rounds).is_faster


def test_faster_is_what_all_of_the_interval_says() -> None:
    assert of(*[0.99] * 6).is_faster and not of(*[1.0] * 6).is_faster
    # 15 rounds, whose fourth largest counts.
    assert of(*[0.99] * 12, 1.01, 1.01, 1.01).is_faster
    assert not of(*[0.99] * 11, *[1.01] * 4).is_faster


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
    with Session(lambda row: None) as session:
        for name in ("best", "best again", "seed"):
            session.add(Candidate(name, shape, Planned(shipped()[name.partition(" ")[0]])))
        tickets = {ticket.candidate.name: ticket for ticket in session.prepared() if session.verify(ticket)}
        again = session.compare(tickets["best again"], tickets["best"])
        slower = session.compare(tickets["seed"], tickets["best"])
    assert abs(again.ratio - 1) < 0.005 and again.fingerprint == tickets["best again"].row.fingerprint
    assert slower.interval[0] > 1.2 and not slower.is_faster
