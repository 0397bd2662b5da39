"""The README's numbers and its tree are those of the repository."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tl_attention.cli import main
from tl_attention.leaderboard.device_code import read_device_code
from tl_attention.measure.records import Row, read_rows
from tl_attention.show.console import show_tables

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

import cells_page  # noqa: E402
import pytorch_page  # noqa: E402
import results_page  # noqa: E402

README = (ROOT / "README.md").read_text()


def test_the_page_of_results_is_made_from_the_records() -> None:
    assert results_page.PAGE.read_text() == results_page.page(), "python tools/results_page.py makes it again"


def test_the_lowest_speeds_are_those_of_the_record() -> None:
    rows, text = cells_page.read(), " ".join(README.split())

    def lowest(*groups: str) -> str:
        speeds = [speed for row in rows if row.group in groups and (speed := row.speed("ours", "fa3"))]
        return f"{min(speed.ratio for speed in speeds):.3f}"

    up_to_192 = lowest("d64", "d96", "d128", "grouped", "d192", "d192_128", "L")
    assert f"up to head_dim 192 at least {up_to_192} of FlashAttention-3, at 256 at least {lowest('d256')} (" in text
    assert f"with a softcap and a causal mask at least {lowest('softcap')}." in text
    lse = {row.cell: speed.ratio for row in rows if (speed := row.speed("ours", "without_lse"))}
    assert f"{1 - lse.pop('lse-1k-causal'):.1%}".replace("%", " %") in text and all(
        ratio > 0.995 for ratio in lse.values()
    )


def test_the_page_for_pytorch_users_has_the_rules_and_the_records() -> None:
    page = pytorch_page.PAGE.read_text()
    assert pytorch_page.filled(page) == page, "python tools/pytorch_page.py makes it again"
    with pytest.raises(ValueError, match="expected one <!-- defaults --> and one <!-- end of defaults -->"):
        pytorch_page.filled(page.replace("<!-- defaults -->", ""))


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
)
def test_every_link_to_a_file_leads_to_one(page) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text())
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]


def timed(record: str, dtype: str, name: str) -> Row:
    rows = read_rows(ROOT / "results" / record)
    return next(r for r in rows if (r.name, r.problem["dtype"]) == (name, dtype) and r.sizes in ("runtime", "peer"))


def test_the_headline_is_the_records():
    def speeds(record: str, dtype: str, name: str, peer: str) -> tuple[str, str]:
        """10th percentiles, and medians."""
        ours, theirs = timed(record, dtype, name), timed(record, dtype, peer)
        return f"{theirs.p10_ms / ours.p10_ms:.2f}", f"{theirs.median_ms / ours.median_ms:.2f}"

    text = " ".join(README.split())
    best = timed("bench-h200-L.jsonl", "bfloat16", "best")
    assert f"head_dim 128, where it takes {best.median_ms:.2f} ms ({best.tflops:.0f} TFLOPS)" in text
    p10, median = speeds("bench-h200-L.jsonl", "bfloat16", "best", "fa3")
    assert f"**{p10} x the speed of FlashAttention-3** in bf16" in text and f"of medians it is {median}." in text
    p10, _ = speeds("bench-h200-L-causal.jsonl", "bfloat16", "best_causal", "fa3")
    assert f"With a causal mask `best_causal` has {p10}." in text
    p10, _ = speeds("bench-h200-L.jsonl", "float16", "best", "cudnn")
    assert f"of whose speed `best` has {p10} x." in text


def test_the_first_output_is_the_records(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    row = timed("bench-h200-L.jsonl", "float16", "best")
    show_tables([[row]], loops=True)
    shown = [f"    {line}" for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(shown[:6]) in README
    for line in shown[6:8]:
        # The README cuts these off.
        start = next(cut for cut in README.splitlines() if cut.startswith(line[:40]))
        assert start.endswith(" ...") and line.startswith(start.removesuffix(" ...")), start
    assert f"its largest error is {row.error_max_abs / row.error_max_abs_budget:.2f} of what it may be" in README
    assert f"It reaches {row.percent_of_matmul:.1f} % of the rate" in README


def test_the_grid_is_the_records() -> None:
    rows = read_rows(ROOT / "results/grid-h200.jsonl")
    assert results_page.grid_table(rows) in README
    assert results_page.grid_mean(rows) in " ".join(README.split())


@pytest.mark.parametrize(
    "folder,record,digits",
    [("experiments", "experiments-h200", 2), ("experiments/causal", "experiments-causal-h200", 3)],
)
def test_every_experiment_has_its_prediction_and_outcome(folder, record, digits):
    text = (ROOT / f"results/{record}.md").read_text()
    rows = {row.name: row for row in read_rows(ROOT / f"results/{record}.jsonl")}
    for path in sorted((ROOT / "schedules" / folder).glob("*.yaml")):
        prediction = re.search(r"^# Prediction: (.*)$", path.read_text(), re.MULTILINE)[1]
        median = rows[path.stem].median_ms
        outcome = f"{median:.{digits}f}, " if median else rows[path.stem].status
        assert re.search(rf"^\| {path.stem} \|.*\| {re.escape(prediction)} \| {re.escape(outcome)}", text, re.MULTILINE)


def test_the_counters_shown_are_the_records():
    text = (ROOT / "results/counters-h200.md").read_text()
    with open(ROOT / "results/counters-h200.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    of_d256 = {f"d256, {seq}, before taper by L2" for seq in ("1k", "16k")}
    assert {row["run"] for row in rows} == {"L", "causal", "causal, before tapered"} | of_d256
    for row in rows:
        shown = "tensor" in row["metric"] if row["run"] == "causal, before tapered" else True
        for number in (row["ours_value"], row["fa3"]) if row["run"] in of_d256 else (row["ours_value"],):
            value = float(number.replace(",", ""))
            if row["unit"] in ("%", "cycle") and shown:
                assert (f"{value:.1f} %" if row["unit"] == "%" else f"{value:,.0f}") in text, row


def test_the_submission_evaluated_is_the_one_here():
    row = json.loads((ROOT / "results/evaluate-h200.jsonl").read_text().splitlines()[0])
    source = (ROOT / row["submission"]).read_bytes()
    # Comments and host code may have changed since; the generated code, the cubin and their compilers may not.
    said = read_device_code(source)
    assert said and (row["sha256"] == hashlib.sha256(source).hexdigest() or row.get("packed") == said)


def test_the_submissions_times_are_the_records() -> None:
    lines = (ROOT / "results/evaluate-h200.jsonl").read_text().splitlines()
    best = {row["name"]: f"{row['rows'][-1]['timing']['best_ms']:.2f}" for row in map(json.loads, lines)}
    text = " ".join(README.split())
    ours = [best[f"leaderboard_submit{way}"] for way in ("", "_cubin")]
    assert "takes {} ms by TileLang, {} from the machine code".format(*ours) in text
    assert f"and {best['cudnn']} with cuDNN" in text


def test_the_steady_state_shown_is_the_one_explained():
    text = CliRunner().invoke(main, ["explain", str(ROOT / "schedules/seed.yaml")]).output
    steady = text[text.index("Steady state") : text.index("Prologue")].rstrip()
    assert steady.replace("\n", "\n    ") in README


def test_the_refusal_shown_is_what_check_prints(tmp_path):
    mine = (
        (ROOT / "schedules/seed.yaml")
        .read_text()
        .replace("[-1,    0,      3,                              1,      -1,    2]", "[-1, 0, 1, 2, -1, 3]")
    )
    (tmp_path / "mine.yaml").write_text(mine)
    output = CliRunner().invoke(main, ["check", str(tmp_path / "mine.yaml")]).output
    assert f"\n    {output.splitlines()[0].replace(f'{tmp_path}/', '')}\n" in README
