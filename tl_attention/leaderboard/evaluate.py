"""Run submissions under the contract of the class leaderboard, and judge what they return.

A submission runs in processes of its own (process.py, worker.py), and another process, the checker, draws the inputs
anew and compares the outputs' bytes with fp64 (check.py). So nothing of a submission is imported, executed or unpickled
outside its own processes, and a verdict counts only while the judge's files are what they were (own_files.py).

A submission runs as the same user and on its own clock, so it can still attack other packages and processes of that
user, outlive its test in a session of its own, and report any times that the stop rule and the elapsed time allow.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.leaderboard import check, own_files, process
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.device_code import read_device_code
from tl_attention.leaderboard.results import Evaluation, LineResult, Outcome, Timing, summarize
from tl_attention.measure.pool import CallFailed, Worker

CHECK_TIMEOUT_S = 600.0
# What templates/submission.py.in prints: which of its forms a packed file runs.
WAY = re.compile(r"^submission: runs (\w{1,40})$", re.MULTILINE | re.ASCII)
# The GPU's events and the host's clock drift apart.
CLOCKS_AGREE = 1.01
METHODS = {"cuda": "cuda, events, L2 cleared", "cpu": "cpu, perf_counter"}
# What stands beside a submission, besides an empty utils.py: servers have these names, or worker.py needs them.
BESIDE = ("task.py", "reference.py", "worker.py", "stop_rule.py")


@contextmanager
def judging(
    mode: str = "benchmark", device: str = "cuda", *, test_s: float = 30.0, import_s: float = 120.0
) -> Iterator[Judge]:
    """A judge for any number of submissions, with one checker and one snapshot of its own files.

    The mode "test" checks, "benchmark" times as well; the device "cpu" is for tests of the harness. `test_s` limits all
    of a test's process, from its start to the writing of outputs, `import_s` the first import. Raises InputError where
    no output can be checked, for want of a GPU for example.
    """
    with Worker() as checker:
        try:
            environment = checker.call(check.environment, device, timeout_s=CHECK_TIMEOUT_S)
        except CallFailed as failed:
            raise InputError(f"device {device!r}: the process that checks outputs fails: {failed}") from None
        yield Judge(mode, device, test_s, import_s, checker, environment, own_files.complete_snapshot())


@dataclass(frozen=True)
class Judge:
    """Evaluates submissions one after another; `judging` makes it and says what the first four fields are."""

    mode: str
    device: str
    test_s: float
    import_s: float
    checker: Worker
    environment: Mapping[str, str]
    own_files: Mapping[str, str]

    def evaluate(self, name: str, source: bytes, lines: Sequence[TestLine]) -> Evaluation:
        """Import a submission twice and run each test line in a fresh process, as the leaderboard does.

        Whatever the submission does, each line is a row with a status and a reason. Temporary files hold two outputs,
        0.5 GB each for the ranked test.
        """
        with tempfile.TemporaryDirectory(prefix="leaderboard-", ignore_cleanup_errors=True) as text:
            folder, rows = Path(text), []
            (folder / "submission.py").write_bytes(source)
            (folder / "utils.py").touch()
            for beside in BESIDE:
                shutil.copyfile(Path(__file__).with_name(beside), folder / beside)
            imported, _ = process.run(folder, {"line": None}, self.import_s)
            for line in lines:
                row = LineResult(line, Outcome("not run", f"the first import failed: {imported.reason}", 0.0))
                if imported.status == "pass":
                    row = self._test(folder, line)
                if changed := own_files.changed(self.own_files):
                    void = replace(row.outcome, status="void", reason=f"the judge's own {changed} has changed")
                    row = LineResult(line, void)
                rows.append(row)
        sha256, packed = hashlib.sha256(source).hexdigest(), read_device_code(source)
        return Evaluation(name, sha256, self.mode, self.device, self.environment, imported, tuple(rows), packed)

    def _test(self, folder: Path, line: TestLine) -> LineResult:
        """The second import, the calls and the timing in a process of their own, then the check of both outputs."""
        with tempfile.TemporaryDirectory(prefix="outputs-", ignore_cleanup_errors=True) as text:
            outputs = [f"{text}/first.bin", f"{text}/second.bin"]
            plan = {"line": asdict(line), "outputs": outputs, "device": self.device, "mode": self.mode}
            outcome, message = process.run(folder, plan, self.test_s)
            row = LineResult(line, outcome, way=["", *WAY.findall(outcome.log)][-1])
            if outcome.status != "pass":
                return row
            try:
                timing = self._timing(message, outcome.seconds) if self.mode == "benchmark" else None
                verdict = self.checker.call(check.check, *outputs, line, self.device, timeout_s=CHECK_TIMEOUT_S)
            except (ValueError, CallFailed) as error:
                reason = process.one_line(f"not judged: {error}")
                return replace(row, outcome=replace(outcome, status="error", reason=reason))
        status = "pass" if verdict["accepted"] else "wrong"
        outcome = replace(outcome, status=status, reason=verdict.pop("reason"))
        return replace(row, outcome=outcome, timing=timing if verdict["accepted"] else None, **verdict)

    def _timing(self, message: process.Message, seconds: float) -> Timing:
        """The summary of the timed runs. Raises ValueError where they cannot have been, or do not keep the stop rule."""
        runs_s = sum(message.samples_ms) / 1e3
        if message.elapsed_s > seconds or runs_s > CLOCKS_AGREE * message.elapsed_s:
            told = f"{len(message.samples_ms)} runs of {runs_s:.3g} s together, timed in {message.elapsed_s:.3g} s"
            raise ValueError(f"{told}, in a process of {seconds:.3g} s")
        return summarize(message.samples_ms, message.elapsed_s, METHODS[self.device])
