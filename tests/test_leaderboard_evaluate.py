"""The leaderboard's contract and the harness that runs a submission under it, on the CPU with tiny tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tl_attention.build import toolchain
from tl_attention.errors import InputError
from tl_attention.leaderboard import check
from tl_attention.leaderboard.contract import RANKED_LINES, TestLine
from tl_attention.leaderboard.evaluate import evaluate
from tl_attention.leaderboard.results import Evaluation

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
import os, sys, torch
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
    return out
"""

HANGS_IN_WORKER = """\
import sys, time
def custom_kernel(data):
    return data[0]
while sys.stdout is None:
    time.sleep(600)
"""

MAIN = """\
import json, sys
from pathlib import Path
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.evaluate import evaluate
from tl_attention.leaderboard.results import class_lines

if __name__ == "__main__":
    path, lines = Path(sys.argv[1]), [TestLine(1, 2, 32, 8, 1118)]
    found = evaluate(path, lines, device="cpu", max_repeats=5, timeout_s=600, import_timeout_s=600)
    shown = {"json": found.to_json(), "lines": list(class_lines(found)), "modules": sorted(sys.modules)}
    print(json.dumps(shown, allow_nan=False))
"""

# Where no limit is the matter it is far away: the machine may be busy, and each start loads torch.
LENGTHS = (16, 17, 19, 20, 21, 22, 23, 24, 25)
FAR = {"timeout_s": 600.0, "import_timeout_s": 600.0}


def line(seq_len: int) -> TestLine:
    return TestLine(batch_size=1, num_heads=2, seq_len=seq_len, head_dim=8, seed=1118)


def written(folder: Path, text: str) -> Path:
    path = folder / "my_file.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    path = written(tmp_path_factory.mktemp("many"), MANY)
    return evaluate(path, [line(n) for n in LENGTHS], mode="test", device="cpu", **FAR)


@pytest.mark.parametrize(
    ("seq_len", "status", "reason"),
    [
        (16, "pass", ""),
        (17, "wrong", "beyond rtol = atol = 0.01"),
        (19, "error", "ValueError: no such length"),
        (20, "crash", "exit code 3: about to leave"),
        (21, "error", "AttributeError: 'NoneType' object has no attribute 'write'"),
        (22, "wrong", "right at first, wrong for other inputs at the same addresses"),
        (23, "pass", "beyond rtol = atol = 0.001"),
        (24, "wrong", "beyond rtol = atol = 0.01"),
        (25, "wrong", "the output's dtype is torch.float32, expected torch.float16"),
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
    assert next(row for row in many.rows if row.line.seq_len == 25).max_abs_error is None
    assert not many.accepted and not many.tight


def test_file_is_imported_twice_from_the_folder_of_task_py(many: Evaluation) -> None:
    first, second = many.parent_import.log, many.rows[0].outcome.log
    assert first.startswith("imported with sys.stdout True from ")
    assert second.startswith("imported with sys.stdout False from ")
    assert first.split(" from ")[1] == second.split(" from ")[1]
    assert many.submission == "my_file.py"


def test_clean_submission_is_checked_timed_and_reported_and_not_loaded_here(tmp_path: Path) -> None:
    """In a parent of its own, since this one may have loaded torch for another test."""
    (tmp_path / "main.py").write_text(MAIN)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, tmp_path / "main.py", written(tmp_path, CLEAN)]
    found = json.loads(subprocess.check_output(command, cwd=tmp_path, env=environment))
    shown, row = found["json"], found["json"]["rows"][0]
    assert shown["accepted"] and shown["tight"] and shown["violations"] == []
    assert row["max_abs_error"] < 1e-3 and row["spec"] == str(line(32))
    timing = row["timing"]
    assert 3 <= timing["n"] <= 5 and timing["n"] == len(timing["samples_ms"])
    assert timing["best_ms"] <= timing["median_ms"] <= timing["worst_ms"]
    assert timing["method"] == "cpu, perf_counter"
    assert set(shown["environment"]) >= {"device_name", "torch", "tilelang"}
    assert found["lines"][-1] == "check: pass"
    assert not {"torch", "submission", "task", "reference", "worker"} & set(found["modules"])


def test_hang_is_a_row_with_its_limit(tmp_path: Path) -> None:
    # However soon the process is up, it does not end by itself. That nothing is left: test_leaderboard_process.
    evaluation = evaluate(written(tmp_path, HANGS_IN_WORKER), [line(16)], device="cpu", **FAR | {"timeout_s": 2.0})
    row = evaluation.rows[0]
    assert (row.outcome.status, row.accepted, row.timing) == ("timeout", False, None)
    assert row.outcome.reason == "killed at the limit of 2 s, start and compilation included"
    assert row.outcome.seconds >= 2 and not evaluation.accepted


def test_failed_import_leaves_the_tests_unrun(tmp_path: Path) -> None:
    path = written(tmp_path, "import tl_attention.leaderboard.contract\n")
    evaluation = evaluate(path, [line(16)], device="cpu", **FAR)
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
    with pytest.raises(InputError, match="max_repeats is 1001, expected 1 to 1000"):
        evaluate(path, RANKED_LINES, max_repeats=1001)
    with pytest.raises(InputError, match="cannot be read"):
        evaluate(tmp_path / "absent.py", RANKED_LINES)


@pytest.mark.parametrize("fault", ["", "it has no ptxas"])
def test_the_environment_names_the_nvcc_that_compiles_here_where_any_can(fault: str, monkeypatch) -> None:
    nvcc = toolchain.Nvcc(Path("/cuda"), "PATH", "13.0.88", "13.0.89", fault)
    monkeypatch.setattr(toolchain, "found", lambda: iter([nvcc]))
    found = check.environment("cpu")
    assert [found.get(name) for name in ("nvcc", "ptxas")] == ([None, None] if fault else ["13.0.88", "13.0.89"])


@pytest.mark.gpu
@pytest.mark.alone
def test_a_right_and_a_wrong_submission_on_the_gpu(tmp_path: Path) -> None:
    lines = [replace(line(n), head_dim=64) for n in (256, 257)]
    wrong = "    return kernel(q, k, v) if q.shape[2] == 256 else torch.zeros_like(q)\n"
    path = written(tmp_path, CLEAN.replace("    return kernel(q, k, v)\n", wrong))
    right, zeros = evaluate(path, lines, max_repeats=10).rows
    assert (right.outcome.status, right.tight, right.timing.method) == ("pass", True, "cuda, events, L2 cleared")
    assert right.kept_mib is not None and 3 <= right.timing.n <= 10
    assert zeros.outcome.status == "wrong" and "beyond rtol = atol = 0.01" in zeros.outcome.reason
