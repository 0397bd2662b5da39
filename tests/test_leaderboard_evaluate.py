"""The harness that runs a submission under the leaderboard's contract, on the CPU with tiny tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tl_attention.build import toolchain
from tl_attention.errors import InputError
from tl_attention.leaderboard import check
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.evaluate import WAY, Judge, judging
from tl_attention.leaderboard.results import Evaluation

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
            print("submission: runs by_nvcc", file=sys.stderr)
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
        case 26:
            return None
    return out
"""

HANGS_IN_WORKER = b"""\
import sys, time
def custom_kernel(data):
    return data[0]
while sys.stdout is None:
    time.sleep(600)
"""

# Where no limit is the matter it is far away: the machine may be busy, and each start loads torch.
LENGTHS = (16, 17, 19, 20, 21, 22, 23, 24, 25, 26)


def line(seq_len: int) -> TestLine:
    return TestLine(batch_size=1, num_heads=2, seq_len=seq_len, head_dim=8, seed=1118)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with judging("test", "cpu", test_s=600, import_s=600) as judge:
        yield judge


@pytest.fixture(scope="module")
def many(judge: Judge) -> Evaluation:
    return judge.evaluate("my_file.py", MANY.encode(), [line(n) for n in LENGTHS])


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
        (25, "error", "TypeError: the output's dtype is torch.float32, expected torch.float16"),
        (26, "error", "TypeError: custom_kernel returned NoneType, expected a tensor"),
    ],
)
def test_each_end_of_a_test_is_a_row_with_a_reason(many: Evaluation, seq_len: int, status: str, reason: str) -> None:
    row = next(row for row in many.rows if row.line.seq_len == seq_len)
    assert row.outcome.status == status
    assert reason in row.outcome.reason
    assert bool(row.outcome.reason) == bool(reason)
    assert row.accepted == (status == "pass")
    assert row.tight == (seq_len == 16)
    assert row.way == ("by_nvcc" if seq_len == 16 else "")


def test_error_is_measured_even_where_the_contract_accepts(many: Evaluation) -> None:
    accepted = next(row for row in many.rows if row.line.seq_len == 23)
    assert accepted.max_abs_error == pytest.approx(0.005, abs=1e-3)
    assert next(row for row in many.rows if row.line.seq_len == 25).max_abs_error is None
    assert not many.accepted and not many.tight


def test_file_is_imported_twice_from_the_folder_of_task_py(many: Evaluation) -> None:
    first, second = many.parent_import.log, many.rows[0].outcome.log.splitlines()[0]
    assert first.startswith("imported with sys.stdout True from ")
    assert second.startswith("imported with sys.stdout False from ")
    assert first.split(" from ")[1] == second.split(" from ")[1]
    assert many.submission == "my_file.py"


def test_hang_is_a_row_with_its_limit(judge: Judge) -> None:
    # However soon the process is up, it does not end by itself. That nothing is left: test_leaderboard_process.
    evaluation = replace(judge, test_s=2.0).evaluate("hangs.py", HANGS_IN_WORKER, [line(16)])
    row = evaluation.rows[0]
    assert (row.outcome.status, row.accepted, row.timing) == ("timeout", False, None)
    assert row.outcome.reason == "killed at the limit of 2 s, start and compilation included"
    assert row.outcome.seconds >= 2 and not evaluation.accepted


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        (b"import tl_attention.leaderboard.contract", "error", "ModuleNotFoundError"),
        (b"x = 1", "error", "TypeError: submission.py defines no custom_kernel that can be called"),
        (b"raise SystemExit(3)", "error", "SystemExit: 3"),
        (b"import os; os._exit(3)", "crash", "exit code 3"),
        (b"x = 1\0", "error", "SyntaxError: "),
    ],
)
def test_a_failed_import_leaves_the_tests_unrun(judge: Judge, source: bytes, status: str, reason: str) -> None:
    evaluation = judge.evaluate("fails.py", source, [line(16)])
    assert evaluation.parent_import.status == status and reason in evaluation.parent_import.reason
    assert evaluation.rows[0].outcome.status == "not run" and reason in evaluation.rows[0].outcome.reason
    assert not evaluation.accepted


def test_a_checker_that_fails_is_told_in_one_line(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for device, words in (("cuda", "torch sees no CUDA GPU, expected one"), ("tpu", "device 'tpu': the process that")):
        with pytest.raises(InputError, match=words), judging(device=device):
            pass


@pytest.mark.parametrize("fault", ["", "it has no ptxas"])
def test_the_environment_names_the_nvcc_that_compiles_here_where_any_can(fault: str, monkeypatch) -> None:
    nvcc = toolchain.Nvcc(Path("/cuda"), "PATH", "13.0.88", "13.0.89", fault)
    monkeypatch.setattr(toolchain, "found", lambda: iter([nvcc]))
    found = check.environment("cpu")
    assert [found.get(name) for name in ("nvcc", "ptxas")] == ([None, None] if fault else ["13.0.88", "13.0.89"])


@pytest.mark.parametrize(
    "log, ways",
    [
        ("", []),
        ("submission: by_tilelang: no tilelang\nsubmission: runs by_nvcc", ["by_nvcc"]),
        ("submission: runs by_nvcc\nsubmission: runs by_cubin\nmore", ["by_nvcc", "by_cubin"]),
        ("it says submission: runs by_nvcc", []),
        ("submission: runs by_nvcc, or does it", []),
        ("submission: runs \x1b[31m", []),
        ("submission: runs " + "x" * 41, []),
    ],
)
def test_a_way_is_what_a_packed_file_says_in_plain_words(log: str, ways: list[str]) -> None:
    assert WAY.findall(log) == ways


@pytest.mark.gpu
@pytest.mark.alone
def test_a_right_and_a_wrong_submission_on_the_gpu() -> None:
    source = """\
import torch
def custom_kernel(data):
    right = torch.nn.functional.scaled_dot_product_attention(*data)
    return right if data[0].shape[2] == 256 else torch.zeros_like(right)
"""
    with judging() as judge:
        lines = [replace(line(n), head_dim=64) for n in (256, 257)]
        right, zeros = judge.evaluate("gpu.py", source.encode(), lines).rows
    assert (right.outcome.status, right.tight, right.timing.method) == ("pass", True, "cuda, events, L2 cleared")
    assert right.kept_mib is not None and 3 <= right.timing.n <= 100
    assert zeros.outcome.status == "wrong" and "beyond rtol = atol = 0.01" in zeros.outcome.reason
