"""Each proposal is legal, or is refused with a reason, and the good ones become trials ahead of the compilers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
from search_jobs import SHAPE, opened, parameters, points, proposals, schedules, told
from tiers import exhaustive

from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import refusal_of
from tl_attention.lab.search import proposals as module
from tl_attention.lab.search.parameters import Point
from tl_attention.lab.search.proposals import FIRST_DRAWN, PROPOSED, Proposal, Proposals, predicted_serial
from tl_attention.lab.search.study import CHANGED, DRAWN, QUEUED, SAMPLED, Study
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import load

CPU_S, MANY, SAMPLES = 15, 10_000, 100


@pytest.fixture
def study(tmp_path) -> Study:
    """Returns a study that has timed so many schedules that the sampler models them."""
    study = opened(tmp_path)
    for number, point in zip(range(FIRST_DRAWN), 2 * points()):
        told(study, point, verdict="faster" if number % 3 == 0 else "slower", value=number / 100)
    return study


def drawn(study: Study) -> Iterator[tuple[Point, str]]:
    found, rng = proposals(study), random.Random(1)
    while True:
        for source, point in ((DRAWN, parameters().drawn(rng)), (CHANGED, found._changed())):
            yield point, source


def hold(study: Study, goes_on: Callable[[int], bool]) -> None:
    """Asserts that each proposal is judged; a legal one's schedule has a point that is that schedule."""
    found, legal, count = proposals(study), 0, 0
    for point, source in drawn(study):
        if not goes_on(count):
            break
        count += 1
        judged = found._judged(point, source)
        if isinstance(judged, Candidate):
            legal += 1
            schedule = judged.ours.schedule
            again = parameters().schedule(parameters().point(schedule))
            assert again == schedule and not refusal_of(judged)
        else:
            assert judged.strip()
    assert legal > count / 200 and found.judged[DRAWN] + found.judged[CHANGED] == count > 100
    assert found.refused.total() == count - legal and all(found.refused)


def test_each_proposal_is_legal_or_refused_with_a_reason(study) -> None:
    begun = time.process_time()
    hold(study, lambda count: time.process_time() - begun < CPU_S)


@exhaustive
def test_each_of_many_proposals_is_legal_or_refused_with_a_reason(study) -> None:
    hold(study, lambda count: count < MANY)


@pytest.mark.parametrize("asked", [5, pytest.param(SAMPLES, marks=exhaustive)])
def test_what_the_sampler_proposes_is_a_trial_refused_or_not(study, asked) -> None:
    found, before = proposals(study), len(study.results)
    for _ in range(asked):
        trial, point = study.ask()
        begun = [*found._begun(trial, point)]
        if begun:
            assert begun == [Proposal(trial, begun[0].candidate, SAMPLED)] and not refusal_of(begun[0].candidate)
            study.tell(trial, reason="spills")
    after = study.results[before:]
    assert len(after) == asked and {result.source for result in after} == {SAMPLED}
    assert all(result.reason == "spills" or (result.failed and result.reason[9:]) for result in after)
    assert not found.refused, "these are counted as trials"


def taken(found: Proposals, count: int) -> list[Proposal]:
    """Returns the next proposals of a thread that runs."""
    taken: list[Proposal] = []
    while len(taken) < count:
        if proposal := found.take():
            taken.append(proposal)
        else:
            time.sleep(0.01)
    return taken


def test_a_persons_schedules_come_first_and_what_was_tried_does_not_come_again(tmp_path) -> None:
    study, (first, second, third, *_) = opened(tmp_path), schedules()
    told(study, parameters().point(first), QUEUED, reason="spills")
    interrupted = study.add(parameters().point(third), QUEUED).number
    study = opened(tmp_path)
    with proposals(study, [first, second, third]) as found:
        again, queued, other = taken(found, 3)
    of = parameters().schedule, parameters().point
    assert [one.candidate.ours.schedule for one in (again, queued)] == [of[0](of[1](one)) for one in (third, second)]
    assert (again.source, queued.source, other.source) == (QUEUED, QUEUED, DRAWN) and again.trial.number > interrupted
    assert found.refused[PROPOSED] >= 2


def test_a_trial_that_was_ill_formed_does_not_end_the_next_search(tmp_path) -> None:
    study, rng = opened(tmp_path), random.Random(1)
    while True:
        point = parameters().drawn(rng)
        try:
            parameters().schedule(point)
        except ValueError:
            break
    told(study, point, SAMPLED, failed=True, reason="refused: the order has a circle")
    with proposals(opened(tmp_path), schedules()[:1]) as found:
        assert taken(found, 1)[0].source == QUEUED


def test_after_the_first_draws_the_best_are_changed_and_the_sampler_is_asked(study, monkeypatch) -> None:
    monkeypatch.setattr(Proposals, "_judged", lambda self, point, source: self.judged.update([source]) or CANDIDATE)
    with proposals(study) as found:
        sources = [proposal.source for proposal in taken(found, 8)]
    assert sources == [CHANGED] * 6 + [SAMPLED, DRAWN]


CANDIDATE = Candidate("", SHAPE, Planned(schedules()[0]))


def test_what_ended_the_thread_is_raised_where_proposals_are_taken(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "refusal_of", lambda candidate: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        with proposals(opened(tmp_path), schedules()[:1]) as found:
            taken(found, 1)


def test_no_more_are_proposed_than_wait(tmp_path) -> None:
    study = opened(tmp_path)
    with proposals(study, schedules()) as found:
        taken(found, 1)
        while not all(future.done() for future in found._futures):
            time.sleep(0.01)
        assert len(found._futures) == 3
    assert opened(tmp_path).results == [] and len([*opened(tmp_path).interrupted()]) == 4


def test_a_schedule_whose_last_product_stays_in_flight_is_predicted_to_be_serialised() -> None:
    assert not predicted_serial(Planned(load("best")))
    assert predicted_serial(Planned(load("ws_source_order"))).startswith("mma1 is in flight at the end")
