"""`list` and the recorded times that it shows; `explain --call`, the rule that says so, and what was passed over."""

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT
from gradients import rules_with_a_pair

from tl_attention.lab.cli import call
from tl_attention.lab.measure import records as measured
from tl_attention.lab.measure.records import read_rows
from tl_attention.schedule.files import catalogue
from tl_attention.schedule.files.defaults import FILE, defaults

RESULTS = ROOT / "results"


def recorded_ms(name: str, causal: bool, dtype: str = "float16") -> str:
    """Reads a schedule's median off its record, without the code that is tested."""
    file = ROOT / f"results/bench-h200-L{'-causal' if causal else ''}.jsonl"
    rows = map(json.loads, file.read_text().splitlines())
    row = next(r for r in rows if (r["name"], r["sizes"], r["problem"]["dtype"]) == (name, "runtime", dtype))
    return f"{row['median_ms']:.3f}"


@pytest.fixture
def records(tmp_path, monkeypatch) -> Path:
    """Yields a folder of records of its own, in place of those that ship."""
    monkeypatch.setattr(measured, "folder", lambda name: tmp_path)
    measured.rows.cache_clear()
    yield tmp_path
    measured.rows.cache_clear()


def test_the_list_shows_every_name_its_summary_and_its_recorded_times_in_80_columns(cli) -> None:
    for options, names in ((), catalogue.names()), (("--all",), catalogue.all_names()):
        lines = cli("list", *options).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in names] == names
    # Words that are wrapped are the summary's all the same.
    words = " ".join(" ".join(lines).split())
    [row] = [row for row in read_rows(RESULTS / "experiments-h200.jsonl") if row.name == "block_M_192"]
    summary = "three warpgroups on 192 rows, block_N 80, without turns"
    assert f"experiments/block_M_192 {row.median_ms:.3f} {summary}" in words


def test_the_times_are_those_of_the_record_and_the_heading_says_of_what(cli) -> None:
    rows = [row for file in ("bench-h200-L", "bench-h200-L-causal") for row in read_rows(RESULTS / f"{file}.jsonl")]
    times = {
        (row.name, row.problem["causal"]): f"{row.median_ms:.3f}"
        for row in rows
        if row.problem["dtype"] == "float16" and row.sizes == "runtime" and row.median_ms
    }
    assert len(times) == 14
    heading, columns, *lines = cli("list").stdout.splitlines()
    assert heading == "ms recorded on NVIDIA H200: (4, 64, 8192, 128) float16, and with a causal mask"
    assert columns.split() == ["ms", "causal"]
    for line in lines:
        name = line.split()[0]
        shown = re.match(rf"{name}\s+([0-9.]+)?\s+([0-9.]+)?\s+\D", line)
        assert shown is not None
        # One time alone is that without a mask, by its place.
        assert [cell or None for cell in shown.groups()] == [times.get((name, causal)) for causal in (False, True)]


def test_each_part_of_the_list_has_times_of_one_run(cli) -> None:
    parts = cli("list", "--all").stdout.split("\n\n")
    headings = [part.splitlines()[0] for part in parts]
    assert parts[1].count("backward/") == len(parts.pop(1).splitlines()) == 2 and headings.pop(1)
    assert headings[1:3] == [
        "ms recorded on NVIDIA H200: (4, 64, 8192, 128) bfloat16",
        "ms recorded on NVIDIA H200: (8, 16, 4096, 128) bfloat16 causal",
    ]
    # None has been recorded of those behind them under such names.
    assert [part.count("experiments/") for part in parts[1:]] == [35, 28, 6, 16, 0, 0, 0, 0, 0]
    ladders = ("fa4", "rtx3090", "rtx5090", "worklog")
    assert [part.count(f"ladders/{name}/") for name, part in zip(ladders, parts[5:])] == [6, 6, 6, 1]
    assert parts[9].count("mma_sync/") == 11


def test_a_file_is_listed_with_the_time_of_the_schedule_that_it_is(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "schedules/best.yaml", "copy.yaml")
    Path("changed.yaml").write_text("base: best\nsummary: less\nblock_N: 192\nsplit: {exp: [48, 144]}\n")
    Path(f"{'long' * 20}.yaml").write_text("base: seed\n")
    output = cli("list", "copy.yaml", "changed.yaml", f"{'long' * 20}.yaml").stdout
    best, seed = (rf"{recorded_ms(name, False)} +{recorded_ms(name, True)}" for name in ("best", "seed"))
    assert re.search(rf"^copy +{best}  the fastest", output, re.MULTILINE)
    assert re.search(r"^changed +less$", output, re.MULTILINE)
    assert f"\n{'long' * 20}\n" in output and re.search(rf"^ +{seed}$", output, re.MULTILINE)


def test_without_a_record_the_list_has_no_times_and_no_heading(cli, records) -> None:
    lines = cli("list").stdout.splitlines()
    assert len(lines) == len(catalogue.names())
    assert re.fullmatch(r"best +the fastest measured without a causal mask", lines[0])


def test_rows_are_every_timed_row_of_the_records_and_no_other(records) -> None:
    for path in RESULTS.glob("*.jsonl"):
        shutil.copy(path, records)
    # A user's own run, and the half of a line that was being written.
    shutil.copy(RESULTS / "bench-h200-L.jsonl", records / "run-20261121T105027Z.jsonl")
    (records / "mine.jsonl").write_text('{"name": "se')
    # Which have lines of their own.
    others = (
        *("evaluate", "cells", "grid", "training", "backward", "profile", "operator", "host", "model", "packed"),
        *("invariance", "decode", "generate", "mixes", "pages", "pair"),
    )
    files = [path for path in RESULTS.glob("*.jsonl") if not path.name.startswith(others)]
    expected = [row for path in files for row in read_rows(path)]
    found = measured.rows()
    assert len(found) == sum(row.median_ms is not None for row in expected) > 200
    assert all(row.median_ms is not None for row in found)


CASES = {
    "packed": (
        ["--shape", "8x4096+100/300,64/8,128"],
        "ragged",
        "head_dim 128, float16, mask full, seq_q 4096, seq_kv 4096, group 8, packed",
    ),
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
    "one without which rows would have other bits": (
        ["--shape", "1,1,90,72", "--window", "89,89", "--invariant"],
        "d96_causal_4k",
        "head_dim 72, float16, mask window, seq_q 90, seq_kv 90, group 1",
    ),
    "where rows may have other bits": (
        ["--shape", "1,1,90,72", "--window", "89,89", "--not-invariant"],
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
        "short_d256",
        "head_dim 256, float16, mask causal, seq_q 8, seq_kv 8, group 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_the_rule_and_those_above_it_are_shown(cli, name) -> None:
    arguments, schedule, case = CASES[name]
    result = cli("explain", "--call", *arguments)
    assert result.exit_code == 0 and not result.stderr
    of_forward = result.stdout.partition("\ngradients: ")[0]
    lines = of_forward.splitlines()
    assert lines[0] == schedule and f"case    {case}" in lines
    starts = [number for number, line in enumerate(FILE.read_text().splitlines(), 1) if line.startswith("  - ")]
    where = re.search(rf"^rule    {re.escape(str(FILE))}:(\d+): head_dims ", of_forward, re.MULTILINE)
    assert where is not None
    rule = defaults().rules[number := starts.index(int(where[1]))]
    assert rule.schedule == schedule and f"why     {rule.why}" in lines and f"record  {rule.record}" in lines
    passed = [int(found) for found in re.findall(r"^  line (\d+): ", of_forward, re.MULTILINE)]
    assert passed == starts[:number]


def test_a_rule_is_passed_over_for_its_first_condition_that_is_not_met(cli) -> None:
    lines = cli("explain", "--call", "--shape", "1,1,90,64").stdout.splitlines()
    passed = [line.split(": ", 1)[1] for line in lines if line.startswith("  line ")]
    assert passed[:2] == ["short_keys: seq_q up to 64", "short_d64: seq_q up to 64"]
    assert passed[12:14] == ["softcap_causal: masks causal, window, causal_window", "softcap: softcap true"]
    assert "best: head_dims 128" in passed and "d64_causal: masks causal" in passed


GRADIENTS = {
    "causal, as many keys": (["--causal"], "flash2 now, and cudnn once a process has had 100 calls", "square true"),
    "64 keys beyond 128": (["--shape", "1,8,704,64"], "pair (dq, dkdv)", "masks full, packed false, seq_kv_mod_128 64"),
    "a window": (["--window", "1023,0"], "pair (dq, dkdv)", "every case"),
    "the LSE": (["--lse"], "pair (dq, dkdv)", "every case"),
    "fewer queries": (["--shape", "2,8,500,900,128", "--causal", "--sinks"], "pair (dq, dkdv)", "every case"),
    "few queries": (["--shape", "2,8,63,900,128", "--causal"], "flash2", "seq_q up to 63, packed false"),
    "head_dim 256": (["--shape", "2,8,500,900,256", "--causal"], "flash2", "archs sm_80"),
    "packed": (["--shape", "8x4096+100/300,64/8,128"], "pair (dq, dkdv)", "every case"),
    "a packed window": (["--shape", "2x96,8,128", "--window", "3,-1"], "pair (dq, dkdv)", "every case"),
    "a softcap": (["--softcap", "30"], "pair (dq, dkdv)", "every case"),
    "a window of many queries": (["--shape", "1,8,64,8,128", "--window", "3,-1"], "pair (dq, dkdv)", "every case"),
    "a softcap, head_dim 256": (
        ["--shape", "1,8,64,256", "--softcap", "3"],
        "none with softcap; pair (dq, dkdv): /",
        "",
    ),
}


@pytest.fixture
def pair_by_rule(monkeypatch, tmp_path) -> None:
    """Has a rule name a pair, on a machine with compilers."""
    found = rules_with_a_pair(tmp_path)
    monkeypatch.setattr(call, "backward_rules", lambda: found)
    monkeypatch.setattr("tl_attention.op.pair.why_none_is_made", lambda: "")


def gradients(shown: str) -> list[str]:
    return shown.partition("\ngradients: ")[2].splitlines()


def test_a_rules_pair_is_shown_with_its_schedules_or_why_it_is_passed_over(cli, pair_by_rule, monkeypatch) -> None:
    first, *rest = gradients(cli("explain", "--call", "--causal", "--sinks", "--lse").stdout)
    assert first == "pair (dq, dkdv)" and not any("passed over" in line for line in rest)
    first, *rest = gradients(cli("explain", "--call", "--shape", "1,8,4096,256").stdout)
    assert first == "flash2" and re.search(r"line 2: pair \(dq, dkdv\): /.*dq.yaml:.*: head_dim 256, which", rest[-1])
    monkeypatch.setattr("tl_attention.op.pair.why_none_is_made", lambda: "nvcc: none that can compile")
    monkeypatch.setattr("tl_attention.op.pair.is_finished", lambda schedule, variant: False)
    first, *rest = gradients(cli("explain", "--call").stdout)
    assert first == "flash2" and rest[-1].endswith("its kernels do not ship, and nvcc: none that can compile")


# Options, and what is said of the gradients of a call that names a pair.
NAMED = {
    "served": (["dq", "dkdv", "--lse", "--shape", "1,8/2,100,64"], r"pair \(dq, dkdv\), which the call names"),
    "head_dim 256": (
        ["dq", "dkdv", "--shape", "1,8,4096,256"],
        r"none: /.*dq.yaml:\d+: refused: .*head_dim 256, which .* not compute",
    ),
    "another card": (
        ["dq", "dkdv", "--arch", "a100", "--shape", "1,8,4096,64"],
        r"none: /.*dq.yaml:\d+: refused: lowering: warp_specialized runs on .*, not on .*A100.*",
    ),
    "a softcap": (["dq", "dkdv", "--softcap", "9"], r"pair \(dq, dkdv\), which the call names"),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_a_pair_that_the_call_names_computes_is_shown(cli, name, monkeypatch) -> None:
    monkeypatch.setattr("tl_attention.op.pair.why_none_is_made", lambda: "")
    options, words = NAMED[name]
    result = cli("explain", "--call", *options)
    assert result.exit_code == 0 and re.fullmatch(words, "\n".join(gradients(result.stdout)))


def test_a_mistake_in_a_pair_is_one_line(error_of) -> None:
    assert "it orders loop dkdv, expected a schedule of loop dq" in error_of("explain", "--call", "dkdv", "dq")
    assert "no schedule is named 'dqq'" in error_of("explain", "--call", "dqq", "dkdv")
    assert "expected neither a SCHEDULE, but the two of a pair" in error_of("explain", "--call", "dq")
    assert error_of("explain", "dq", "dkdv").startswith("explain: expected a SCHEDULE, or --call")


@pytest.mark.parametrize("name", GRADIENTS)
def test_what_computes_the_gradients_is_shown_with_its_rule(cli, name, monkeypatch) -> None:
    monkeypatch.setattr("tl_attention.op.pair.why_none_is_made", lambda: "")
    arguments, operator, condition = GRADIENTS[name]
    result = cli("explain", "--call", *arguments)
    assert result.exit_code == 0 and not result.stderr
    said, _, rest = result.stdout.partition("\ngradients: ")[2].partition("\n")
    assert said.startswith(operator) and condition in rest.partition("\npassed over")[0]
    assert bool(rest) == bool(condition)
