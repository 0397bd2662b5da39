"""Run a submission under the contract of the class leaderboard.

The submission runs in processes of its own, one for the first import and one for each test (worker.py); this one only
hears what they tell, as JSON that is checked field by field (process.py, messages.py). Whether an output is right is
found in another process, which makes the inputs anew and reads the output's bytes (check.py). So nothing of the
submission is executed, imported or unpickled outside its own processes, and the numbers decide the verdict.

This is no sandbox. The submission runs as the same user, so it can reach files and other processes of that user, start
processes that leave its group, and patch the timers in its own process: samples are its word, held to the stop rule and
to the time that has gone. The rules about the file (`Evaluation.violations`) name what of this is visible in its text.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.leaderboard import check
from tl_attention.leaderboard.contract import TestLine, violations
from tl_attention.leaderboard.device_code import read_device_code
from tl_attention.leaderboard.messages import MAX_SAMPLES
from tl_attention.leaderboard.results import Evaluation, LineResult, Outcome
from tl_attention.leaderboard.stop_rule import MAX_REPEATS
from tl_attention.leaderboard.trial import CHECK_TIMEOUT_S, Bench
from tl_attention.measure.pool import CallFailed, Worker

MODES = ("test", "benchmark")
DEVICES = ("cuda", "cpu")
TEST_TIMEOUT_S = 30.0
IMPORT_TIMEOUT_S = 120.0
# What the servers have beside a submission, and what our worker.py needs.
BESIDE = ("task.py", "utils.py", "reference.py", "worker.py", "stop_rule.py")


def evaluate(
    submission: Path,
    lines: Sequence[TestLine],
    *,
    mode: str = "benchmark",
    device: str = "cuda",
    timeout_s: float = TEST_TIMEOUT_S,
    import_timeout_s: float = IMPORT_TIMEOUT_S,
    max_repeats: int = MAX_REPEATS,
) -> Evaluation:
    """Import a submission twice and run each test line in a fresh process, as the leaderboard does.

    A time-out, a crash, an exception and a wrong output are rows with a status and a reason. The rules that the file
    breaks (`Evaluation.violations`) are reported beside the rows, and do not keep the file from running. The folder for
    temporary files holds one output at a time, 0.5 GB for the ranked test.

    Args:
        submission: the file, copied as submission.py into a folder with task.py, utils.py and reference.py.
        lines: the tests, run one after another.
        mode: "test" checks; "benchmark" checks and times.
        device: "cuda", or "cpu" for tests of the harness itself.
        timeout_s: limit of one test in seconds: its process's start, import, compilation, calls, timing and writing of
            outputs together; the checks are left out.
        import_timeout_s: limit of the first import in seconds.
        max_repeats: the most runs that are timed, at most 1000.

    Raises:
        InputError: an unknown mode or device, no test lines, max_repeats out of range, a file that cannot be read,
            or no GPU for "cuda".
    """
    _check(mode, device, lines, max_repeats)
    try:
        source = submission.read_bytes()
    except OSError as error:
        raise InputError(f"{submission}: cannot be read, expected a submission file: {error.strerror}") from None

    with Worker() as checker, tempfile.TemporaryDirectory(prefix="leaderboard-", ignore_cleanup_errors=True) as name:
        environment = _environment(checker, device)
        folder, outputs = Path(name, "submission"), Path(name, "outputs")
        folder.mkdir()
        outputs.mkdir()
        (folder / "submission.py").write_bytes(source)
        for beside in BESIDE:
            shutil.copyfile(Path(__file__).with_name(beside), folder / beside)
        bench = Bench(folder, outputs, checker, device, mode, max_repeats)
        parent_import = bench.import_once(import_timeout_s)
        if parent_import.status == "pass":
            rows = [bench.run_test(line, timeout_s) for line in lines]
        else:
            reason = f"the import in the parent process failed: {parent_import.reason}"
            rows = [LineResult(line, Outcome("not run", reason, 0.0)) for line in lines]

    return Evaluation(
        submission=submission.name,
        sha256=hashlib.sha256(source).hexdigest(),
        mode=mode,
        device=device,
        environment=environment,
        violations=tuple(violations(source)),
        parent_import=parent_import,
        rows=tuple(rows),
        packed=read_device_code(source),
    )


def _check(mode: str, device: str, lines: Sequence[TestLine], max_repeats: int) -> None:
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is unknown, expected one of {', '.join(MODES)}")
    if device not in DEVICES:
        raise InputError(f"device {device!r} is unknown, expected one of {', '.join(DEVICES)}")
    if not lines:
        raise InputError("no test lines, expected at least one")
    if not 1 <= max_repeats <= MAX_SAMPLES:
        raise InputError(f"max_repeats is {max_repeats}, expected 1 to {MAX_SAMPLES}")


def _environment(checker: Worker, device: str) -> dict[str, str]:
    """What the checker runs on. It is up, and has loaded its code, before the submission can touch a file."""
    try:
        found = checker.call(check.environment, device, timeout_s=CHECK_TIMEOUT_S)
    except CallFailed as failed:
        raise InputError(f"device {device!r}: the process that checks outputs does not start: {failed}") from None
    if found is None:
        raise InputError("device 'cuda': torch sees no CUDA GPU, expected one; device 'cpu' tests the harness only")
    return found
