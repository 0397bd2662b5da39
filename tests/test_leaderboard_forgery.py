"""Programs in the place of worker.py that forge: whatever a submission makes of its process, it is such a program.

None gets "pass" without the right numbers, and nothing of them runs in the judge.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.evaluate import Judge, judging
from tl_attention.leaderboard.results import LineResult, Outcome

# Far away: the machine may be busy.
FAR_S = 600.0
LINE = TestLine(batch_size=1, num_heads=2, seq_len=16, head_dim=8, seed=1118)
SIZE = 2 * 1 * 2 * 16 * 8
IMPORTED = Outcome("pass", "", 1.0)

# Helpers of the forging programs: `right` is a folder with the right outputs, and `done` what an honest process says.
PREAMBLE = """\
import json, os, pickle, sys
plan = json.loads(sys.argv[1])
first, second = plan["outputs"]
right, marker = {right!r}, {marker!r}
def say(**values):
    os.write(plan["message"], json.dumps(values).encode())
def done(samples_ms=(1.0, 1.0, 1.0), elapsed_s=0.01, **values):
    say(error="", samples_ms=samples_ms, elapsed_s=elapsed_s, **values)
def put(path, data):
    with open(path, "wb") as file:
        file.write(data)
def copy(*paths):
    for path in paths:
        put(path, open(os.path.join(right, os.path.basename(path)), "rb").read())
class Payload:
    def __reduce__(self):
        return os.system, ("touch " + marker,)
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with judging("benchmark", "cpu", test_s=FAR_S, import_s=FAR_S) as judge:
        yield judge


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the right outputs of both calls."""
    import torch

    from tl_attention.leaderboard.reference import generate_input

    folder = tmp_path_factory.mktemp("right")
    for name, seed in (("first.bin", LINE.seed), ("second.bin", LINE.seed + 1)):
        q, k, v = generate_input(1, 2, 16, 8, seed, device="cpu")
        torch.nn.functional.scaled_dot_product_attention(q, k, v).numpy().tofile(folder / name)
    return folder


@pytest.fixture
def judged(tmp_path: Path, judge: Judge, right: Path) -> Callable[[str], LineResult]:
    """The row of a forging program; `marker` in tmp_path is what its payload would create."""

    def run(program: str) -> LineResult:
        start = PREAMBLE.format(right=str(right), marker=str(tmp_path / "marker"))
        (tmp_path / "worker.py").write_text(start + program)
        return judge._test(tmp_path, LINE, IMPORTED)

    return run


def test_the_numbers_alone_decide(judged) -> None:
    """The control of the forgeries below: the same program with the right bytes passes."""
    row = judged("print('submission: runs by_nvcc', flush=True)\ncopy(first, second)\ndone()")
    assert (row.outcome.status, row.outcome.reason, row.accepted, row.tight) == ("pass", "", True, True)
    assert row.timing.samples_ms == (1.0, 1.0, 1.0) and row.timing.stopped_by == "err/mean < 0.001"
    assert row.way == "by_nvcc" and row.max_abs_error is not None


OTHER = "right at first, wrong for other inputs at the same addresses: "
FORGERIES = {
    "a verdict": ("copy(first, second)\nsay(status='pass')", "error", "no valid message from the process: "),
    "a verdict in the message": ("copy(first, second)\ndone(accepted=True)", "error", "accepted: "),
    "zeros": (f"put(first, bytes({SIZE}))\ncopy(second)\ndone()", "wrong", "beyond rtol = atol = 0.01"),
    "NaN": (f"put(first, b'\\xff' * {SIZE})\ncopy(second)\ndone()", "wrong", "256 of 256 values are not finite"),
    "zeros at last": (f"copy(first)\nput(second, bytes({SIZE}))\ndone()", "wrong", OTHER),
    "the first output again": ("copy(first)\nos.link(first, second)\ndone()", "wrong", OTHER),
    "no output": ("done()", "error", "No such file"),
    "half an output": (f"put(first, bytes({SIZE // 2}))\ndone()", "error", "256 bytes, expected a plain file of 512"),
    "more than an output": (f"put(first, bytes({SIZE + 2}))\ndone()", "error", "514 bytes, expected"),
    "a pipe": ("os.mkfifo(first)\ndone()", "error", "expected a plain file of 512"),
    "a folder": ("os.mkdir(first)\ndone()", "error", "Is a directory"),
    "a device": ("os.symlink('/dev/zero', first)\ndone()", "error", "Too many levels of symbolic links"),
    "another's file": ("copy(second)\nos.symlink(right + '/first.bin', first)\ndone()", "error", "Too many levels"),
}
TIMES = {
    "too few runs": ("[1.0, 1.0]", "the 2 timed runs do not keep the stop rule"),
    "untimed": ("[]", "the 0 timed runs do not keep the stop rule"),
    "more runs after the rule's end": ("[1.0] * 5", "the 5 timed runs do not keep the stop rule"),
    "longer than it lived": ("[1.0, 2.0, 1.0], elapsed_s=1e6", "timed in 1e+06 s, in a process of "),
    "more time than has gone": ("elapsed_s=0.0029", "3 runs of 0.003 s together, timed in 0.0029 s"),
    "times whose sum is no number": ("[1e308] * 3", "3 runs of inf s together, timed in 0.01 s"),
    "no time": ("[0.0, 0.0, 0.0]", "samples_ms[0]: expected more than 0"),
}
FORGERIES |= {name: (f"copy(first, second)\ndone({times})", "error", reason) for name, (times, reason) in TIMES.items()}


@pytest.mark.parametrize("program, status, reason", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forging_program_does_not_pass(judged, program: str, status: str, reason: str) -> None:
    row = judged(program)
    assert row.outcome.status == status and reason in row.outcome.reason, row.outcome
    assert not row.accepted and not row.tight and row.timing is None
    assert row.outcome.reason.isprintable() and len(row.outcome.reason) <= 300


def test_a_pickle_is_never_unpickled(judged, tmp_path: Path) -> None:
    row = judged(
        "data = pickle.dumps(Payload())\nput(marker + '.pickle', data)\n"
        "put(first, data)\nput(second, data)\nos.write(plan['message'], data)"
    )
    assert row.outcome.status == "error" and "no valid message" in row.outcome.reason
    assert not (tmp_path / "marker").exists()
    pickle.loads((tmp_path / "marker.pickle").read_bytes())
    assert (tmp_path / "marker").exists(), "the control: the payload works where it is unpickled"
