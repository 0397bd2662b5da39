"""A brood is proposed, judged and compiled in a process of its own.

Its points are one that is given, one that is drawn until it is legal, a neighbour of the best, or changes of the best
of a kind. Of changes that one is compiled which a sketch of its code predicts to be the fastest; the next best are
ideas for later broods.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.compilation import Compiled, compile_candidate, refusal_of
from tl_attention.lab.model.machine import load
from tl_attention.lab.model.prediction import guess, predict
from tl_attention.lab.search.cells import each, mean_ms
from tl_attention.lab.search.changes import effective, shifted
from tl_attention.lab.search.parameters import OF_ORDER, Parameters, Point
from tl_attention.lab.search.residuals import Residuals
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.schedule import Schedule

PROPOSED, NONE_LEGAL = "proposed before", "none of a brood is legal"
# How many legal changes of the best a brood has, how long it makes and judges them at most, and how many are kept of
# those that are not compiled.
CHANGES, MOST_S, IDEAS = 16, 5.0, 4
# How often a brood has a single legal change, whatever is predicted of it.
UNPRUNED = 0.1
# How often a schedule is compiled whose products ptxas is likely to serialise, and how often another draw follows a
# refused one whose refusal names a key.
LIKELY_SERIAL, ANOTHER = 0.02, 0.1
# After so many refused draws the space is taken to be exhausted.
MOST_REFUSED = 10_000
# How often a changed point has values of a second parent, how often statements are shifted in it, how often it changes
# the best of its brood again, and how often a brood begins at a draw.
CROSSED, SHIFTED, AGAIN, FRESH = 0.25, 0.25, 0.5, 0.15


class Brood(NamedTuple):
    """A Brood says what a process proposes for a problem, and from what."""

    name: str
    source: str
    shape: AttentionShape
    parameters: Parameters
    seed: int
    given: Point | None = None  # that alone is judged
    keys: tuple[str, ...] = ()  # of what this worker holds for it
    parents: tuple[Point, ...] = ()  # the best, which are changed; without any a point is drawn
    idea: Point | None = None  # of an earlier brood, which is judged beside the changes
    neighbour: bool = (
        False  # the best is changed in one key alone, whatever is predicted: this tells what the key is worth
    )
    residuals: Residuals | None = None  # what predictions of others were wrong by
    seen: frozenset[int] = frozenset()  # what was proposed before, by `number_of`
    others: tuple[AttentionShape, ...] = ()  # other problems, which a schedule must serve too


class Idea(NamedTuple):
    """An Idea is a legal point of which nothing was compiled."""

    point: Point
    guessed_ms: float
    number: int  # of its schedule, as `number_of` has it


@dataclass(frozen=True)
class Bred(Compiled):
    """A Bred is what came of a brood: its compiled candidate and this one's own point, or why there is none."""

    point: Point | None = None
    candidate: Candidate | None = None
    guessed_ms: float | None = None  # before it was compiled
    cells_ms: tuple[float, ...] = ()  # predicted, of each of several problems
    ideas: tuple[Idea, ...] = ()  # those of the brood that look best, beside it
    judged: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # how often, by the reason without numbers


def compile_and_predict(candidate: Candidate) -> Compiled:
    """Compiles a candidate into the store, and returns the outcome with the model's time, where there is one."""
    compiled = compile_candidate(candidate)
    if compiled.report is None:
        return compiled
    try:
        return replace(compiled, predicted_ms=predict(candidate, load()).ms)
    except InputError:
        return compiled


def bred(brood: Brood, compile: Callable[[Candidate], Compiled] = compile_and_predict) -> Bred:
    """Proposes a brood's points, judges them, and compiles one; `error` says why where none is legal."""
    judge = Judge(brood)
    legal = judge.chosen()
    told: dict[str, Any] = {"judged": judge.judged, "refused": judge.refused, "ideas": judge.ideas}
    if legal is None:
        return Bred(status="refused", error=judge.reason if brood.given else NONE_LEGAL, **told)
    compiled, told["cells_ms"] = _compiled(legal.candidate, brood.others, compile)
    return Bred(**vars(compiled) | told | {name: getattr(legal, name) for name in ("point", "candidate", "guessed_ms")})


def _compiled(
    candidate: Candidate, others: Sequence[AttentionShape], compile: Callable[[Candidate], Compiled]
) -> tuple[Compiled, tuple[float, ...]]:
    """Compiles a candidate for its problem and others; what is returned has the machine code of all, and its times."""
    found = [compile(one) for one in each(candidate, others)]
    failed = next((one for one in found if one.report is None), None)
    if failed or len(found) == 1:
        return failed or found[0], ()
    reports = [one.report for one in found if one.report]
    codes = [*dict.fromkeys(report.machine_code or "" for report in reports)]
    name = codes[0] if len(codes) == 1 else hashlib.sha256(" ".join(codes).encode()).hexdigest()
    report = replace(reports[0], machine_code=name, stack_bytes=max(report.stack_bytes for report in reports))
    times = tuple(one.predicted_ms for one in found if one.predicted_ms is not None)
    known = len(times) == len(found)
    return replace(found[0], report=report, predicted_ms=mean_ms(times) if known else None), times if known else ()


def number_of(schedule: Schedule) -> int:
    """Returns a number that every process has for a schedule."""
    return zlib.crc32(schedule.model_dump_json().encode())


class _Legal(NamedTuple):
    """A _Legal is a candidate that may be compiled."""

    candidate: Candidate
    point: Point  # its own: a schedule has many
    guessed_ms: float | None
    looks: float  # the lower, the faster it looks

    @property
    def idea(self) -> Idea:
        return Idea(self.point, self.guessed_ms or math.inf, number_of(self.candidate.ours.schedule))


class Judge:
    """A Judge proposes the points of one brood, and says which are legal."""

    def __init__(self, brood: Brood) -> None:
        self._brood, self._parameters, self._rng = brood, brood.parameters, random.Random(brood.seed)
        self._seen = {*brood.seen}
        self.judged, self.refused, self.reason = 0, Counter[str](), ""
        self.ideas: tuple[Idea, ...] = ()

    def chosen(self) -> _Legal | None:
        """Returns what of the brood shall be compiled, None where nothing is legal."""
        if self._brood.given is not None:
            return self._judged(self._brood.given)
        if not self._brood.parents:
            return self._drawn()
        if self._brood.neighbour:
            return self._neighbour()
        is_pruned = self._rng.random() >= UNPRUNED
        found = self._changed(CHANGES if is_pruned else 1)
        if not found:
            return None
        chosen = min(found, key=lambda one: one.looks) if is_pruned else found[-1]
        left = sorted((one for one in found if one is not chosen and one.guessed_ms), key=lambda one: one.looks)
        self.ideas = tuple(one.idea for one in left[:IDEAS])
        return chosen

    def _drawn(self) -> _Legal | None:
        point = self._parameters.drawn(self._rng)
        for _ in range(MOST_REFUSED):
            if legal := self._judged(point):
                return legal
            point = self._after(point)
        return None

    def _after(self, point: Point) -> Point:
        """Returns a refused draw with the key drawn again that its refusal names, or at times another draw."""
        name = self.reason.partition(":")[0].replace("split.", "chunks.")
        drawn = self._parameters.drawn(self._rng)
        return point | {name: drawn[name]} if name in drawn and self._rng.random() >= ANOTHER else drawn

    def _neighbour(self) -> _Legal | None:
        """Returns the best with another value of one key that says no place in the order, the first that is legal."""
        best, values = self._brood.parents[0], self._parameters.values
        keys = [name for name in best if not name.startswith(OF_ORDER)]
        others = [{name: value} for name in keys for value in values[name] if value != best[name]]
        self._rng.shuffle(others)
        return next((legal for other in others if (legal := self._judged(best | other))), None)

    def _changed(self, most: int) -> list[_Legal]:
        """Returns the brood's idea, if it is legal still, and behind it so many legal changes of the best."""
        until, found = time.monotonic() + MOST_S, list[_Legal]()
        if self._brood.idea and (legal := self._judged(self._brood.idea)):
            found.append(legal)
            most += 1
        if self._rng.random() < FRESH and (legal := self._drawn()):
            found.append(legal)
        while len(found) < most and self.judged < MOST_REFUSED and (time.monotonic() < until or not found):
            again = found and self._rng.random() < AGAIN
            point = min(found, key=lambda one: one.looks).point if again else self._parent()
            if legal := self._judged(self._change(point)):
                found.append(legal)
        return found

    def _parent(self) -> Point:
        parents = self._brood.parents
        return self._rng.choice(parents[: 1 + self._rng.randrange(len(parents))])

    def _change(self, point: Point) -> Point:
        """Returns a point with a few values changed, at times more: those of a second parent, or statements shifted."""
        placed = self._parameters.schedule(point).statements
        if self._rng.random() < CROSSED:
            other = self._parent()
            point = {name: (point, other)[self._rng.random() < 0.5][name] for name in point}
        if self._rng.random() < SHIFTED:
            first = self._rng.choice([name for name in self._parameters.names if name in placed])
            point = shifted(point, self._parameters, first, self._rng.choice((-1, 1)))
        names = effective(point, placed)
        for name in self._rng.sample(names, 1 + min(int(self._rng.expovariate(0.5)), 7)):
            point = point | {name: self._rng.choice(self._parameters.values[name])}
        return point

    def _judged(self, point: Point) -> _Legal | None:
        """Returns the kernel of a point's schedule, None where it is refused for `self.reason`."""
        self.judged += 1
        try:
            schedule = self._parameters.schedule(point)
            candidate = called("", self._brood.shape, Planned(schedule))
        except ValueError as error:
            key, reason = first_error(error)
            self.reason = f"{dotted(key)}{reason}"
        else:
            number = number_of(schedule)
            of_each = map(refusal_of, each(candidate, self._brood.others))
            self.reason = PROPOSED if number in self._seen else next(filter(None, of_each), "")
            self._seen.add(number)
            if not self.reason and self._brood.given is None and self._rng.random() >= LIKELY_SERIAL:
                self.reason = predicted_serial(candidate.ours)
        if not self.reason:
            return self._legal(candidate)
        # What is counted has no numbers.
        self.refused[re.split(r"[:,;]", re.sub(r"\b\d[\d,.]*", "n", self.reason))[0][:60]] += 1
        return None

    def _legal(self, candidate: Candidate) -> _Legal:
        point, residuals = self._parameters.point(candidate.ours.schedule), self._brood.residuals
        try:
            ms = mean_ms([guess(one, load()) for one in each(candidate, self._brood.others)])
        except InputError:
            return _Legal(candidate, point, None, math.inf)
        looks = residuals.looks([point], [ms])[0] if residuals else math.log(ms)
        return _Legal(candidate, point, ms, looks)


def predicted_serial(planned: Planned) -> str:
    """Returns why ptxas is likely to serialise a kernel's products, "" where it is not.

    Of 250 legal schedules that a search compiled ptxas serialised 33 of 34 in whose iterations the last product, whose
    accumulators the next iteration changes, is still in flight at the end; all of 41 that compute the exponentials of a
    block in two iterations; and 13 of 19 that rescale the accumulators in two iterations.
    """
    program = planned.program
    operations = program.phases.steady.operations if program else ()
    flying: list[str] = []
    lags: dict[str, set[int]] = {}
    for op in operations:
        if op.kind == "run":
            lags.setdefault(whole(op.statement), set()).add(op.lag)
        elif op.statement in planned.schedule.table.products:
            if op.kind == "issue":
                flying.append(op.statement)
            elif op.kind == "wait":
                del flying[: len(flying) - op.outstanding]
    last = planned.schedule.table.products[-1]
    if last in flying:
        return f"{last} is in flight at the end of an iteration, expected a wait before: ptxas would serialise"
    for statement in ("exp", "rescale"):
        if len(lags.get(statement, ())) > 1:
            return f"{statement} works on two blocks in an iteration, expected one: ptxas would serialise"
    return ""
