"""The README's numbers and its tree are those of the repository."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_headline_is_the_seeds_row():
    rows = [row for row in read_rows(ROOT / "results/bench-h200-L.jsonl") if row.problem["dtype"] == "float16"]
    seed, cudnn = (next(r for r in rows if (r.name, r.sizes) == key) for key in (("seed", "fixed"), ("cudnn", "peer")))
    assert f"**{seed.median_ms:.2f} ms**" in README
    assert f"**{cudnn.median_ms / seed.median_ms:.2f} of cuDNN's speed**" in README


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
