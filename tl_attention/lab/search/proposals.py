"""Proposals are broods: what a person queued comes first, then draws, and then changes of the best in most turns.

The best of all are soon alike. So points are of kinds, and a brood changes those of one kind: the better its best
looks, of what was timed and of what other broods have left, the more often.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from tl_attention.lab.search.broods import NONE_LEGAL, Bred, Brood, Idea, number_of
from tl_attention.lab.search.parameters import Point
from tl_attention.lab.search.residuals import Residuals
from tl_attention.lab.search.study import CHANGED, DRAWN, QUEUED, SAMPLED, Result, Study, point_key
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.schedule import Schedule

# So many schedules are timed before the best of them are changed, where a person has queued some and where not, and
# which broods come in turn then.
FIRST_BESIDE_QUEUED, FIRST_DRAWN = 4, 24
NEIGHBOUR = "changed in one key"
TURNS = (CHANGED,) * 4 + (NEIGHBOUR,) * 2 + (SAMPLED, DRAWN)
# Points are of a kind that share these, and the blocks by which the last product lags behind the first.
APART = ("block_M", "block_N", "kernel.ping_pong")
# How many of a kind, and of other kinds the best, a brood may change, and how many ideas of a kind are kept.
OF_KIND, OF_OTHERS, MOST_IDEAS = 4, 8, 6
# A kind whose best looks slower by this, as a logarithm, has its turn 1/e as often.
BEHIND = 0.03
# So many of the best timed, and of the last lost, say what predictions are wrong by: the time grows with the third
# power.
MOST_RESIDUALS, MOST_LOST = 800, 400
# How the reason of a trial begins that was refused, whose products ptxas serialised, and that spills. Many that were
# refused have no schedule.
REFUSED, SERIALISED, SPILLS = "refused: ", "ptxas serialised the products", "spills"
LOST = (SERIALISED, SPILLS)
Kind = tuple[object, ...]


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
        self._ideas: dict[Kind, list[Idea]] = {}
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
        if len(self._study.timed) < self._first:
            return self._brood(DRAWN)
        kind, self._turn = TURNS[self._turn % len(TURNS)], self._turn + 1
        if kind == SAMPLED:
            return self.given(self._study.ask(), SAMPLED)
        return self._brood(DRAWN) if kind == DRAWN else self._of_a_kind(kind == NEIGHBOUR)

    def take(self, brood: Brood, bred: Bred) -> bool:
        """Counts what a brood has judged, and says whether something of it is new."""
        self.judged[brood.source] += bred.judged
        if brood.source != SAMPLED:
            self.refused += bred.refused
        self.is_done |= brood.source == DRAWN and bred.error == NONE_LEGAL
        for idea in bred.ideas:
            self._ideas.setdefault(self._kind(idea.point), []).append(idea)
        if bred.candidate is None:
            return brood.given is not None
        number = number_of(bred.candidate.ours.schedule)
        is_new = number not in self._seen
        self._seen.add(number)
        return is_new or brood.given is not None

    def _kind(self, point: Point) -> Kind:
        first, *_, last = self._study.parameters.table.products
        return *(point.get(name) for name in APART), point[f"stage.{last}"] - point[f"stage.{first}"]

    def _of_a_kind(self, neighbour: bool) -> Brood:
        """Returns a brood that changes the best of one kind, with the idea of this kind that looks best."""
        residuals, timed = self._residuals(), dict[Kind, list[Result]]()
        for result in self._study.timed:
            timed.setdefault(self._kind(result.point), []).append(result)
        best = {kind: -results[0].value for kind, results in timed.items()}
        if residuals:
            for kind, looks in self._sorted_ideas(residuals).items():
                best[kind] = min(best.get(kind, math.inf), looks)
        least = min(best.values())
        weights = [math.exp((least - looks) / BEHIND) for looks in best.values()]
        kind = self._rng.choices([*best], weights)[0]
        if neighbour and kind in timed:
            return self._brood(CHANGED)._replace(parents=(timed[kind][0].point,), neighbour=True)
        others = [results[0].point for other, results in timed.items() if other != kind]
        parents = [result.point for result in timed.get(kind, [])[:OF_KIND]]
        idea = self._ideas[kind].pop(0).point if self._ideas.get(kind) else None
        parents += [idea] if idea and not parents else []
        brood = self._brood(CHANGED)._replace(parents=(*parents, *others[:OF_OTHERS]), idea=idea)
        return brood._replace(residuals=residuals)

    def _sorted_ideas(self, residuals: Residuals) -> dict[Kind, float]:
        """Sorts each kind's ideas by how fast they look now, and returns how fast the first of each looks."""
        best: dict[Kind, float] = {}
        for kind, ideas in self._ideas.items():
            new = {idea.number: idea for idea in ideas if idea.number not in self._seen}
            if new:
                points, guessed_ms, _ = zip(*new.values())
                order = sorted(zip(residuals.looks(points, guessed_ms), new))
                best[kind] = order[0][0]
                ideas[:] = [new[number] for _, number in order[:MOST_IDEAS]]
            else:
                ideas.clear()
        return best

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
        of = [result for result in self._study.timed if result.guessed_ms is not None][:MOST_RESIDUALS]
        lost = [result.point for result in self._study.results if result.reason.startswith(LOST)][-MOST_LOST:]
        guesses = [math.log(result.guessed_ms or 1.0) for result in of]
        times = [-result.value for result in of]
        return Residuals([result.point for result in of], times, guesses, lost) if of else None
