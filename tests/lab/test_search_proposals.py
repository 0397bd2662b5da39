"""Each proposal is legal, or refused with a reason; broods come from a person, draws, changes and the sampler."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from search_jobs import SHAPE, bred, many, opened, parameters, proposals, schedules, told
from tiers import exhaustive

from tl_attention.lab.measure.compilation import refusal_of
from tl_attention.lab.search import broods
from tl_attention.lab.search.broods import (
    CHANGES,
    IDEAS,
    NONE_LEGAL,
    Bred,
    Brood,
    Idea,
    Judge,
    number_of,
    predicted_serial,
)
from tl_attention.lab.search.changes import shifted
from tl_attention.lab.search.parameters import OF_ORDER
from tl_attention.lab.search.proposals import FIRST_DRAWN, NEIGHBOUR, TURNS
from tl_attention.lab.search.residuals import LEAST_POWER, MOST_POWER, Residuals
from tl_attention.lab.search.study import CHANGED, DRAWN, QUEUED, SAMPLED, Study, point_key
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import load

CPU_S, MANY, SAMPLES = 15, 10_000, 100


@pytest.fixture
def study(tmp_path) -> Study:
    """Returns a study that has timed so many schedules that the best are changed."""
    study = opened(tmp_path)
    for number, point in enumerate(many(FIRST_DRAWN)):
        told(study, point, verdict="faster" if number % 3 == 0 else "slower", value=number / 100, guessed_ms=1.0)
    return study


def hold(study: Study, goes_on: Callable[[int], bool]) -> None:
    """Asserts that each proposal is judged; a legal one's schedule has a point that is that schedule."""
    legal, rng, parents = 0, random.Random(1), tuple(result.point for result in study.timed)
    drawn = Judge(Brood("", DRAWN, SHAPE, parameters(), 1))
    changed = Judge(Brood("", CHANGED, SHAPE, parameters(), 1, parents=parents))
    while goes_on(drawn.judged + changed.judged):
        for judge, point in ((drawn, parameters().drawn(rng)), (changed, changed._change(changed._parent()))):
            if found := judge._judged(point):
                legal += 1
                schedule = found.candidate.ours.schedule
                again = parameters().schedule(parameters().point(schedule))
                assert again == schedule and not refusal_of(found.candidate) and found.guessed_ms
            else:
                assert judge.reason.strip()
    count = drawn.judged + changed.judged
    assert legal > count / 200 and count > 100
    assert (drawn.refused + changed.refused).total() == count - legal and all(drawn.refused)


def test_each_proposal_is_legal_or_refused_with_a_reason(study) -> None:
    begun = time.process_time()
    hold(study, lambda count: time.process_time() - begun < CPU_S)


@exhaustive
def test_each_of_many_proposals_is_legal_or_refused_with_a_reason(study) -> None:
    hold(study, lambda count: count < MANY)


@pytest.mark.parametrize("asked", [5, pytest.param(SAMPLES, marks=exhaustive)])
def test_what_the_sampler_proposes_is_a_trial_refused_or_not(study, asked) -> None:
    found = proposals(study)
    for _ in range(asked):
        brood = found.given(study.ask(), SAMPLED)
        one = bred(brood)
        assert found.take(brood, one)
        assert bool(one.candidate) == (not one.error) and one.judged == 1
    assert not found.refused and found.judged[SAMPLED] == asked, "these are counted as trials"


def test_a_persons_schedules_come_first_and_what_was_tried_does_not_come_again(tmp_path) -> None:
    study, (first, second, third, *_) = opened(tmp_path), schedules()
    told(study, parameters().point(first), QUEUED, reason="spills")
    left = point_key(parameters().point(third))
    assert study.claim(left, parameters().point(third), QUEUED)
    study.leases.leave({})
    found = proposals(opened(tmp_path), [first, second])
    made = [found.next() for _ in range(3)]
    assert [one.source for one in made] == [QUEUED] * 2 + [DRAWN] and made[0].keys == (left,)
    again, queued = [bred(one) for one in made[:2]]
    of = parameters().schedule, parameters().point
    assert [one.candidate and one.candidate.ours.schedule for one in (again, queued)] == [
        of[0](of[1](one)) for one in (third, second)
    ]
    assert all(map(found.take, made, (again, queued)))
    assert not found.take(made[2], queued), "what was found twice is told once"


def test_a_trial_that_was_ill_formed_does_not_end_the_next_search(tmp_path) -> None:
    study, rng = opened(tmp_path), random.Random(1)
    while True:
        point = parameters().drawn(rng)
        try:
            parameters().schedule(point)
        except ValueError:
            break
    told(study, point, SAMPLED, schedule=None, failed=True, reason="refused: the order has a circle")
    assert proposals(opened(tmp_path), schedules()[:1]).next().source == QUEUED


def test_after_the_first_draws_the_best_are_changed_and_the_sampler_is_asked(study) -> None:
    found = proposals(study)
    made = [found.next() for _ in range(len(TURNS))]
    assert tuple(NEIGHBOUR if one.neighbour else one.source for one in made) == TURNS
    assert all(one.source == CHANGED for one in made if one.neighbour)
    first, timed = made[0].parents[0], [result.point for result in study.timed]
    assert first == next(point for point in timed if found._kind(point) == found._kind(first))
    assert made[0].residuals and not made[-1].parents
    assert made[0].seen == {
        number_of(parameters().schedule(point)) for point in (result.point for result in study.results)
    }
    assert len({one.seed for one in made}) == len(made)


def test_of_a_broods_changes_that_which_looks_best_is_compiled(study, monkeypatch) -> None:
    brood, looked = proposals(study).next(), list[float]()
    looks = Residuals.looks
    monkeypatch.setattr(Residuals, "looks", lambda *of: looked.extend(looks(*of)) or looked[-1:])
    monkeypatch.setattr(broods, "UNPRUNED", 0.0)
    monkeypatch.setattr(broods, "MOST_S", 600.0)
    one = bred(brood)
    assert one.point and one.guessed_ms and len(looked) == CHANGES < one.judged
    assert looks(brood.residuals, [one.point], [one.guessed_ms]) == pytest.approx([min(looked)])
    of_ideas = looks(brood.residuals, [idea.point for idea in one.ideas], [idea.guessed_ms for idea in one.ideas])
    assert of_ideas == pytest.approx(sorted(looked)[1 : 1 + IDEAS])
    monkeypatch.setattr(broods, "UNPRUNED", 1.0)
    monkeypatch.setattr(broods, "FRESH", 0.0)
    looked.clear()
    bred(brood)
    assert len(looked) == 1, "whatever is predicted of it"
    looked.clear()
    other = bred(brood._replace(idea=one.point))
    assert len(looked) == 2 and other.point != one.point and [idea.point for idea in other.ideas] == [one.point]


def test_neighbours_of_the_best_tell_what_a_key_is_worth(study) -> None:
    found = proposals(study)
    brood = next(one for one in iter(found.next, None) if one.neighbour)
    best = study.parameters.point(study.parameters.schedule(brood.parents[0]))
    tried = [bred(brood._replace(seed=seed)).point for seed in range(6)]
    keys = [{name for name in best if best[name] != point[name]} for point in tried]
    assert len({*map(str, tried)}) > 3, "another one each time"
    for names in keys:
        own = {name for name in names if not name.startswith(OF_ORDER)}
        assert len(own) == 1, names


def test_ideas_are_for_broods_of_their_kind_until_they_are_tried(study) -> None:
    found, best = proposals(study), study.timed[0].point
    kept = [Idea(best | {"rank.exp": rank}, ms, -rank) for rank, ms in ((1, 0.2), (3, 0.1), (5, 0.3))]
    new = best | {"block_N": 48, "kernel.ping_pong": not best["kernel.ping_pong"]}
    drawn = Bred("refused", judged=1, candidate=None, ideas=(*kept, Idea(new, 1e-3, -7)))
    found.take(proposals(study).next(), drawn)
    # A kind that looks far better than all others, of which nothing was timed.
    brood = found.next()
    assert brood.idea == brood.parents[0] == new and study.timed[0].point in brood.parents
    ideas = [found.next().idea for _ in range(3 * len(TURNS))]
    assert [idea for idea in ideas if idea] == [kept[1].point, kept[0].point, kept[2].point]
    found.take(brood, drawn)
    found.saw([replace(study.timed[0], schedule=idea.number) for idea in drawn.ideas])
    assert not any(found.next().idea for _ in range(2 * len(TURNS)))


def test_a_space_in_which_nothing_is_legal_is_exhausted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(broods, "refusal_of", lambda candidate: "no")
    monkeypatch.setattr(broods, "MOST_REFUSED", 20)
    found = proposals(opened(tmp_path))
    brood = found.next()
    assert (one := bred(brood)).error == NONE_LEGAL and not found.take(brood, one) and found.is_done


def test_residuals_learn_what_predictions_are_wrong_by() -> None:
    """Predictions of points that share keys are wrong alike: here by 0.2 where warpgroups do not as the others do."""
    of = [parameters().point(load(name)) for name in ("best", "d64", "best_causal", "d256")]
    wide = [point | {"kernel.ping_pong": not point["kernel.ping_pong"]} for point in of]
    found = Residuals([*of, *wide], [1.0] * 4 + [1.2] * 4, [1.0] * 8)
    moved = of[0] | {"rank.exp": 3, "stage.exp": 1, "width.exp.0": 4}
    unlike = of[0] | {"block_N": 48, "kernel.cluster": 1, "kernel.output": "tma"}
    points = [of[0], wide[0], moved, unlike, of[0]]
    (ours, other, same, _, twice), deviations = found.expected(points, [math.e] * 4 + [2 * math.e])
    assert 1.0 <= ours < 1.1 < other <= 1.2
    assert same == ours, "where a statement stands is what predictions know"
    assert twice == pytest.approx(ours + math.log(2))
    assert deviations[3] > 2 * deviations[0] > 0
    assert found.looks(points, [math.e] * 5)[3] < found.looks(points, [math.e] * 5)[0], "it may be faster"
    lost = Residuals([*of, *wide], [1.0] * 4 + [1.2] * 4, [1.0] * 8, [unlike])
    (again, _, _, slow, _), _ = lost.expected(points, [math.e] * 5)
    assert slow > other + 0.2 and again < ours + 0.2, "what ptxas serialises is not proposed, nor what is like it"


@pytest.mark.parametrize("power, expected", [(0.8, 0.8), (0.1, LEAST_POWER), (3.0, MOST_POWER)])
def test_times_grow_with_a_power_of_predictions(power: float, expected: float) -> None:
    point, guesses = parameters().point(load("best")), [1.0, 1.5, 2.0]
    found = Residuals([point] * 3, [power * guess for guess in guesses], guesses)
    (first, second), _ = found.expected([point] * 2, [1.0, 10.0])
    assert second - first == pytest.approx(expected * math.log(10))


def test_a_shift_has_all_statements_from_one_on_lag_more() -> None:
    point = parameters().point(load("best"))
    moved = shifted(point, parameters(), "row_sum", 1)
    changed = {name.partition(".")[2].partition(".")[0] for name in point if moved[name] != point[name]}
    assert changed == {"row_sum", "cast", "rescale", "load_v", "mma1"} and moved["stage.mma1"] == 2
    assert shifted(moved, parameters(), "row_sum", -1) == point
    assert {shifted(point, parameters(), "load_k", 9)[f"stage.{name}"] for name in parameters().names} == {2}


def test_schedules_whose_products_ptxas_serialises_are_known() -> None:
    assert not predicted_serial(Planned(load("best")))
    assert predicted_serial(Planned(load("ws_source_order"))).startswith("mma1 is in flight at the end")
    point = parameters().point(load("best"))
    late = point | {"stage.exp.0": 1, "stage.exp.1": 0, "stage.row_sum": 1, "stage.cast": 1}
    assert predicted_serial(Planned(parameters().schedule(late))).startswith("exp works on two blocks")
