"""The README's numbers and its tree are those of the repository."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean

import pytest
from click.testing import CliRunner

from tl_attention.cli import main
from tl_attention.records import read_rows
from tl_attention.report import by_problem, markdown_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COLUMNS = ["schedule", "sizes", "status", "ms", "tflops", "matmul", "ratio", "error", "registers", "spills"]


@pytest.mark.parametrize("record,dtype", re.findall(r"<!-- (results/\S+) (\w+) -->", README))
def test_tables_are_views_of_the_record(record, dtype):
    groups = by_problem(read_rows(ROOT / record))
    rows = next(group for group in groups if group[0].problem["dtype"] == dtype)
    assert markdown_table(rows, COLUMNS, "cudnn") in README


def test_both_dtypes_are_shown():
    assert README.count("<!-- results/") == 2


def median_ms(record: str, dtype: str, name: str) -> float:
    rows = read_rows(ROOT / "results" / record)
    return next(
        r.median_ms for r in rows if (r.name, r.problem["dtype"]) == (name, dtype) and r.sizes in ("runtime", "peer")
    )


def test_the_headline_is_the_records():
    ours, cudnn = (median_ms("bench-h200-L.jsonl", "float16", name) for name in ("best", "cudnn"))
    assert f"**{ours:.2f} ms**" in README
    assert f"**{cudnn / ours:.2f} of cuDNN's speed**" in README
    bf16, fa3 = (median_ms("bench-h200-L.jsonl", "bfloat16", name) for name in ("best", "fa3"))
    assert f"is {fa3 / bf16:.2f} of FlashAttention-3's" in README
    bf16, fa3 = (median_ms("bench-h200-L-causal.jsonl", "bfloat16", name) for name in ("best_causal", "fa3"))
    assert f"`schedules/best_causal.yaml` is {fa3 / bf16:.2f} of it" in README


@pytest.mark.parametrize("dtype,peer", [("bfloat16", "fa3"), ("bfloat16", "cudnn"), ("float16", "cudnn")])
def test_the_grid_is_the_records(dtype, peer):
    found: dict[tuple[bool, int], dict[str, float]] = {}
    for row in read_rows(ROOT / "results/grid-h200.jsonl"):
        if row.problem["dtype"] == dtype:
            cell = found.setdefault((row.problem["causal"], row.problem["seq_kv"]), {})
            cell[row.name.replace("best_causal", "best")] = row.median_ms
    for causal in (False, True):
        cells = [found[causal, 1024 << power] for power in range(6)]
        assert "| " + " | ".join(f"{cell[peer] / cell['best']:.3f}" for cell in cells) + " |" in README
    if peer == "fa3":
        ratios = [cell[peer] / cell["best"] for cell in found.values()]
        mean = f"{geometric_mean(ratios):.3f}, the lowest cell {min(ratios):.3f}"
        assert f"The geometric mean against FlashAttention-3 is {mean}." in README


@pytest.mark.parametrize("folder,record,digits", [
    ("experiments", "experiments-h200", 2), ("experiments/causal", "experiments-causal-h200", 3),
])
def test_every_experiment_has_its_prediction_and_outcome(folder, record, digits):
    text = (ROOT / f"results/{record}.md").read_text()
    rows = {row.name: row for row in read_rows(ROOT / f"results/{record}.jsonl")}
    for path in sorted((ROOT / "schedules" / folder).glob("*.yaml")):
        prediction = re.search(r"^# Prediction: (.*)$", path.read_text(), re.MULTILINE)[1]
        median = rows[path.stem].median_ms
        outcome = f"{median:.{digits}f}, " if median else rows[path.stem].status
        assert re.search(rf"^\| {path.stem} \|.*\| {re.escape(prediction)} \| {re.escape(outcome)}", text, re.MULTILINE)


def test_the_submissions_times_are_the_records():
    for line in (ROOT / "results/evaluate-h200.jsonl").read_text().splitlines():
        timing = json.loads(line)["rows"][-1]["timing"]
        assert f"| {timing['n']} | {timing['best_ms']:.2f} | {timing['mean_ms']:.2f} |" in README


def test_the_steady_state_shown_is_the_one_explained():
    text = CliRunner().invoke(main, ["explain", str(ROOT / "schedules/seed.yaml")]).output
    steady = text[text.index("Steady state"):text.index("Prologue")].rstrip()
    assert steady.replace("\n", "\n    ") in README


def test_the_tree_names_every_module_and_no_other():
    tree = README[README.index("## The code"):]
    named = set(re.findall(r"\b(\w+\.py)\b", tree)) - {"leaderboard_submit.py"}
    assert named == {path.name for path in (ROOT / "tl_attention").glob("*.py")} - {"__init__.py", "__main__.py"}
    packages = {path.parent.name for path in (ROOT / "tl_attention").glob("*/__init__.py")}
    assert set(re.findall(r"\b(\w+)/  +\S", tree)) >= packages - {"kernel"} and "kernel/" in tree


def test_the_refusal_shown_is_what_check_prints(tmp_path):
    mine = (ROOT / "schedules/seed.yaml").read_text().replace(
        "[-1,    0,      3,                              1,      -1,    2]", "[-1, 0, 1, 2, -1, 3]"
    )
    (tmp_path / "mine.yaml").write_text(mine)
    output = CliRunner().invoke(main, ["check", str(tmp_path / "mine.yaml")]).output
    refusal = output[output.index("refused"):].splitlines()[0]
    assert refusal in README
