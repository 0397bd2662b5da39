"""The leaderboard's contract and the harness that runs a submission under it, on the CPU with tiny tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import RANKED_LINES, TestLine
from tl_attention.leaderboard.evaluate import evaluate
from tl_attention.leaderboard.results import Evaluation, class_lines

CLEAN = """\
#!POPCORN leaderboard flashattention
#!POPCORN gpu H100
import sys
import torch
from task import input_t, output_t
_kernels = {}


def build(shape):
    return torch.nn.functional.scaled_dot_product_attention


def custom_kernel(data: input_t) -> output_t:
    q, k, v = data
    assert q.data_ptr() % 16 == 0
    kernel = _kernels.get(q.shape)
    if kernel is None:
        kernel = _kernels[q.shape] = build(q.shape)
    print("progress")
    if sys.stdout is not None:
        sys.stdout.flush()
    return kernel(q, k, v)
"""

# One submission whose behaviour the sequence length picks, so that one evaluation shows many rows.
MANY = """\
import os, signal, sys, torch
from task import input_t, output_t

print("imported with sys.stdout", sys.stdout is not None, "from", os.getcwd(), file=sys.stderr)
last = None


def custom_kernel(data):
    global last
    q, k, v = data
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    match q.shape[2]:
        case 16:
            print("harmless")
        case 17:
            out = out + 0.5
        case 18:
            out[0, 0, 3, 5] = float("nan")
        case 19:
            raise ValueError("no such\\nlength")
        case 20:
            print("about to leave", file=sys.stderr, flush=True)
            os._exit(3)
        case 21:
            sys.stdout.write("crash")
        case 22:
            last = out if last is None else last
            out = last
        case 23:
            out = out + 0.005
        case 24:
            q.zero_()
            out = v.mean(dim=2, keepdim=True).expand_as(v).contiguous()
        case 25:
            out = out.float()
        case 26:
            os.kill(os.getpid(), signal.SIGKILL)
    return out
"""

HANGS_IN_WORKER = """\
import subprocess, sys
def custom_kernel(data):
    return data[0]
if sys.stdout is None:
    child = subprocess.Popen(["sleep", "600"])
    with open({pid_file!r}, "w") as file:
        file.write(str(child.pid))
    child.wait()
"""


def line(seq_len: int) -> TestLine:
    return TestLine(batch_size=1, num_heads=2, seq_len=seq_len, head_dim=8, seed=1118)


def written(folder: Path, text: str) -> Path:
    path = folder / "my_file.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    path = written(tmp_path_factory.mktemp("many"), MANY)
    return evaluate(path, [line(n) for n in range(16, 27)], mode="test", device="cpu")


@pytest.mark.parametrize(
    ("seq_len", "status", "reason"),
    [
        (16, "pass", ""),
        (17, "wrong", "beyond rtol = atol = 0.01"),
        (18, "wrong", "1 of 288 values are not finite"),
        (19, "error", "ValueError: no such length"),
        (20, "crash", "exit code 3: about to leave"),
        (21, "error", "AttributeError: 'NoneType' object has no attribute 'write'"),
        (22, "wrong", "right at first, wrong for other inputs at the same addresses"),
        (23, "pass", "beyond rtol = atol = 0.001"),
        (24, "wrong", "beyond rtol = atol = 0.01"),
        (25, "wrong", "the output's dtype is torch.float32, expected torch.float16"),
        (26, "crash", "killed by SIGKILL"),
    ],
)
def test_each_end_of_a_test_is_a_row_with_a_reason(many: Evaluation, seq_len: int, status: str, reason: str) -> None:
    row = next(row for row in many.rows if row.line.seq_len == seq_len)
    assert row.outcome.status == status
    assert reason in row.outcome.reason
    assert bool(row.outcome.reason) == bool(reason)
    assert row.accepted == (status == "pass")
    assert row.tight == (seq_len == 16)


def test_error_is_measured_even_where_the_contract_accepts(many: Evaluation) -> None:
    accepted = next(row for row in many.rows if row.line.seq_len == 23)
    assert accepted.max_abs_error == pytest.approx(0.005, abs=1e-3)
    assert next(row for row in many.rows if row.line.seq_len == 18).max_abs_error is None
    assert not many.accepted and not many.tight


def test_file_is_imported_twice_from_the_folder_of_task_py(many: Evaluation) -> None:
    first, second = many.parent_import.log, many.rows[0].outcome.log
    assert first.startswith("imported with sys.stdout True from ")
    assert second.startswith("imported with sys.stdout False from ")
    assert first.split(" from ")[1] == second.split(" from ")[1]
    assert many.submission == "my_file.py"


def test_clean_submission_is_checked_timed_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path, CLEAN)
    evaluation = evaluate(path, [line(32)], mode="benchmark", device="cpu", max_repeats=5)
    row = evaluation.rows[0]
    assert evaluation.accepted and evaluation.tight and evaluation.violations == ()
    assert row.max_abs_error < 1e-3
    assert 3 <= row.timing.n <= 5
    assert row.timing.best_ms <= row.timing.median_ms <= row.timing.worst_ms
    assert row.timing.method == "cpu, perf_counter"
    shown = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert shown["rows"][0]["timing"]["n"] == row.timing.n
    assert shown["rows"][0]["spec"] == str(line(32))
    assert set(shown["environment"]) >= {"device_name", "torch", "tilelang"}
    assert list(class_lines(evaluation))[-1] == "check: pass"


def test_hang_is_a_row_and_leaves_nothing_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    path = written(tmp_path, HANGS_IN_WORKER.format(pid_file=str(pid_file)))
    evaluation = evaluate(path, [line(16)], mode="test", device="cpu", timeout_s=8)
    outcome = evaluation.rows[0].outcome
    assert outcome.status == "timeout"
    assert "limit of 8 s" in outcome.reason
    assert 8 <= outcome.seconds < 30
    state = Path("/proc", pid_file.read_text(encoding="ascii"), "stat")
    # A killed process may stay listed as a zombie until it is reaped.
    assert not state.exists() or state.read_text(encoding="ascii").split()[2] == "Z"


def test_failed_import_leaves_the_tests_unrun(tmp_path: Path) -> None:
    evaluation = evaluate(written(tmp_path, "import tl_attention.leaderboard.contract\n"), [line(16)], device="cpu")
    assert evaluation.parent_import.status == "error"
    assert "ModuleNotFoundError" in evaluation.parent_import.reason
    assert evaluation.rows[0].outcome.status == "not run"
    assert "ModuleNotFoundError" in evaluation.rows[0].outcome.reason
    assert not evaluation.accepted


def test_evaluate_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    path = written(tmp_path, CLEAN)
    with pytest.raises(InputError, match="mode 'profile' is unknown, expected one of test, benchmark"):
        evaluate(path, RANKED_LINES, mode="profile")
    with pytest.raises(InputError, match="device 'tpu' is unknown"):
        evaluate(path, RANKED_LINES, device="tpu")
    with pytest.raises(InputError, match="no test lines"):
        evaluate(path, [])
    with pytest.raises(InputError, match="cannot be read"):
        evaluate(tmp_path / "absent.py", RANKED_LINES)
