"""What an evaluation reports: its two line protocols, the stop rule of the timing, the summary of its samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.read_evaluation import read_evaluation
from tl_attention.leaderboard.results import Evaluation, LineResult, Outcome, class_lines, popcorn_lines, way_taken
from tl_attention.leaderboard.stop_rule import finished, stop_reason, stopped_by, summarize


def line(seq_len: int) -> TestLine:
    return TestLine(batch_size=1, num_heads=2, seq_len=seq_len, head_dim=8, seed=1118)


def timed_evaluation(mode: str) -> Evaluation:
    timing = summarize([1.0, 2.0, 3.0], stopped_by="", method="")
    rows = (
        LineResult(line(16), Outcome("pass", "", 1.0), accepted=True, tight=True, max_abs_error=1e-4, timing=timing),
        LineResult(line(17), Outcome("timeout", "killed\nat the limit", 30.0)),
    )
    if mode == "test":
        rows = (LineResult(line(16), Outcome("pass", "", 1.0), accepted=True, max_abs_error=1e-4), rows[1])
    return Evaluation("s.py", "", mode, "cpu", {}, (), Outcome("pass", "", 1.0), rows)


def test_class_lines_have_the_public_format() -> None:
    assert list(class_lines(timed_evaluation("benchmark"))) == [
        "benchmark.0: runs=3, mean=2.0000 ms, std=1.0000 ms, err=0.5774 ms, best=1.0000 ms, worst=3.0000 ms",
        "benchmark.1: status=timeout, reason=killed at the limit",
        "check: fail",
    ]


def test_popcorn_lines_have_the_upstream_keys() -> None:
    values = dict(text.split(": ", 1) for text in popcorn_lines(timed_evaluation("benchmark")))
    assert values["benchmark-count"] == "2"
    assert values["benchmark.0.spec"] == str(line(16))
    assert values["benchmark.0.runs"] == "3"
    assert float(values["benchmark.0.mean"]) == 2e6
    assert float(values["benchmark.0.best"]) == 1e6
    assert values["benchmark.1.error"] == "timeout: killed at the limit"
    assert values["check"] == "fail"
    values = dict(text.split(": ", 1) for text in popcorn_lines(timed_evaluation("test")))
    assert values["test-count"] == "2"
    assert (values["test.0.status"], values["test.1.status"]) == ("pass", "fail")


@pytest.mark.parametrize(
    ("samples_ms", "elapsed_s", "reason"),
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
def test_stop_rule(samples_ms: list[float], elapsed_s: float, reason: str) -> None:
    assert stop_reason(samples_ms, elapsed_s) == reason
    assert finished(samples_ms, elapsed_s) == bool(reason)


def test_the_rule_is_held_by_others_samples_where_it_stops_after_the_last() -> None:
    assert stopped_by([5.0, 5.0, 5.0], 0.1) == "err/mean < 0.001"
    assert stopped_by([1.0, 2.0] * 50, 1.0) == "100 runs"
    assert stopped_by([1.0, 2.0], 1.0, max_repeats=2) == "2 runs"
    assert stopped_by([9.0, 5.0, 1.0], 120.1) == "120 s have gone"
    # Where the time has gone is not known: the second may have been the one that took it.
    assert stopped_by([9.0, 5.0, 1.0, 9.0], 120.1) == "120 s have gone"
    for samples_ms, words in (
        ([5.0, 5.0], "2 runs, expected more"),
        ([5.0, 5.0, 5.0, 5.0], "4 runs, expected 3: err/mean < 0.001"),
        ([1.0, 2.0] * 51, "102 runs, expected 100: 100 runs"),
    ):
        with pytest.raises(ValueError, match=words):
            stopped_by(samples_ms, 1.0)


def test_summary_of_samples() -> None:
    timing = summarize([4.0, 1.0, 3.0, 2.0, 5.0], stopped_by="5 runs", method="m")
    assert (timing.n, timing.mean_ms, timing.median_ms, timing.best_ms, timing.worst_ms) == (5, 3.0, 3.0, 1.0, 5.0)
    assert timing.std_ms == pytest.approx(2.5**0.5)
    assert timing.err_ms == pytest.approx(0.5**0.5)
    assert (timing.p10_ms, timing.p90_ms) == pytest.approx((1.4, 4.6))
    assert timing.samples_ms == (4.0, 1.0, 3.0, 2.0, 5.0)


@pytest.mark.parametrize(
    "log, way",
    [
        ("", ""),
        ("submission: by_tilelang: no tilelang\nsubmission: runs by_nvcc", "by_nvcc"),
        ("submission: runs by_nvcc\nsubmission: runs by_cubin\nmore", "by_cubin"),
        ("it says submission: runs by_nvcc", ""),
        ("submission: runs by_nvcc, or does it", ""),
        ("submission: runs \x1b[31m", ""),
        ("submission: runs " + "x" * 41, ""),
    ],
)
def test_the_way_is_what_a_packed_file_says_last_in_plain_words(log: str, way: str) -> None:
    assert way_taken(log) == way


def test_the_way_is_recorded_and_read_back_and_older_records_read_without_it() -> None:
    first, *others = timed_evaluation("benchmark").rows
    values = replace(timed_evaluation("benchmark"), rows=(replace(first, way="by_nvcc"), *others)).to_json()
    for ways in (["by_nvcc", ""], ["", ""]):
        _, read = read_evaluation(json.dumps(values).encode(), values, "here")
        assert [row.way for row in read.rows] == ways
        values["rows"][0].pop("way", None)
    [shipped, *_] = (Path(__file__).parents[1] / "results/evaluate-h200.jsonl").read_bytes().splitlines()
    assert read_evaluation(shipped, json.loads(shipped), "shipped")[0] == "leaderboard_submit"
