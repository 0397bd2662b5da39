"""The numbers, words and output of README, docs/CARDS.md and other pages are those of the repository."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner
from conftest import ROOT
from front_desk import pages as pages_words
from golden_kernels import KERNELS
from mutations import SCHEDULES
from once import lowered, reading
from pages import answers, cells, model, results
from pages.cells import read

from tl_attention import __version__
from tl_attention.errors import ScheduleRefused
from tl_attention.lab.cli import main
from tl_attention.lab.leaderboard.contract import MAX_BYTES, RANKED_LINES, read_device_code
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.show.console import show_tables
from tl_attention.lab.show.explain import explain
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.problem.mask import CAUSAL
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs/pytorch.md").read_text()


def test_the_changelog_begins_with_this_version_and_its_date() -> None:
    versions = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)}, \d{{4}}-\d\d-\d\d", versions[0])


def test_it_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) <= 160 and len(README.split()) <= 1800


def timed(record: str, dtype: str, name: str) -> Row:
    rows = read_rows(ROOT / "results" / record)
    return next(r for r in rows if (r.name, r.problem["dtype"]) == (name, dtype) and r.sizes in ("runtime", "peer"))


def test_the_one_number_is_the_records() -> None:
    assert answers.one_number() in " ".join(README.split())
    [medians] = re.findall(r"\*\*.*\*\*", answers.one_number())
    assert f"In bf16 it has {medians}, vs. FlashAttention-3" in " ".join((ROOT / "docs/index.md").read_text().split())


def test_the_first_output_is_the_records(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    row = timed("bench-h200-L.jsonl", "float16", "best")
    show_tables([[row]])
    shown = [f"    {line}" for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(shown[:6]) in README
    share = row.error_max_abs / row.error_max_abs_budget
    assert f"the largest error is {share:.0%} of the allowed error".replace("%", " %") in README
    assert f"The kernel has {row.percent_of_matmul:.1f} % of the rate" in README


def test_how_far_the_model_errs_is_the_records() -> None:
    error = median(model.error_of_time(case) for case in model.judged() if not model.is_neighbour(case))
    assert f"with a median error of {100 * error:.1f} %" in " ".join(README.split())


def test_versions_that_tests_run_with_are_those_that_are_pinned() -> None:
    pins = dict(re.findall(r"^(\w+)==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    [oldest] = re.findall(r'"transformers>=([\d.]+),', (ROOT / "pyproject.toml").read_text())
    words = f"2.11 (H100, H200) and {pins['torch']} (CPU), and with Transformers {oldest} and {pins['transformers']}."
    assert f"Tests run with PyTorch {words}" in " ".join(README.split())


def test_the_tables_are_the_records() -> None:
    assert results.grid_table(results.README_LINES) in README
    assert results.grid_mean() in " ".join(README.split())
    others = [row for row in cells.divided(cells.read_all("h200"))[0] if row.shape.head_size != 128]
    assert cells.over_lengths(others, {"fa3": PEER_NAMES["fa3"]}) in README


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


@pytest.mark.parametrize("card", cells.CARDS)
def test_the_submission_evaluated_is_the_one_here(card):
    row = json.loads(cells.record("evaluate", card).read_text().splitlines()[0])
    source = (ROOT / row["submission"]).read_bytes()
    # Comments, host code and generated text may have changed since; the machine code and its compilers may not.
    said, then = read_device_code(source), row.get("packed") or {}
    same = all(said and said[name] == then.get(name) for name in ("cubin_sha256", "compilers"))
    assert same or row["sha256"] == hashlib.sha256(source).hexdigest()


def test_the_submissions_times_and_limits_are_those_of_the_records_and_the_contract() -> None:
    text = " ".join((ROOT / "docs/leaderboard.md").read_text().split())
    assert answers.submission() in text and f"{MAX_BYTES:,} bytes" in text
    found = re.search(r"batch (\d) at length (\d+), (\d) at (\d+) and (\d) at (\d+)", text)
    assert found and [*map(int, found.groups())] == [n for one in RANKED_LINES for n in (one.batch_size, one.seq_len)]
    board, gpu = (line.split()[-1] for line in (ROOT / "leaderboard_submit.py").read_text().splitlines()[:2])
    assert f"--gpu {gpu} --leaderboard {board} " in text


PROOF = (ROOT / "docs/proof.md").read_text()


def test_the_steady_state_shown_is_the_one_explained():
    text = CliRunner().invoke(main, ["explain", str(ROOT / "schedules/seed.yaml")]).output
    steady = text[text.index("Steady state") : text.index("Prologue")].rstrip()
    assert steady.replace("\n", "\n    ") in PROOF


def test_the_refusals_shown_are_what_check_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seed = (ROOT / "schedules/seed.yaml").read_text()
    order = re.search(r"^order: (.*)$", seed, re.MULTILINE)[1]
    shown = README.partition("    $ cat mine.yaml\n")[2].partition("    $ tl-attention check mine.yaml\n")[0]
    files = {README: shown.replace("    ", ""), PROOF: seed.replace(order, "[-1, 0, 1, 2, -1, 3]")}
    for page, text in files.items():
        Path("mine.yaml").write_text(text)
        output = CliRunner().invoke(main, ["check", "mine.yaml"]).output
        assert f"    $ tl-attention check mine.yaml\n    {output}" in page
    mended = re.search(r"With one more line in `mine.yaml`, `(stage: .*)`, it is proved safe", README)[1]
    Path("mine.yaml").write_text(f"{files[README]}{mended}\n")
    assert "mine.yaml: proved safe" in CliRunner().invoke(main, ["check", "mine.yaml"]).output


def test_the_fault_shown_is_refused_in_these_words():
    code = lowered(KERNELS["best"])
    line, before, after = re.search(r"If line (\d+) .* from `(.*)` to\s+`(.*)`", PROOF).groups()
    lines = code.source.split("\n")
    assert lines[int(line) - 1].strip() == before
    lines[int(line) - 1] = after
    with pytest.raises(ScheduleRefused) as refused:
        reading.prove(KERNELS["best"].schedule, replace(code, source="\n".join(lines)))
    assert f"    {str(refused.value).partition('is not safe: ')[2]}\n" in PROOF


def test_the_schedule_shown_ships() -> None:
    assert README.partition("```yaml\n")[2].partition("```")[0] in (ROOT / "schedules/best.yaml").read_text()


# --- docs/CARDS.md ---------------------------------------------------------------------------------------------------


RECORD = read(ROOT / "results/cells-mma-h200.jsonl")
SECTION = (ROOT / "docs/CARDS.md").read_text()
WORDS = " ".join(SECTION.split())


def speeds(*groups: str, causal: bool | None = None) -> dict[int, float]:
    """Returns the speeds of groups by length; of one mask, if `causal` is given."""
    rows = [row for row in RECORD if row.group in groups and causal in (None, row.shape.mask == CAUSAL)]
    return {row.shape.seq_kv: row.speed("ours", "flash2").ratio for row in rows}


def test_the_speeds_said_are_those_of_the_record() -> None:
    plain, causal = (speeds("mma_small", causal=causal)[4096] for causal in (False, True))
    assert f"it has {plain:.3f}x the speed of FlashAttention-2 without a mask, and {causal:.3f}x with a" in WORDS
    ratios = [row.speed("ours", "flash2").ratio for row in RECORD if row.group in ("mma", "mma_L")]
    mean = prod(ratios) ** (1 / len(ratios))
    assert f"the geometric mean of `mma_sync` is {mean:.3f}, and the lowest is {min(ratios):.3f}." in WORDS
    assert len(ratios) == 12
    assert mean >= 1 and min(ratios) >= 0.95


def test_the_readme_has_the_range_of_the_speeds() -> None:
    every = [row.speed("ours", "flash2").ratio for row in RECORD]
    assert f"{min(every):.2f} to {max(every):.2f}x the speed of FlashAttention-2" in " ".join(README.split())
    full, causal = (speeds("mma_small", causal=causal)[4096] for causal in (False, True))
    assert f"{full:.2f}x, and {causal:.2f}x with a causal mask" in " ".join(README.split()) and full == min(every)


def test_the_difference_and_the_steady_state_shown_are_true() -> None:
    plain, other = ((SCHEDULES / f"mma_sync/{of}.yaml").read_text().splitlines() for of in ("plain", "eager"))
    for mark, lines, others in (("<", plain, other), (">", other, plain)):
        own = [line for line in lines if line not in others and not line.startswith(("#", "summary"))]
        shown = [line.strip()[2:] for line in SECTION.splitlines() if line.strip().startswith(f"{mark} ")]
        assert shown == own
    steady = explain(Planned(load(SCHEDULES / "mma_sync/eager.yaml"))).partition("Steady state")[2].splitlines()[1:9]
    shown = SECTION.partition("waits and barriers follow from it\n")[2].splitlines()[: len(steady)]
    for line, told in zip(steady, shown):
        assert line.strip().startswith(told.strip().removesuffix(", ...")), told


def test_the_speed_of_one_query_is_the_guides() -> None:
    [line] = re.findall(r"^\| 1 query, 2k to 128k keys \| H200 \| \d+ \| (\S+) (\(.*?\)) \|", GUIDE, re.MULTILINE)
    assert f"One query on 2k to 128k keys has {line[0]}x the speed in the mean {line[1]}" in " ".join(README.split())


def test_the_pages_are_short_enough_to_be_read() -> None:
    found = pages_words()
    assert sum(found.values()) <= 20_000 and max(found.values()) <= 2650
