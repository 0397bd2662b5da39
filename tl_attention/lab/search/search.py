"""A search has broods bred ahead of the GPU, leaves out what cannot win, and has the others race with the best."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from tl_attention.lab.measure.bench import MOST_STACK_BYTES
from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.compilation import Compiled, Compilers
from tl_attention.lab.search.broods import Bred, Brood, bred, number_of
from tl_attention.lab.search.cells import excess
from tl_attention.lab.search.parameters import Point
from tl_attention.lab.search.proposals import REFUSED, SERIALISED, SPILLS, Proposals
from tl_attention.lab.search.study import Result, Study
from tl_attention.lab.search.timers import CandidateFailed, Incumbent, Raced, Timer
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

# Broods that wait for a process, beside one in each: a race takes less time than breeding.
WAITING = 2
# Cores for what launches kernels and must not be late, and for what tells the study.
FREE_CORES = 2
POLL_S = 0.05

# The brood of what another worker found to be the best, and the claim of who times the first one.
ADOPTED, FIRST = "adopted", "first"
# So many reasons of refusals each worker tells of.
MOST_REASONS = 100


class _Race(NamedTuple):
    """A _Race is of a candidate, on the GPU."""

    candidate: Candidate
    brood: Brood
    bred: Bred
    incumbent: Incumbent | None
    raced: Future[Raced]


class Search:
    """A Search goes on with a study, whose trials it tells one by one, as other workers may at the same time."""

    def __init__(
        self,
        study: Study,
        shape: AttentionShape,
        timer: Timer,
        proposals: Proposals,
        breed: Callable[[Brood], Compiled] = bred,
    ) -> None:
        self._study, self._shape, self._timer, self._proposals, self._breed = study, shape, timer, proposals, breed
        self._seen = {result.machine_code for result in study.results}
        self.incumbent = next((Incumbent(kernel_of(study, shape, best), best) for best in study.timed[:1]), None)
        self._adopted = self.incumbent and self.incumbent.result
        self._is_first = self._waits = False
        # Seconds of search before this one, of whoever has searched longest.
        self._before_s: float = max((worker.told.get("seconds", 0.0) for worker in study.workers()), default=0.0)
        self._passed_s = 0.0

    def run(self, seconds: float, told: Callable[[float], object]) -> None:
        """Goes on for so many seconds, or until the space is exhausted, and tells every moment how many have passed.

        CallFailed is raised where the machine fails. What a person queued or was to be raced, and is not told at the
        end, another search or the next one takes over.
        """
        begun = time.monotonic()
        # The cores that this process may use: several workers of a host share the others.
        processes = max(1, len(os.sched_getaffinity(0)) - FREE_CORES)
        # A race has a thread of its own: it does not wait while the sampler thinks.
        with Compilers[Brood](self._breed, processes=processes) as breeders, ThreadPoolExecutor(1) as gpu:
            ready, race = deque[tuple[Brood, Bred]](), None
            while (passed := time.monotonic() - begun) < seconds:
                self._passed_s = passed
                if self._study.leases.is_due:
                    self._beat(breeders)
                while breeders.waiting < breeders.processes + WAITING and not self._proposals.is_done:
                    breeders.submit(self._proposals.next())
                if not breeders.waiting:
                    time.sleep(POLL_S)
                for brood, one in breeders.take(POLL_S):
                    # A process that hangs or dies gives what compilers give.
                    found = one if isinstance(one, Bred) else Bred(**vars(one))
                    if brood.source == ADOPTED:
                        self._adopt(found)
                    else:
                        ready.append((brood, found))
                if race and race.raced.done():
                    self._end(race)
                    race = None
                while ready and not race and self._may_race:
                    race = self._begun(*ready.popleft(), gpu)
                told(passed)
                if self._proposals.is_done and not (breeders.waiting or ready or race):
                    break
            if race:
                # It is timed to its end anyway.
                self._end(race)

    @property
    def told(self) -> dict[str, Any]:
        """Returns what this worker tells the others, and the page, of itself."""
        refused = dict(self._proposals.refused.most_common(MOST_REASONS))
        seconds = {"seconds": self._before_s + self._passed_s, "spent": self._passed_s}
        return {**seconds, "judged": self._proposals.judged, "refused": refused}

    def _beat(self, breeders: Compilers[Brood]) -> None:
        """Says that this worker lives, and takes over what others have found."""
        self._waits = False
        self._study.leases.beat(self.told)
        self._learn(self._study.refresh())
        if (best := next(iter(self._study.timed), None)) and best is not self._adopted:
            self._adopted = best
            if not self.incumbent or best.value > self.incumbent.result.value:
                # It is compiled here beside the races, not in one.
                breeders.submit(self._proposals.given(best.point, ADOPTED)._replace(seen=frozenset()))

    def _learn(self, results: Sequence[Result]) -> None:
        self._seen |= {result.machine_code for result in results}
        self._proposals.saw(results)

    @property
    def _may_race(self) -> bool:
        """Says whether there is an incumbent, or else whether this worker is the one that times the first."""
        if not self.incumbent and not self._is_first and not self._waits:
            self._is_first = not self._study.timed and bool(self._study.claim(FIRST))
            self._waits = not self._is_first
        return bool(self.incumbent) or self._is_first

    def _begun(self, brood: Brood, one: Bred, gpu: ThreadPoolExecutor) -> _Race | None:
        """Begins the race of what was bred, or tells the study why it does not race."""
        if not self._proposals.take(brood, one) or not (point := brood.given or one.point):
            return None
        if one.candidate is None and one.status == "refused":
            self._tell(brood, one, failed=True, reason=f"{REFUSED}{one.error}")
        elif one.candidate is None or one.report is None:
            what = SERIALISED if one.error.startswith(SERIALISED) else f"{one.status} when compiled"
            self._tell(brood, one, failed=True, reason=f"{what}: {one.error}")
        elif one.report.stack_bytes > MOST_STACK_BYTES:
            self._tell(brood, one, reason=SPILLS)
        elif key := self._claimed(one.report.machine_code, brood, point):
            brood = brood._replace(keys=tuple(dict.fromkeys((*brood.keys, key))))
            candidate = replace(one.candidate, name=one.report.machine_code or "")
            raced = gpu.submit(self._timer, candidate, one, self.incumbent)
            return _Race(candidate, brood, one, self.incumbent, raced)
        else:
            self._tell(brood, one, reason="machine code already seen")
        return None

    def _claimed(self, code: str | None, brood: Brood, point: Point) -> str:
        """Returns the key of the claim to machine code, "" where it was seen or another worker has it."""
        if code in self._seen:
            return ""
        # Once is enough for who takes it over.
        return self._study.claim(f"code {code}", None if brood.keys else point, brood.source)

    def _adopt(self, one: Bred) -> None:
        best, ours = self._adopted, self.incumbent
        # Without any it is tried in a race, even where it could not be compiled here.
        if best and (not ours or (one.report and ours.result.value < best.value)):
            self.incumbent = Incumbent(kernel_of(self._study, self._shape, best), best)

    def _end(self, race: _Race) -> None:
        """Tells the study what became of a race."""
        try:
            raced = race.raced.result()
        except CandidateFailed as failed:
            self._tell(race.brood, race.bred, failed=True, reason=str(failed))
            return
        found: dict[str, Any] = {**raced._asdict(), "value": 0.0}
        if race.incumbent:
            median = statistics.median(raced.ratios)
            # What was not seen to be faster is not better, whatever its median says.
            found["value"] = race.incumbent.result.value + (median if raced.verdict == "faster" else min(median, 0.0))
            found["against"] = race.incumbent.result.number
            found |= self._in_each(raced, race.incumbent.result, found["value"])
        brood = race.brood if race.incumbent else race.brood._replace(keys=(*race.brood.keys, FIRST))
        result = self._tell(brood, race.bred, **found)
        best = self.incumbent.result.value if self.incumbent else -math.inf
        if result and result.verdict in ("first", "faster") and result.value > best:
            self.incumbent, self._adopted = Incumbent(race.candidate, result), result

    def _in_each(self, raced: Raced, incumbent: Result, value: float) -> dict[str, Any]:
        """Returns a race's numbers of each problem; what is too slow in one of them is not better in the mean."""
        cells = [before + ahead for before, ahead in zip(incumbent.cells, raced.cells)]
        over = excess(cells, incumbent.cells, [one.cells for one in self._study.timed]) if cells else 0.0
        if raced.verdict == "faster" and over > 0:
            return {"cells": cells, "verdict": "uneven", "value": incumbent.value - over}
        return {"cells": cells, "value": value}

    def _tell(self, brood: Brood, one: Bred, **found: Any) -> Result | None:
        known: dict[str, Any] = {
            "at": self._before_s + self._passed_s,
            "guessed_ms": one.guessed_ms,
            "predicted_ms": one.predicted_ms,
        }
        if one.candidate:
            known["schedule"] = number_of(one.candidate.ours.schedule)
        if one.report:
            fields = one.row_fields
            known |= {name: fields[name] for name in ("fingerprint", "registers", "stack_bytes", "machine_code")}
            self._seen.add(one.report.machine_code)
        point = one.point or brood.given or {}
        before = len(self._study.results)
        told = self._study.tell(point, brood.source, brood.keys, **known | found)
        self._learn(self._study.results[before:])
        return told


def kernel_of(study: Study, shape: AttentionShape, result: Result) -> Candidate:
    """Returns the kernel of a trial of a study."""
    return replace(called("", shape, Planned(study.parameters.schedule(result.point))), name=result.name)
