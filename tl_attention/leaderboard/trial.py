"""One submission's processes under the contract: the first import, and each test with its two checked calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tl_attention.leaderboard import check, messages, stop_rule
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.messages import Ended
from tl_attention.leaderboard.process import SubmissionProcess
from tl_attention.leaderboard.results import LineResult, Outcome, Verdict, way_taken
from tl_attention.measure.pool import CallFailed, Worker

CHECK_TIMEOUT_S = 600.0
# The GPU's events and the host's clock drift apart.
CLOCKS_AGREE = 1.01
METHODS = {"cuda": "cuda, events, L2 cleared", "cpu": "cpu, perf_counter"}


@dataclass(frozen=True)
class Bench:
    """Where and how a submission is run.

    `folder` holds submission.py, worker.py and what stands beside them, `outputs` takes the outputs' bytes; `checker`
    runs check.py. `device` is cuda or cpu, `mode` test or benchmark, `max_repeats` the most runs to time.
    """

    folder: Path
    outputs: Path
    checker: Worker
    device: str
    mode: str
    max_repeats: int

    def import_once(self, timeout_s: float) -> Outcome:
        """The first of the two imports."""

        def imported(process: SubmissionProcess) -> tuple[str, str]:
            messages.read(process.receive(), messages.Imported)
            return "pass", ""

        return self._run({"line": None}, timeout_s, imported)

    def run_test(self, line: TestLine, timeout_s: float) -> LineResult:
        """The second import and one test. The limit is the process's own: the checks do not count."""
        found: dict[str, Any] = {}
        paths = [self.outputs / name for name in ("first.bin", "second.bin")]

        def tested(process: SubmissionProcess) -> tuple[str, str]:
            first = messages.read(process.receive(), messages.First)
            with process.paused():
                verdict = self._verdict(first.output, paths[0], line, line.seed)
            found.update(_checked(verdict), kept_mib=first.output.kept_mib)
            if not verdict.accepted:
                return "wrong", verdict.reason
            process.proceed()
            second = messages.read(process.receive(), messages.Second)
            timing = self._timing(second.timed, process.seconds)
            # The limit is met, and its memory is the checker's now.
            process.end()
            other = self._verdict(second.output, paths[1], line, line.seed + 1)
            found.update(_checked(other))
            if not other.accepted:
                return "wrong", f"right at first, wrong for other inputs at the same addresses: {other.reason}"
            assert verdict.max_abs_error is not None and other.max_abs_error is not None
            found.update(
                tight=verdict.tight and other.tight,
                timing=timing,
                max_abs_error=max(verdict.max_abs_error, other.max_abs_error),
            )
            return "pass", verdict.reason or other.reason

        outcome = self._run({"line": asdict(line), "outputs": [str(path) for path in paths]}, timeout_s, tested)
        checked = found if outcome.status in ("pass", "wrong") else {}
        return LineResult(line, outcome, way=way_taken(outcome.log), **checked)

    def _run(
        self, plan: dict[str, Any], timeout_s: float, follow: Callable[[SubmissionProcess], tuple[str, str]]
    ) -> Outcome:
        """Start the process, follow what it tells to a status and a reason, and end all that it started."""
        plan |= {"device": self.device, "mode": self.mode, "max_repeats": self.max_repeats}
        with SubmissionProcess(self.folder, plan, timeout_s) as process:
            try:
                status, reason = follow(process)
            except Ended as end:
                status, reason = end.status, str(end)
            process.end()
            return Outcome(status, reason, process.seconds, process.log)

    def _verdict(self, output: messages.Output, path: Path, line: TestLine, seed: int) -> Verdict:
        """What the checker says of the output; its file is gone afterwards. Raises Ended if the checker fails."""
        refusal = output.refusal((line.batch_size, line.num_heads, line.seq_len, line.head_dim), self.device)
        if refusal:
            return Verdict(accepted=False, tight=False, max_abs_error=None, reason=refusal)
        try:
            found = self.checker.call(check.check, str(path), line, seed, self.device, timeout_s=CHECK_TIMEOUT_S)
        except CallFailed as failed:
            raise Ended("error", f"the check of the output failed: {failed}") from None
        # Not a file: the verdict says so, and the folder goes at the end.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return Verdict(**found)

    def _timing(self, timed: messages.Timed | None, seconds: float) -> stop_rule.Timing | None:
        """The statistics of the samples, which must stop where the rule stops. Raises Ended if they do not."""
        if (timed is None) != (self.mode == "test"):
            raise Ended("error", f"no valid message from the process: timed {timed is not None}, mode {self.mode}")
        if timed is None:
            return None
        if timed.elapsed_s > seconds:
            raise Ended("error", f"timed for {timed.elapsed_s:.3g} s by its own clock, in a process of {seconds:.3g} s")
        samples_s = sum(timed.samples_ms) / 1e3
        if samples_s > CLOCKS_AGREE * timed.elapsed_s:
            told = f"{len(timed.samples_ms)} runs of {samples_s:.3g} s together, timed in {timed.elapsed_s:.3g} s"
            raise Ended("error", told)
        try:
            stopped_by = stop_rule.stopped_by(timed.samples_ms, timed.elapsed_s, self.max_repeats)
        except ValueError as error:
            raise Ended("error", f"the timed runs do not keep the stop rule: {error}") from None
        return stop_rule.summarize(timed.samples_ms, stopped_by=stopped_by, method=METHODS[self.device])


def _checked(verdict: Verdict) -> dict[str, Any]:
    return {"accepted": verdict.accepted, "tight": verdict.tight, "max_abs_error": verdict.max_abs_error}
