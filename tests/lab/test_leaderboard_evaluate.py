"""An evaluation has test lines, messages, the stop rule and its summary, and rows; tests check where lines are run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from harness import LINE, calling

from tl_attention.compiler import toolchain
from tl_attention.errors import InputError
from tl_attention.lab.leaderboard.contract import RANKED_LINES, TestLine, read_test_lines
from tl_attention.lab.leaderboard.evaluate import MESSAGE_BYTES, WAY, evaluate
from tl_attention.lab.leaderboard.results import (
    Evaluation,
    LineResult,
    Outcome,
    class_lines,
    read_evaluation,
    summarize,
)
from tl_attention.lab.leaderboard.timed import MAX_REPEATS, stop_reason
from tl_attention.lab.measure.machine import machine_text

RECORDS = ROOT / "results"


def test_ranked_lines_parse_back_in_any_order_and_from_a_file(tmp_path: Path) -> None:
    assert str(RANKED_LINES[0]) == "batch_size: 1; num_heads: 64; seq_len: 1024; head_dim: 128; seed: 1118"
    assert [(line.batch_size, line.seq_len) for line in RANKED_LINES] == [(1, 1024), (2, 4096), (4, 8192)]
    for line in RANKED_LINES:
        assert TestLine.parse("; ".join(reversed(str(line).split("; ")))) == line
    path = tmp_path / "tests.txt"
    path.write_text("\n".join(map(str, RANKED_LINES)) + "\n\n", encoding="utf-8")
    assert read_test_lines(path) == RANKED_LINES


def test_a_line_that_is_no_utf_8_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / "tests.txt").write_bytes(b"\xe4")
    with pytest.raises(InputError, match="tests.txt:1: batch_size: the key is missing"):
        read_test_lines(tmp_path / "tests.txt")


def test_the_longest_message_fits() -> None:
    times = dict.fromkeys(("samples_ms", "read_ms", "wall_ms"), [1.2345678901234567e-300] * MAX_REPEATS)
    changes = [[2**32] * 4] * MAX_REPEATS
    longest = {"error": "", **times, "elapsed_s": 1.2345678901234567e-300, "changes": changes, "kept": MAX_REPEATS}
    assert len(json.dumps(longest)) < MESSAGE_BYTES


@pytest.mark.parametrize(
    "samples_ms, elapsed_s, reason",
    [
        ([], 0.0, ""),
        ([5.0, 5.0], 0.1, ""),
        ([5.0, 5.0, 5.0], 0.1, "err/mean < 0.001"),
        ([5.0, 5.1, 5.2], 0.1, ""),
        ([9.0, 5.0, 1.0], 120.1, "120 s have gone"),
        ([3000.0, 4000.0, 3100.0], 10.2, "mean x runs > 10 s"),
        ([3000.0, 4000.0, 3000.0], 10.1, ""),
        ([20_000.0, 5.0], 300.0, ""),
        ([1.0, 2.0] * 49 + [1.0], 1.0, ""),
        ([1.0, 2.0] * 50, 1.0, "100 runs"),
    ],
)
def test_the_stop_rule(samples_ms: list[float], elapsed_s: float, reason: str) -> None:
    assert stop_reason(samples_ms, elapsed_s) == reason


def test_the_summary_of_samples() -> None:
    timing = summarize([4.0, 1.0, 3.0, 2.0, 5.0], elapsed_s=121.0, method="m")
    assert (timing.n, timing.mean_ms, timing.median_ms, timing.best_ms, timing.worst_ms) == (5, 3.0, 3.0, 1.0, 5.0)
    assert (timing.std_ms, timing.err_ms) == pytest.approx((2.5**0.5, 0.5**0.5))
    assert (timing.p10_ms, timing.p90_ms) == pytest.approx((1.4, 4.6))
    assert timing.samples_ms == (4.0, 1.0, 3.0, 2.0, 5.0)


@pytest.mark.parametrize(
    "mode, first",
    [
        ("benchmark", "runs=3, mean=2.0000 ms, std=1.0000 ms, err=0.5774 ms, best=1.0000 ms, worst=3.0000 ms"),
        ("test", "status=pass, max_abs_error=0.0001"),
    ],
)
def test_a_record_has_the_class_harness_lines_and_is_read_back_also_without_a_way(mode: str, first: str) -> None:
    timing = summarize([1.0, 2.0, 3.0], elapsed_s=121.0, method="m") if mode == "benchmark" else None
    passed = LineResult(LINE, Outcome("pass", "", 1.0), True, True, max_abs_error=1e-4, timing=timing, way="by_nvcc")
    rows = (passed, LineResult(LINE, Outcome("timeout", "killed at the limit", 30.0)))
    made = Evaluation("s.py", "", mode, "cpu", {}, Outcome("pass", "", 1.0), rows)
    last = f"{mode}.1: status=timeout, reason=killed at the limit"
    assert list(class_lines(made)) == [f"{mode}.0: {first}", last, "check: fail"]
    values = {"name": "mine"} | made.to_json()
    assert read_evaluation(json.dumps(values).encode(), values, "here") == ("mine", made)
    del values["rows"][0]["way"]
    assert read_evaluation(json.dumps(values).encode(), values, "here")[1].rows[0].way == ""


@pytest.mark.parametrize("name", ["evaluate-h100.jsonl", "evaluate-h200.jsonl", "evaluate-cold-h200.jsonl"])
def test_the_summaries_of_the_shipped_records_are_those_of_their_samples(name: str) -> None:
    for line in (RECORDS / name).read_bytes().splitlines():
        found = read_evaluation(line, json.loads(line), name)[1]
        assert found.accepted and found.tight
        for timing in filter(None, (row.timing for row in found.rows)):
            # How long the timing took was not recorded; none of these took as long as the rule's last limit.
            again = summarize(timing.samples_ms, 0.0, timing.method)
            assert again.stopped_by == timing.stopped_by
            numbers = [timing.p10_ms, timing.p90_ms, timing.err_ms]
            assert [again.p10_ms, again.p90_ms, again.err_ms] == pytest.approx(numbers)


@pytest.mark.parametrize("fault", ["", "it has no ptxas"])
def test_the_environment_names_the_nvcc_that_compiles_here_where_any_can(fault: str, monkeypatch) -> None:
    nvcc = toolchain.Nvcc(Path("/cuda"), "PATH", "13.0.88", "13.0.89", fault)
    monkeypatch.setattr(toolchain, "nvccs", lambda: iter([nvcc]))
    found = machine_text("cpu")
    assert [found.get(name) for name in ("nvcc", "ptxas")] == ([None, None] if fault else ["13.0.88", "13.0.89"])


def test_a_way_is_what_a_packed_file_says_in_plain_words() -> None:
    said = ["by_tilelang: no tilelang", "runs by_nvcc", "runs by_it, or does it", "runs \x1b[31m", "runs " + "x" * 41]
    log = "\n".join(f"submission: {text}" for text in said)
    log = f"{log}\nit says submission: runs by_it\nsubmission: runs by_cubin\nmore"
    assert WAY.findall(log) == ["by_nvcc", "by_cubin"] and not WAY.findall("")


@pytest.mark.gpu
@pytest.mark.alone
def test_a_right_and_a_wrong_submission_on_the_gpu() -> None:
    source = calling("output *= data[0].shape[2] == 256")
    lines = [replace(LINE, seq_len=seq_len, head_dim=64) for seq_len in (256, 257)]
    right, zeros = evaluate("gpu.py", source.encode(), lines).rows
    assert (right.outcome.status, right.tight, right.timing.method) == ("pass", True, "cuda, events, L2 cleared")
    assert 3 <= right.timing.n <= 100
    assert zeros.outcome.status == "wrong" and "beyond rtol = atol = 0.01" in zeros.outcome.reason
