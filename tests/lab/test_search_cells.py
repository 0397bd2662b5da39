"""One schedule serves several problems: the mean counts, the worst is bounded, and two are proposed where it pays."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import search_jobs
import yaml
from search_jobs import OF, SHAPE, InTurn, in_a_folder, many, parameters, proposals, told, url_of
from stand_in import Compilers, Gpu, on_a_machine

from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.records import MATMUL
from tl_attention.lab.measure.session import Session
from tl_attention.lab.measure.trials import SILENT
from tl_attention.lab.search import search as search_module
from tl_attention.lab.search.broods import bred
from tl_attention.lab.search.cells import WORST, Split, excess, rule, split
from tl_attention.lab.search.final import FINALISTS, final
from tl_attention.lab.search.outcome import Outcome
from tl_attention.lab.search.race import LOOKS
from tl_attention.lab.search.search import Search
from tl_attention.lab.search.study import DRAWN, QUEUED, Result, Study
from tl_attention.lab.search.timers import ByPrediction, Incumbent, OnGpu, Raced
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.defaults import read

__all__ = ["on_a_machine"]
OTHERS = tuple(AttentionShape(1, 2, keys, keys, 128) for keys in (512, 4096))
SHAPES = (SHAPE, *OTHERS)
CELLS = """
groups:
  mine:
    heads: 2
    head_dim: 128
    dtype: fp16
    batch: 1
    seq: [256, 512, 4096]
    peers: {cudnn: null}
"""


def opened(folder: Path) -> Study:
    return Study(url_of(folder), "some", OF, parameters(), seed=1, others=OTHERS)


@pytest.mark.parametrize(
    "own, before, others, over",
    [
        ([0.1, 0.1], [0.0, 0.0], [], -WORST),
        ([0.2, -0.05], [0.0, 0.0], [], 0.05 - WORST),
        ([0.2, -0.05], [0.0, 0.0], [[0.0, 0.1]], 0.05),
        ([0.2, 0.0], [0.0, 0.0], [[0.0, 0.1]], 0.0),
    ],
)
def test_the_worst_problem_is_bounded_by_the_best_there_or_by_the_incumbent(own, before, others, over) -> None:
    assert excess(own, before, others) == pytest.approx(over)


def test_a_split_is_proposed_where_two_are_worth_more() -> None:
    timed = [[0.0, 0.0, 0.0], [0.06, 0.06, -0.2], [-0.2, -0.1, 0.09]]
    assert split(timed, SHAPES) == Split(1, 2, 4096, pytest.approx((0.06 + 0.06 + 0.09) / 3))
    assert split(timed[:1], SHAPES) is None and split([], SHAPES) is None
    assert split([[0.0, 0.0, 0.0], [0.001, 0.0, -0.1]], SHAPES) is None, "not worth a second schedule"


def test_a_rule_is_one_that_defaults_has(tmp_path) -> None:
    lines = rule(SHAPES, "best", "none yet")
    file = tmp_path / "defaults.yaml"
    file.write_text("\n".join(["rules:", *lines]) + "\n")
    (found,) = read(file).rules
    assert (found.schedule, found.head_dims, found.dtypes, found.masks) == ("best", (128,), ("float16",), ("full",))
    assert found.seq_kv == range(256, 4097) and found.packed is False and found.softcap is False


def timed(ms: dict[tuple[str, int], float]) -> Gpu:
    return Gpu(ms=lambda candidate: ms.get((candidate.name, candidate.shape.seq_kv), 2.0))


def candidate(name: str) -> Candidate:
    return Candidate(name, SHAPE, Planned(search_jobs.schedules()[0]))


def test_a_race_is_held_in_all_problems_and_their_mean_counts() -> None:
    gpu = timed({("other", 256): 1.9, ("other", 512): 1.9, ("other", 4096): 2.02})
    best = Incumbent(candidate("best"), Result(0, DRAWN, {}, ms=2.0, verdict="first", cells=(0.0,) * 3))
    found = OnGpu(gpu, 1, OTHERS)(candidate("other"), Compiled(), best)
    ahead = [math.log(2.0 / ms) for ms in (1.9, 1.9, 2.02)]
    assert (found.verdict, len(found.ratios), found.cells_ms) == ("faster", LOOKS[0], (1.9, 1.9, 2.02))
    assert found.cells == pytest.approx(ahead) and found.ratios == pytest.approx([sum(ahead) / 3] * LOOKS[0])
    assert gpu.named("verify_some_rows") == ["other"] * 3 and gpu.named("forget") == ["best"] * 3


def test_one_that_is_good_in_a_single_problem_is_timed_as_long_as_others() -> None:
    gpu = timed({("other", 256): 1.9, ("other", 512): 2.4, ("other", 4096): 2.4})
    best = Incumbent(candidate("best"), Result(0, DRAWN, {}, ms=2.0, verdict="first", cells=(0.0,) * 3))
    assert len(OnGpu(gpu, 1, OTHERS)(candidate("other"), Compiled(), best).ratios) == LOOKS[0]


def test_what_is_too_slow_in_one_problem_is_not_the_incumbent(tmp_path) -> None:
    study = opened(tmp_path)
    search = Search(study, SHAPE, ByPrediction(), proposals(study))
    before = told(study, many(1)[0], verdict="first", ratios=[], cells=[0.0, 0.0, 0.0])
    raced = Raced([0.1] * 7, "faster", 1.0, (0.2, 0.2, -0.1), (1.0, 1.0, 1.0))
    assert search._in_each(raced, before, 0.1) == {
        "cells": [0.2, 0.2, -0.1],
        "verdict": "uneven",
        "value": pytest.approx(WORST - 0.1),
    }
    even = raced._replace(cells=(0.2, 0.2, -0.02))
    assert search._in_each(even, before, 0.1) == {"cells": [0.2, 0.2, -0.02], "value": 0.1}


def test_a_schedule_is_legal_and_compiled_in_all_problems(tmp_path) -> None:
    study = opened(tmp_path)
    made: list[int] = []

    def compiled(one: Candidate) -> Compiled:
        made.append(one.shape.seq_kv)
        return search_jobs.compiled(one)

    brood = proposals(study, search_jobs.schedules()[:1]).next()
    found = bred(brood, compiled)
    assert made == [256, 512, 4096] and len(found.cells_ms) == 3 and found.report and found.report.machine_code
    broken = bred(
        brood, lambda one: compiled(one) if one.shape.seq_kv < 4096 else Compiled(status="refused", error="no")
    )
    assert (broken.status, broken.report, broken.error) == ("refused", None, "no")


@pytest.mark.usefixtures("on_a_machine")
def test_the_final_and_the_answer_are_of_all_problems(tmp_path) -> None:
    study = opened(tmp_path)
    first, second, third = many(3)
    told(study, first, QUEUED, verdict="first", ratios=[], cells=[0.0, 0.0, 0.0])
    told(study, second, verdict="faster", value=0.1, cells=[0.1, 0.1, 0.1])
    told(study, third, verdict="uneven", value=-0.1, cells=[0.0, 0.0, 0.4])
    times = {("trial 1", 256): 1.6, ("trial 1", 512): 1.8, ("trial 1", 4096): 1.9}
    gpu = Gpu(ms=lambda one: 1.0 if one.name == MATMUL else times.get((one.name, one.shape.seq_kv), 2.0))
    with Session(lambda row: None, seed=1, worker=gpu, compilers=Compilers()) as held:
        rows = final(study, SHAPE, held, SILENT)
    assert [row.name for row in rows] == ["trial 0", "trial 0 again", "trial 1"] * 3
    assert FINALISTS // 3 == 2, "there are fewer than of one problem"
    outcome = Outcome(study, SHAPE, "NVIDIA H200", rows)
    assert outcome.winner and outcome.winner.name == "trial 1"
    found = outcome.told(True, {"file": "mine.yaml", "timelines": None})
    mean = (2 / 1.6 * 2 / 1.8 * 2 / 1.9) ** (1 / 3)
    assert [row["speed"] for row in found["final"]] == pytest.approx([1.0, 1.0, mean])
    assert f"1.2500 x trial 0 on {SHAPE}" in found["lines"] and json.dumps(found, allow_nan=False)
    worth = math.exp((0.1 + 0.1 + 0.4) / 3 - (0.4 / 3))
    assert f"a split: trial 1 below 4096 keys and trial 2 from there, which is worth {worth:.4f} x" in "\n".join(
        found["lines"]
    )
    outcome.write(outcome.winner, tmp_path / "mine.yaml")
    head = [line[2:] for line in (tmp_path / "mine.yaml").read_text().splitlines() if line.startswith("#")]
    asked = yaml.safe_load("\n".join(head[head.index("The rule for defaults.yaml:") + 1 :]))
    assert asked[0]["schedule"] == "mine" and asked[0]["seq_kv"] == "256 to 4096"
    assert asked[0]["record"] == f"mine.jsonl says {mean:.3f} x trial 0, geometric mean of 3 problems"


@pytest.fixture
def here(tmp_path, monkeypatch, on_a_machine) -> Path:
    in_a_folder(tmp_path, monkeypatch, 2.0)
    (tmp_path / "mine.yaml").write_text(CELLS)
    return tmp_path


def test_the_command_searches_for_the_problems_of_a_file(cli, here, monkeypatch) -> None:
    monkeypatch.setattr(search_module, "Compilers", InTurn)
    monkeypatch.setattr(search_module.Search.__init__, "__defaults__", (search_jobs.bred,))
    result = cli("search", "--cells", "mine.yaml", "--minutes", "0.1", "--from", "best")
    assert result.exit_code == 0 and result.stdout == "runs/mine.yaml\n", result.stderr
    page = (here / "runs/mine.html").read_text()
    data = json.loads(re.search(r' id="search">(.*?)</script>', page)[1])  # type: ignore[index]
    assert data["problem"] == "; ".join(map(str, SHAPES)) and "The rule for defaults.yaml:" in data["lines"]


@pytest.mark.parametrize(
    "change, arguments, words",
    [
        (("", ""), ("--causal",), "--causal: with --cells, expected one of them"),
        (("head_dim", "head_dimm"), (), "mine.yaml:5: "),
        (
            (
                "peers: {cudnn: null}",
                "peers: {cudnn: null}\n  b: {heads: 2, head_dim: 64, seq: [256], peers: {cudnn: null}}",
            ),
            (),
            "head_dim 128, 64, expected one",
        ),
        (("", ""), ("--from", "seed_stages4"), "needs 294,912 bytes of shared memory"),
    ],
)
def test_cells_that_cannot_be_searched_are_told_in_a_line(change, arguments, words, error_of, here) -> None:
    (here / "mine.yaml").write_text(CELLS.replace(*change))
    assert words in error_of("search", "--cells", "mine.yaml", *arguments) and not (here / "runs").exists()
