"""Programs in the place of worker.py that forge: whatever a submission makes of its process, it is such a program.

None gets "pass" without the right numbers, and nothing of them runs in the parent.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.trial import Bench
from tl_attention.measure.pool import Worker

# Far away: the machine may be busy, and each start loads torch.
FAR_S = 600.0
LINE = TestLine(batch_size=1, num_heads=2, seq_len=16, head_dim=8, seed=1118)
SIZE = 2 * 1 * 2 * 16 * 8

# Helpers of the forging programs: `right` is a folder with the right outputs.
PREAMBLE = """\
import json, os, pickle, socket, sys, time
plan = json.loads(sys.argv[1])
channel = socket.socket(fileno=plan["channel"])
first, second = plan.get("outputs", ["", ""])
right, marker = {right!r}, {marker!r}
output = dict(type="Tensor", shape=[1, 2, 16, 8], dtype="torch.float16", device="cpu", kept_mib=None)
def tell(**values):
    channel.send(json.dumps(values).encode())
def put(path, data):
    with open(path, "wb") as file:
        file.write(data)
def copy(path):
    put(path, open(os.path.join(right, os.path.basename(path)), "rb").read())
def tell_first(**values):
    tell(kind="first", output=output | values)
    channel.recv(1)
def tell_second(samples_ms=(1.0, 1.0, 1.0), elapsed_s=0.01, **values):
    tell(kind="second", output=output | values, timed=dict(samples_ms=samples_ms, elapsed_s=elapsed_s))
    time.sleep(600)
class Payload:
    def __reduce__(self):
        return os.system, ("touch " + marker,)
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


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
def bench_of(tmp_path: Path, checker: Worker, right: Path) -> Callable[..., Bench]:
    """A bench whose worker.py is a forging program; `marker` in tmp_path is what its payload would create."""

    def make(program: str, mode: str = "benchmark") -> Bench:
        (tmp_path / "outputs").mkdir()
        start = PREAMBLE.format(right=str(right), marker=str(tmp_path / "marker"))
        (tmp_path / "worker.py").write_text(start + program)
        return Bench(tmp_path, tmp_path / "outputs", checker, "cpu", mode, max_repeats=5)

    return make


def test_the_numbers_alone_decide(bench_of) -> None:
    """The control of the forgeries below: the same program with the right bytes passes."""
    way = "print('submission: runs by_nvcc', flush=True)\n"
    bench = bench_of(f"{way}copy(first)\ntell_first()\ncopy(second)\ntell_second()")
    row = bench.run_test(LINE, FAR_S)
    assert (row.outcome.status, row.outcome.reason, row.accepted, row.tight) == ("pass", "", True, True)
    assert row.timing.samples_ms == (1.0, 1.0, 1.0) and row.timing.stopped_by == "err/mean < 0.001"
    assert row.way == "by_nvcc" and row.max_abs_error is not None and list(bench.outputs.iterdir()) == []


FORGERIES = {
    "a verdict": ("tell(status='pass')", "error", "no valid message from the process: document: "),
    "a verdict in the message": ("copy(first)\ntell_first(accepted=True)", "error", "first.output.accepted"),
    "the end at the start": ("copy(first)\ncopy(second)\ntell_second()", "error", "'second', expected 'first'"),
    "an import": ("tell(kind='imported')", "error", "'imported', expected 'first'"),
    "too much": ("channel.send(b' ' * 70_000)", "error", "over 65,536 bytes"),
    "zeros": (f"put(first, bytes({SIZE}))\ntell_first()", "wrong", "beyond rtol = atol = 0.01"),
    "NaN": (f"put(first, b'\\xff' * {SIZE})\ntell_first()", "wrong", "256 of 256 values are not finite"),
    "zeros, all told at once": (
        f"put(first, bytes({SIZE}))\ncopy(second)\ntell(kind='first', output=output)\ntell_second()",
        "wrong",
        "beyond rtol = atol = 0.01",
    ),
    "zeros at last": (
        f"copy(first)\ntell_first()\nput(second, bytes({SIZE}))\ntell_second()",
        "wrong",
        "wrong for other inputs",
    ),
    "the first output again": (
        "copy(first)\nos.link(first, second)\ntell_first()\ntell_second()",
        "wrong",
        "wrong for other inputs",
    ),
    "another shape": ("copy(first)\ntell_first(shape=[2, 1, 16, 8])", "wrong", "the output's shape is (2, 1, 16, 8)"),
    "no output": ("tell_first()", "wrong", "the output's file cannot be read: No such file"),
    "half an output": (f"put(first, bytes({SIZE // 2}))\ntell_first()", "wrong", "256 bytes, expected a plain file"),
    "more than an output": (f"put(first, bytes({SIZE + 2}))\ntell_first()", "wrong", "514 bytes, expected"),
    "a pipe": ("os.mkfifo(first)\ntell_first()", "wrong", "expected a plain file of 512"),
    "a folder": ("os.mkdir(first)\ntell_first()", "wrong", "the output's file cannot be read: Is a directory"),
    "a device": ("os.symlink('/dev/zero', first)\ntell_first()", "wrong", "the output's file cannot be read: Too many"),
    "another's file": (
        "os.symlink(os.path.join(right, 'first.bin'), first)\ntell_first()",
        "wrong",
        "cannot be read: Too many",
    ),
}
TIMES = {
    "too few runs": ("tell_second([1.0, 1.0])", "the timed runs do not keep the stop rule: 2 runs, expected more"),
    "more runs after the rule's end": ("tell_second([1.0] * 5)", "5 runs, expected 3: err/mean < 0.001"),
    "too many runs": ("tell_second([1.0, 2.0] * 3)", "6 runs, expected 5: 5 runs"),
    "longer than it lived": ("tell_second([1.0, 2.0, 1.0], elapsed_s=1e6)", "timed for 1e+06 s by its own clock"),
    "more time than has gone": (
        "tell_second([1.0, 1.0, 1.0], elapsed_s=0.0029)",
        "3 runs of 0.003 s together, timed in 0.0029 s",
    ),
    "times whose sum is no number": ("tell_second([1e308] * 3)", "3 runs of inf s together, timed in 0.01 s"),
    "no time": ("tell_second([0.0, 0.0, 0.0])", "samples_ms.0: Input should be greater than 0"),
    "no number": ("tell_second([float('nan')] * 3)", "no valid message from the process: "),
    "untimed": ("tell(kind='second', output=output, timed=None)", "timed False, mode benchmark"),
}
FORGERIES |= {
    name: (f"copy(first)\ntell_first()\ncopy(second)\n{program}", "error", reason)
    for name, (program, reason) in TIMES.items()
}


@pytest.mark.parametrize("program, status, reason", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forging_program_does_not_pass(bench_of, program: str, status: str, reason: str) -> None:
    row = bench_of(program).run_test(LINE, FAR_S)
    assert row.outcome.status == status and reason in row.outcome.reason, row.outcome
    assert not row.accepted and not row.tight and row.timing is None


def test_a_pickle_is_never_unpickled(bench_of, tmp_path) -> None:
    bench, marker = (
        bench_of("data = pickle.dumps(Payload())\nput(marker + '.pickle', data)\nchannel.send(data)\ntime.sleep(600)"),
        tmp_path / "marker",
    )
    for outcome in (bench.import_once(FAR_S), bench.run_test(LINE, FAR_S).outcome):
        assert outcome.status == "error" and "no valid message" in outcome.reason
    assert not marker.exists()
    pickle.loads(Path(f"{marker}.pickle").read_bytes())
    assert marker.exists(), "the control: the payload works where it is unpickled"
