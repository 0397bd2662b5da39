"""A search compiles proposals ahead of the GPU, leaves out what cannot win, and has the others race with the best."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tl_attention.errors import InputError
from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure.bench import MOST_STACK_BYTES
from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.compilation import Compiled, Compilers, compile_candidate
from tl_attention.lab.model.machine import load
from tl_attention.lab.model.prediction import predict
from tl_attention.lab.search.proposals import UNPRUNED, Proposal, Proposals
from tl_attention.lab.search.study import Result, Study, trial_name
from tl_attention.lab.search.timers import CandidateFailed, Incumbent, Timer
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

# Compilations that wait for a process, beside those in one: a race takes less time than they do.
WAITING = 2
# Cores for what proposes, and for what launches kernels and must not be late.
FREE_CORES = 2
POLL_S = 0.2
# A candidate that is predicted to take so much longer than the incumbent does not race, but one of ten does.
PREDICTED_SLOWER = 1.25
# How the error of such a kernel begins.
SERIALISED = "ptxas serialised the products"


def compile_and_predict(candidate: Candidate) -> Compiled:
    """Compiles a candidate into the store, and returns the outcome with the model's time, where there is one."""
    compiled = compile_candidate(candidate)
    if compiled.report is None:
        return compiled
    try:
        return replace(compiled, predicted_ms=predict(candidate, load()).ms)
    except InputError:
        return compiled


class Search:
    """A Search goes on with a study, whose trials it ends one by one."""

    def __init__(
        self,
        study: Study,
        shape: AttentionShape,
        timer: Timer,
        proposals: Proposals,
        rng: random.Random,
        compile: Callable[[Candidate], Compiled] = compile_and_predict,
    ) -> None:
        self._study, self._timer, self._proposals, self._rng, self._compile = study, timer, proposals, rng, compile
        self._running: dict[str, Proposal] = {}
        self._seen = {result.machine_code for result in study.results}
        self.incumbent = next((Incumbent(kernel_of(study, shape, best), best) for best in study.timed[:1]), None)
        self._elapsed_s: float = study.noted("seconds", 0.0)

    def run(self, seconds: float, told: Callable[[float], object]) -> None:
        """Goes on for so many seconds, or until the space is exhausted, and tells every moment how many have passed.

        CallFailed is raised where the machine fails. What is compiling at the end is begun again by the next search.
        """
        begun, before = time.monotonic(), self._elapsed_s
        with Compilers(self._compile, processes=max(1, (os.cpu_count() or 1) - FREE_CORES)) as compilers:
            if self.incumbent:
                compilers.submit(self.incumbent.candidate)
            while (passed := time.monotonic() - begun) < seconds:
                self._elapsed_s = before + passed
                if not compilers.waiting:
                    if self._proposals.is_done:
                        break
                    time.sleep(POLL_S)
                while compilers.waiting < WAITING * compilers.processes and (proposal := self._proposals.take()):
                    candidate = replace(proposal.candidate, name=trial_name(proposal.trial.number))
                    self._running[candidate.name] = proposal
                    compilers.submit(candidate)
                for candidate, compiled in compilers.take(POLL_S):
                    if candidate.name in self._running and time.monotonic() - begun < seconds:
                        self._end(self._running.pop(candidate.name), candidate, compiled)
                        proposals = self._proposals
                        counts = {"judged": dict(proposals.judged), "refused": dict(proposals.refused)}
                        self._study.note(seconds=self._elapsed_s, **counts)
                told(passed)

    def _end(self, proposal: Proposal, candidate: Candidate, compiled: Compiled) -> None:
        """Tells the study what became of a proposal."""
        found: dict[str, Any] = {"at": self._elapsed_s, "predicted_ms": compiled.predicted_ms}
        if compiled.report is None:
            what = SERIALISED if compiled.error.startswith(SERIALISED) else f"{compiled.status} when compiled"
            found |= {"failed": True, "reason": f"{what}: {compiled.error}"}
        else:
            fields = compiled.row_fields
            found |= {name: fields[name] for name in ("fingerprint", "registers", "stack_bytes", "machine_code")}
            if reason := self._left_out(compiled.report, compiled.predicted_ms):
                found["reason"] = reason
            else:
                found |= self._timed(candidate, compiled)
            self._seen.add(compiled.report.machine_code)
        result = self._study.tell(proposal.trial, **found)
        if result.verdict in ("first", "faster"):
            self.incumbent = Incumbent(candidate, result)

    def _timed(self, candidate: Candidate, compiled: Compiled) -> dict[str, Any]:
        """Returns the fields of a Result that a race fills."""
        try:
            raced = self._timer(candidate, compiled, self.incumbent)
        except CandidateFailed as failed:
            return {"failed": True, "reason": str(failed)}
        found = {**raced._asdict(), "value": 0.0}
        if self.incumbent:
            median = statistics.median(raced.ratios)
            # What was not seen to be faster is not better, whatever its median says.
            found["value"] = self.incumbent.result.value + (median if raced.verdict == "faster" else min(median, 0.0))
            found["against"] = self.incumbent.result.number
        return found

    def _left_out(self, report: StaticReport, predicted_ms: float | None) -> str:
        """Returns why what was compiled does not race, "" where it does."""
        if report.stack_bytes > MOST_STACK_BYTES:
            return "spills"
        if report.machine_code in self._seen:
            return "machine code already seen"
        best = self.incumbent.result.predicted_ms if self.incumbent and self._proposals.models else None
        if predicted_ms and best and predicted_ms > PREDICTED_SLOWER * best and self._rng.random() >= UNPRUNED:
            return "predicted to be slower"
        return ""


def kernel_of(study: Study, shape: AttentionShape, result: Result) -> Candidate:
    """Returns the kernel of a trial of a study."""
    return replace(called("", shape, Planned(study.parameters.schedule(result.point))), name=result.name)
