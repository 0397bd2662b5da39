"""Proposals come from a thread, ahead of the compilers: each is judged first, and becomes a trial if it is legal."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from optuna.trial import Trial

from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.compilation import refusal_of
from tl_attention.lab.search.parameters import Parameters, Point
from tl_attention.lab.search.study import CHANGED, DRAWN, QUEUED, SAMPLED, Study
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.schedule import Schedule

# So many schedules are timed before the best of them are changed, where a person has queued some and where not, how
# many of the best are changed, and how many proposals of each kind come in turn then.
FIRST_BESIDE_QUEUED, FIRST_DRAWN, PARENTS = 8, 50, 8
TURNS = (CHANGED,) * 6 + (SAMPLED, DRAWN)
# How often the sampler is asked in its turn for something legal.
ASKS = 4
PROPOSED = "proposed before"
# How the reason of a trial begins that was refused; many such trials have no schedule.
REFUSED = "refused: "
# After so many refused draws the space is taken to be exhausted.
MOST_REFUSED = 20_000
# How often another draw follows a refused one whose refusal names a key.
ANOTHER = 0.1
# What is predicted prunes, but for one of ten.
UNPRUNED = 0.1
# How often a changed point has values of a second parent.
CROSSED = 0.25


class Proposal(NamedTuple):
    """A Proposal is a trial that was begun, its schedule's kernel, and where it came from."""

    trial: Trial
    candidate: Candidate
    source: str


class Proposals:
    """Proposals are judged in a thread of their own; `ahead` of them are made before they are taken.

    `queued` are schedules of a person, which come first and which the sampler sees too.
    """

    def __init__(
        self, study: Study, shape: AttentionShape, queued: Sequence[Schedule], rng: random.Random, ahead: int
    ) -> None:
        # By their source, and by the reason; what the sampler proposed is a trial, refused or not.
        self.judged, self.refused = (Counter[str](study.noted(name, {})) for name in ("judged", "refused"))
        self.is_done = False  # the space is exhausted, and all that was found is taken
        self._study, self._shape, self._rng, self._queued = study, shape, rng, queued
        self._parameters: Parameters = study.parameters
        self._seen = set[Schedule]()
        self._ended = threading.Event()
        self._thread, self._made = ThreadPoolExecutor(1), self._proposals()
        self._ahead, self._futures = ahead, deque[Future[Proposal | None]]()

    def __enter__(self) -> Proposals:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.shutdown(cancel_futures=True)

    @property
    def models(self) -> bool:
        """Says whether so many were timed that proposals follow them, and predictions may prune."""
        first = FIRST_BESIDE_QUEUED if self._queued else FIRST_DRAWN
        return len(self._study.timed) >= first

    def take(self) -> Proposal | None:
        """Returns the next proposal, None where none is ready, or none is left. Raises what ended the thread's work."""
        while len(self._futures) < self._ahead:
            self._futures.append(self._thread.submit(next, self._made, None))
        if not self._futures[0].done():
            return None
        found = self._futures.popleft().result()
        self.is_done = found is None
        return found

    def _proposals(self) -> Iterator[Proposal]:
        tried = (result for result in self._study.results if not result.reason.startswith(REFUSED))
        self._seen = {self._parameters.schedule(result.point) for result in tried}
        for trial, point in self._study.interrupted():
            yield from self._begun(trial, point)
        for schedule in self._queued:
            point = self._parameters.point(schedule)
            if isinstance(candidate := self._judged(point, QUEUED), Candidate):
                yield Proposal(self._study.add(point, QUEUED), candidate, QUEUED)
        turn = 0
        while not self._ended.is_set():
            source = TURNS[turn % len(TURNS)] if self.models else DRAWN
            turn += 1
            if source == SAMPLED:
                for _ in range(ASKS):
                    if found := [*self._begun(*self._study.ask())]:
                        yield from found
                        break
                continue
            point = self._parameters.drawn(self._rng) if source == DRAWN else self._changed()
            for _ in range(MOST_REFUSED):
                if self._ended.is_set():
                    return
                if isinstance(candidate := self._judged(point, source), Candidate):
                    # A schedule has many points, and one of its own.
                    own = self._parameters.point(candidate.ours.schedule)
                    yield Proposal(self._study.add(own, source), candidate, source)
                    break
                point = self._after(point, candidate) if source == DRAWN else self._changed()
            else:
                if source == DRAWN:
                    return

    def _begun(self, trial: Trial, point: Point) -> Iterator[Proposal]:
        """Yields the proposal of a trial that was begun before it was judged; a refused one has failed."""
        source = trial.user_attrs["source"]
        if isinstance(candidate := self._judged(point, source), Candidate):
            yield Proposal(trial, candidate, source)
        else:
            self._study.tell(trial, failed=True, reason=f"{REFUSED}{candidate}")

    def _judged(self, point: Point, source: str) -> Candidate | str:
        """Returns the kernel of a point's schedule, or why it is refused."""
        self.judged[source] += 1
        try:
            schedule = self._parameters.schedule(point)
            candidate = called("", self._shape, Planned(schedule))
        except ValueError as error:
            key, reason = first_error(error)
            reason = f"{dotted(key)}{reason}"
        else:
            reason = PROPOSED if schedule in self._seen else refusal_of(candidate)
            self._seen.add(schedule)
            if not reason and source != QUEUED and self._rng.random() >= UNPRUNED:
                reason = predicted_serial(candidate.ours)
        if not reason:
            return candidate
        if source != SAMPLED:
            # What is counted has no numbers.
            self.refused[re.split(r"[:,;]", re.sub(r"\b\d[\d,.]*", "n", reason))[0][:60]] += 1
        return reason

    def _after(self, point: Point, refusal: str) -> Point:
        """Returns a refused draw with the key drawn again that its refusal names, or at times another draw."""
        name = refusal.partition(":")[0].replace("split.", "chunks.")
        drawn = self._parameters.drawn(self._rng)
        return point | {name: drawn[name]} if name in drawn and self._rng.random() >= ANOTHER else drawn

    def _changed(self) -> Point:
        """Returns a point of one of the best trials with a few values changed, and others those of a second parent."""
        parents = self._study.timed[:PARENTS]
        points = [self._rng.choice(parents[: 1 + self._rng.randrange(len(parents))]).point for _ in "ab"]
        point = points[0]
        if self._rng.random() < CROSSED:
            point = {name: points[self._rng.random() < 0.5][name] for name in point}
        for name in self._rng.sample([*point], 1 + min(int(self._rng.expovariate(0.5)), 7)):
            point = point | {name: self._rng.choice(self._parameters.values[name])}
        return point


def predicted_serial(planned: Planned) -> str:
    """Returns why ptxas is likely to serialise a kernel's products, "" where it is not.

    Of 12 legal schedules that were drawn ptxas serialised those 10 in whose iterations the last product, whose
    accumulators the next iteration changes, is still in flight at the end.
    """
    flying: list[str] = []
    program = planned.program
    for op in program.phases.steady.operations if program else ():
        if op.statement not in planned.schedule.table.products:
            continue
        if op.kind == "issue":
            flying.append(op.statement)
        elif op.kind == "wait":
            del flying[: len(flying) - op.outstanding]
    last = planned.schedule.table.products[-1]
    return (
        f"{last} is in flight at the end of an iteration, expected a wait before: ptxas would serialise"
        if last in flying
        else ""
    )
