"""`which`: the schedule that a call without one takes, the rule that says so, and what was passed over."""

from __future__ import annotations

import re

import pytest

from tl_attention.files.defaults import FILE, defaults

CASES = {
    "by default": ([], "best", "head_dim 128, float16, mask full, seq_q 8192, seq_kv 8192, group 1"),
    "causal": (["--causal"], "best_causal", "head_dim 128, float16, mask causal, seq_q 8192, seq_kv 8192, group 1"),
    "grouped, with a window": (
        ["--shape", "4,40/8,1000,8192,192/128", "--dtype", "bf16", "--window", "1023,0"],
        "d192_128_causal",
        "head_dim 192/128, bfloat16, mask causal_window, seq_q 1000, seq_kv 8192, group 5",
    ),
    "a window that hides nothing": (
        ["--shape", "1,1,90,72", "--window", "89,89"],
        "d96_2k",
        "head_dim 72, float16, mask full, seq_q 90, seq_kv 90, group 1",
    ),
    "with the LSE": (
        ["--causal", "--lse"],
        "causal_late",
        "head_dim 128, float16, mask causal, seq_q 8192, seq_kv 8192, group 1, lse",
    ),
    "a softcap": (
        ["--softcap", "30"],
        "softcap",
        "head_dim 128, float16, mask full, seq_q 8192, seq_kv 8192, group 1, softcap",
    ),
    "queries without a key": (
        ["--shape", "1,1,64,8,256", "--causal"],
        "short_wide",
        "head_dim 256, float16, mask causal, seq_q 8, seq_kv 8, group 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_the_rule_and_those_above_it_are_shown(cli, name) -> None:
    arguments, schedule, case = CASES[name]
    result = cli("which", *arguments)
    assert result.exit_code == 0 and not result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == schedule and f"case    {case}" in lines
    starts = [number for number, line in enumerate(FILE.read_text().splitlines(), 1) if line.startswith("  - ")]
    where = re.search(rf"^rule    {re.escape(str(FILE))}:(\d+): head_dims ", result.stdout, re.MULTILINE)
    assert where is not None
    rule = defaults().rules[number := starts.index(int(where[1]))]
    assert rule.schedule == schedule and f"why     {rule.why}" in lines and f"record  {rule.record}" in lines
    passed = [int(found) for found in re.findall(r"^  line (\d+): ", result.stdout, re.MULTILINE)]
    assert passed == starts[:number]


def test_a_rule_is_passed_over_for_its_first_condition_that_is_not_met(cli) -> None:
    lines = cli("which", "--shape", "1,1,90,64").stdout.splitlines()
    passed = [line.split(": ", 1)[1] for line in lines if line.startswith("  line ")]
    assert passed[:2] == ["short: seq_q up to 64", "short_wide: head_dims 192, 192/128, 256"]
    assert passed[2:4] == ["softcap_causal: masks causal, window, causal_window", "softcap: softcap true"]
    assert "best: head_dims 128" in passed and "d64_causal: masks causal" in passed


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--shape", "1,1,64,100"], "shape: head_dim 100 is not supported"),
        (["--shape", "1,8/3,64,64"], "shape: 8 heads, expected a multiple of K's and V's 3"),
        (["--shape", "1,1,0,64"], "shape: seq_q is 0, expected an integer of at least 1"),
        (["--window", "-2,0"], "window_size is (-2, 0), expected two integers"),
        (["--dtype", "fp8"], "'fp8' is not one of"),
        (["best"], "unexpected extra argument"),
    ],
)
def test_a_problem_that_is_none_is_refused_in_one_line(error_of, arguments, words) -> None:
    assert words in error_of("which", *arguments)
