"""Proposals are broods: what a person queued comes first, then draws, and then changes of the best in most turns."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from tl_attention.lab.search.broods import NONE_LEGAL, Bred, Brood, number_of
from tl_attention.lab.search.parameters import Point
from tl_attention.lab.search.residuals import Residuals
from tl_attention.lab.search.study import CHANGED, DRAWN, QUEUED, SAMPLED, Result, Study, point_key
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.schedule import Schedule

# So many schedules are timed before the best of them are changed, where a person has queued some and where not, how
# many of the best are changed, and which kinds of brood come in turn then.
FIRST_BESIDE_QUEUED, FIRST_DRAWN, PARENTS = 4, 24, 12
TURNS = (CHANGED,) * 6 + (SAMPLED, DRAWN)
# Of schedules that share these one is changed, the best: the best of all are soon alike.
APART = ("block_M", "block_N", "kernel.ping_pong")
# So many of the best timed say what predictions are wrong by: the time grows with the third power.
MOST_RESIDUALS = 1000
# How the reason of a trial begins that was refused; many such trials have no schedule.
REFUSED = "refused: "


class Proposals:
    """Proposals gives broods, and keeps count of what was judged in them.

    `queued` are schedules of a person, which come first and which the sampler sees too. Of several workers that are
    given the same ones, one tries each.
    """

    def __init__(self, study: Study, shape: AttentionShape, queued: Sequence[Schedule], rng: random.Random) -> None:
        # By the source, and by the reason; what the sampler proposed is a trial, refused or not.
        self.judged, self.refused = Counter[str](), Counter[str]()
        self.is_done = False  # the space is exhausted
        self._study, self._shape, self._rng = study, shape, rng
        self._queued, self._made, self._turn = [*queued], 0, 0
        self._seen: set[int] = set()
        self.saw(study.results)

    def saw(self, results: Iterable[Result]) -> None:
        """Takes over what was tried, so that it is not proposed again."""
        self._seen |= {result.schedule for result in results if result.schedule is not None}

    def next(self) -> Brood:
        """Returns the next brood: what a worker held that is gone, or one of this worker's own."""
        for source, point, key in self._study.orphaned():
            return self.given(point, source, (key,))
        while self._queued:
            point = self._study.parameters.point(self._queued.pop(0))
            if key := self._study.claim(point_key(point), point, QUEUED):
                return self.given(point, QUEUED, (key,))
        parents = [] if len(self._study.timed) < self._first else self._parents()
        source = DRAWN
        if parents:
            source, self._turn = TURNS[self._turn % len(TURNS)], self._turn + 1
        if source == SAMPLED:
            return self.given(self._study.ask(), SAMPLED)
        brood = self._brood(source)
        if source == DRAWN:
            return brood
        return brood._replace(parents=tuple(parents), residuals=self._residuals())

    def take(self, brood: Brood, bred: Bred) -> bool:
        """Counts what a brood has judged, and says whether something of it is new."""
        self.judged[brood.source] += bred.judged
        if brood.source != SAMPLED:
            self.refused += bred.refused
        self.is_done |= brood.source == DRAWN and bred.error == NONE_LEGAL
        if bred.candidate is None:
            return brood.given is not None
        number = number_of(bred.candidate.ours.schedule)
        is_new = number not in self._seen
        self._seen.add(number)
        return is_new or brood.given is not None

    def _parents(self) -> list[Point]:
        """Returns points that were timed, the best of each kind, best first."""
        best: dict[tuple[object, ...], Point] = {}
        for result in self._study.timed:
            best.setdefault(tuple(result.point.get(name) for name in APART), result.point)
        return [*best.values()][:PARENTS]

    @property
    def _first(self) -> int:
        queued = any(result.source == QUEUED for result in self._study.timed)
        return FIRST_BESIDE_QUEUED if queued else FIRST_DRAWN

    def _brood(self, source: str) -> Brood:
        self._made += 1
        seed, seen, others = self._rng.getrandbits(32), frozenset(self._seen), self._study.others
        name = f"brood {self._made}"
        return Brood(name, source, self._shape, self._study.parameters, seed, seen=seen, others=others)

    def given(self, point: Point, source: str, keys: tuple[str, ...] = ()) -> Brood:
        """Returns the brood of one point alone, for which this worker holds these keys."""
        return self._brood(source)._replace(given=point, keys=keys)

    def _residuals(self) -> Residuals | None:
        def known(result: Result) -> bool:
            return result.guessed_ms is not None

        of = [*filter(known, self._study.timed)][:MOST_RESIDUALS]
        guesses = [math.log(result.guessed_ms or 1.0) for result in of]
        return Residuals([result.point for result in of], [-result.value for result in of], guesses) if of else None
