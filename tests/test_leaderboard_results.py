"""What an evaluation reports: its two line protocols, the stop rule of the timing, the summary of its samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.results import Evaluation, LineResult, Outcome, read_evaluation, summarize
from tl_attention.leaderboard.stop_rule import stop_reason
from tl_attention.leaderboard.table import class_lines, popcorn_lines

LINES = [TestLine(batch_size=1, num_heads=2, seq_len=seq_len, head_dim=8, seed=1118) for seq_len in (16, 17)]
RECORDS = Path(__file__).parents[1] / "results"


def evaluation(mode: str) -> Evaluation:
    timing = summarize([1.0, 2.0, 3.0], elapsed_s=121.0, method="m") if mode == "benchmark" else None
    rows = (
        LineResult(LINES[0], Outcome("pass", "", 1.0), True, True, max_abs_error=1e-4, timing=timing, way="by_nvcc"),
        LineResult(LINES[1], Outcome("timeout", "killed at the limit", 30.0)),
    )
    return Evaluation("s.py", "", mode, "cpu", {}, Outcome("pass", "", 1.0), rows)


def test_class_lines_have_the_public_format() -> None:
    assert list(class_lines(evaluation("benchmark"))) == [
        "benchmark.0: runs=3, mean=2.0000 ms, std=1.0000 ms, err=0.5774 ms, best=1.0000 ms, worst=3.0000 ms",
        "benchmark.1: status=timeout, reason=killed at the limit",
        "check: fail",
    ]
    assert next(class_lines(evaluation("test"))) == "test.0: status=pass, max_abs_error=0.0001"


def test_popcorn_lines_have_the_upstream_keys() -> None:
    values = dict(text.split(": ", 1) for text in popcorn_lines(evaluation("benchmark")))
    assert (values["benchmark-count"], values["benchmark.0.spec"]) == ("2", str(LINES[0]))
    assert values["benchmark.0.runs"] == "3"
    assert (float(values["benchmark.0.mean"]), float(values["benchmark.0.best"])) == (2e6, 1e6)
    assert (values["benchmark.1.error"], values["check"]) == ("timeout: killed at the limit", "fail")
    values = dict(text.split(": ", 1) for text in popcorn_lines(evaluation("test")))
    assert (values["test-count"], values["test.0.status"], values["test.1.status"]) == ("2", "pass", "fail")


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
        # Where the time has gone is not known: the second may have been the one that took it.
        ([9.0, 5.0, 1.0, 9.0], 120.1, "120 s have gone"),
    ],
)
def test_the_stop_rule_and_samples_that_are_held_to_it(samples_ms: list[float], elapsed_s: float, reason: str) -> None:
    assert stop_reason(samples_ms, elapsed_s) == reason
    if reason:
        assert summarize(samples_ms, elapsed_s, "m").stopped_by == reason
    else:
        with pytest.raises(ValueError, match="runs do not keep the stop rule"):
            summarize(samples_ms, elapsed_s, "m")


@pytest.mark.parametrize("samples_ms", [[5.0] * 4, [1.0, 2.0] * 51])
def test_more_runs_after_the_end_of_the_rule_are_refused(samples_ms: list[float]) -> None:
    with pytest.raises(ValueError, match="runs do not keep the stop rule"):
        summarize(samples_ms, 1.0, "m")


def test_the_summary_of_samples() -> None:
    timing = summarize([4.0, 1.0, 3.0, 2.0, 5.0], elapsed_s=121.0, method="m")
    assert (timing.n, timing.mean_ms, timing.median_ms, timing.best_ms, timing.worst_ms) == (5, 3.0, 3.0, 1.0, 5.0)
    assert (timing.std_ms, timing.err_ms) == pytest.approx((2.5**0.5, 0.5**0.5))
    assert (timing.p10_ms, timing.p90_ms) == pytest.approx((1.4, 4.6))
    assert timing.samples_ms == (4.0, 1.0, 3.0, 2.0, 5.0)


def test_a_record_is_read_back_also_without_a_way() -> None:
    for mode in ("benchmark", "test"):
        values = {"name": "mine"} | evaluation(mode).to_json()
        assert read_evaluation(json.dumps(values).encode(), values, "here") == ("mine", evaluation(mode))
        del values["rows"][0]["way"]
        assert read_evaluation(json.dumps(values).encode(), values, "here")[1].rows[0].way == ""


@pytest.mark.parametrize("name", ["evaluate-h200.jsonl", "evaluate-cold-h200.jsonl"])
def test_the_summaries_of_the_shipped_records_are_those_of_their_samples(name: str) -> None:
    for line in (RECORDS / name).read_bytes().splitlines():
        found = read_evaluation(line, json.loads(line), name)[1]
        assert found.accepted and found.tight
        for timing in filter(None, (row.timing for row in found.rows)):
            # How long the timing took was not recorded; none of these took as long as the rule's last limit.
            again = summarize(timing.samples_ms, 0.0, timing.method)
            assert again.stopped_by == timing.stopped_by
            assert [again.p10_ms, again.p90_ms, again.err_ms] == pytest.approx(
                [timing.p10_ms, timing.p90_ms, timing.err_ms]
            )
