"""A search has broods bred ahead of the GPU, leaves out what cannot win, and has the others race with the best."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from optuna.trial import Trial

from tl_attention.lab.measure.bench import MOST_STACK_BYTES
from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.compilation import Compiled, Compilers
from tl_attention.lab.search.broods import Bred, Brood, bred
from tl_attention.lab.search.proposals import REFUSED, Proposals
from tl_attention.lab.search.study import Result, Study, trial_name
from tl_attention.lab.search.timers import CandidateFailed, Incumbent, Raced, Timer
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

# Broods that wait for a process, beside one in each: a race takes less time than breeding.
WAITING = 2
# Cores for what launches kernels and must not be late, and for what tells the study.
FREE_CORES = 2
POLL_S = 0.05
# How the error of such a kernel begins.
SERIALISED = "ptxas serialised the products"


class _Race(NamedTuple):
    """A _Race is of a candidate whose trial has begun, on the GPU."""

    trial: Trial
    candidate: Candidate
    bred: Bred
    raced: Future[Raced]


class Search:
    """A Search goes on with a study, whose trials it ends one by one."""

    def __init__(
        self,
        study: Study,
        shape: AttentionShape,
        timer: Timer,
        proposals: Proposals,
        breed: Callable[[Brood], Compiled] = bred,
    ) -> None:
        self._study, self._timer, self._proposals, self._breed = study, timer, proposals, breed
        self._seen = {result.machine_code for result in study.results}
        self.incumbent = next((Incumbent(kernel_of(study, shape, best), best) for best in study.timed[:1]), None)
        self._elapsed_s: float = study.noted("seconds", 0.0)

    def run(self, seconds: float, told: Callable[[float], object]) -> None:
        """Goes on for so many seconds, or until the space is exhausted, and tells every moment how many have passed.

        CallFailed is raised where the machine fails. What a person queued or the sampler proposed, and what is not told
        at the end, is begun again by the next search.
        """
        begun, before = time.monotonic(), self._elapsed_s
        processes = max(1, (os.cpu_count() or 1) - FREE_CORES)
        # A race has a thread of its own: it does not wait while the sampler thinks.
        with Compilers[Brood](self._breed, processes=processes) as breeders, ThreadPoolExecutor(1) as gpu:
            ready, race = deque[tuple[Brood, Bred]](), None
            while (passed := time.monotonic() - begun) < seconds:
                self._elapsed_s = before + passed
                while breeders.waiting < breeders.processes + WAITING and not self._proposals.is_done:
                    breeders.submit(self._proposals.next())
                if not breeders.waiting:
                    time.sleep(POLL_S)
                for brood, one in breeders.take(POLL_S):
                    # A process that hangs or dies gives what compilers give.
                    ready.append((brood, one if isinstance(one, Bred) else Bred(**vars(one))))
                if race and race.raced.done():
                    self._end(race)
                    race = None
                while ready and not race:
                    race = self._begun(*ready.popleft(), gpu)
                told(passed)
                if self._proposals.is_done and not (breeders.waiting or ready or race):
                    break

    def _begun(self, brood: Brood, one: Bred, gpu: ThreadPoolExecutor) -> _Race | None:
        """Begins the race of what was bred, or tells the study why it does not race."""
        is_new = self._proposals.take(brood, one)
        self._study.note(seconds=self._elapsed_s, judged=self._proposals.judged, refused=self._proposals.refused)
        if not is_new:
            return None
        trial = self._proposals.trials.pop(brood.name, None) or self._study.add(one.point or {}, brood.source)
        if one.candidate is None and one.status == "refused":
            self._tell(trial, one, failed=True, reason=f"{REFUSED}{one.error}")
        elif one.candidate is None or one.report is None:
            what = SERIALISED if one.error.startswith(SERIALISED) else f"{one.status} when compiled"
            self._tell(trial, one, failed=True, reason=f"{what}: {one.error}")
        elif reason := self._left_out(one):
            self._tell(trial, one, reason=reason)
        else:
            candidate = replace(one.candidate, name=trial_name(trial.number))
            return _Race(trial, candidate, one, gpu.submit(self._timer, candidate, one, self.incumbent))
        return None

    def _end(self, race: _Race) -> None:
        """Tells the study what became of a race."""
        try:
            raced = race.raced.result()
        except CandidateFailed as failed:
            self._tell(race.trial, race.bred, failed=True, reason=str(failed))
            return
        found: dict[str, Any] = {**raced._asdict(), "value": 0.0}
        if self.incumbent:
            median = statistics.median(raced.ratios)
            # What was not seen to be faster is not better, whatever its median says.
            found["value"] = self.incumbent.result.value + (median if raced.verdict == "faster" else min(median, 0.0))
            found["against"] = self.incumbent.result.number
        result = self._tell(race.trial, race.bred, **found)
        if result.verdict in ("first", "faster"):
            self.incumbent = Incumbent(race.candidate, result)

    def _tell(self, trial: Trial, one: Bred, **found: Any) -> Result:
        known = {"at": self._elapsed_s, "guessed_ms": one.guessed_ms, "predicted_ms": one.predicted_ms}
        if one.report:
            fields = one.row_fields
            known |= {name: fields[name] for name in ("fingerprint", "registers", "stack_bytes", "machine_code")}
            self._seen.add(one.report.machine_code)
        return self._study.tell(trial, **known | found)

    def _left_out(self, one: Bred) -> str:
        """Returns why what was compiled does not race, "" where it does."""
        assert one.report
        if one.report.stack_bytes > MOST_STACK_BYTES:
            return "spills"
        return "machine code already seen" if one.report.machine_code in self._seen else ""


def kernel_of(study: Study, shape: AttentionShape, result: Result) -> Candidate:
    """Returns the kernel of a trial of a study."""
    return replace(called("", shape, Planned(study.parameters.schedule(result.point))), name=result.name)
