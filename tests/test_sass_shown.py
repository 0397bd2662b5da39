"""Rows record the loops of machine code, and people read them beside where a schedule asks for its waits."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from mutations import SCHEDULES, shipped

from tl_attention.compiler.compile import StaticReport
from tl_attention.compiler.sass import Loop, steady
from tl_attention.files.schedule_file import load
from tl_attention.measure.records import Row, read_rows
from tl_attention.measure.results_file import ResultsFile
from tl_attention.program.asked_waits import Asked, asked_waits, asked_waits_of
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule
from tl_attention.show.report import loop_lines

LOOPS = (
    Loop(700, {"HGMMA": 16, "LDL": 2}, 66, (0, 9), (0, 0), (0, 9)),
    Loop(600, {"HGMMA": 16}, 66, (0, 12), (), (0, 12)),
)


def recorded(tmp_path, loops: Sequence[Loop]):
    problem = {"batch": 1, "heads": 2, "seq_q": 256, "seq_kv": 256, "head_dim": 128, "dtype": "float16", "causal": True}
    with ResultsFile(tmp_path / "rows.jsonl") as results:
        results.append(Row("seed", "label", "runtime", problem, "ok", loops=tuple(loops)))
    return results.path


def test_loops_are_recorded_and_rows_without_them_are_read(tmp_path):
    path = recorded(tmp_path, LOOPS)
    assert read_rows(path)[0].loops == LOOPS
    old = recorded(tmp_path / "old", ())
    assert "loops" not in json.loads(old.read_text()) and read_rows(old)[0].loops == ()


@pytest.mark.parametrize("options", [(), ("--markdown",)])
def test_a_report_shows_the_loops_that_it_is_asked_for(tmp_path, cli, options):
    path = recorded(tmp_path, LOOPS)
    shown = (
        "seed (runtime): steady loop: 600 instructions: 16 HGMMA, no spills in this loop\n"
        "    of 66 exponentials: waits for products after 0, 12; arrives after 0, 12\n"
        "seed (runtime): other loop: 700 instructions: 16 HGMMA, 2 LDL\n"
        "    of 66 exponentials: waits for products after 0, 9; waits on mbarriers after 0, 0; arrives after 0, 9\n"
    )
    assert shown in cli("report", path, "--loops", *options).stdout
    assert "HGMMA" not in cli("report", path, *options).stdout


def test_where_the_schedule_asks_for_its_waits_stands_beside_where_they_are():
    loop = Loop(600, {"HGMMA": 16}, 66, (0, 12), (), (0, 12))
    assert loop.places_beside(Asked(66, (0, 18))) == (
        "of 66 exponentials: waits for products after 0, 12 (the schedule asks: 0, 18); arrives after 0, 12"
    )
    # Two iterations in one body, code that waits for no product: there is no place to compare.
    assert "asks" not in loop.places_beside(Asked(33, (0, 9))) + Loop(9, {}, 66).places_beside(Asked(66, (0, 18)))


ROW = read_rows(SCHEDULES.parent / "results/experiments-h200.jsonl")


@pytest.mark.parametrize("row", [row for row in ROW if row.loops], ids=lambda row: row.name)
def test_an_iteration_asks_for_as_many_exponentials_as_the_machine_code_has(row):
    asked = asked_waits_of(row.label)
    loop = steady(row.loops)
    assert (asked.exponentials, len(asked.product_waits)) == (loop.exponentials, len(loop.product_waits))
    if Schedule.from_label(row.label).kernel.waits == "exact":
        # The two of scores_scale may come before or after.
        assert all(0 <= wanted - found <= 2 for wanted, found in zip(asked.product_waits, loop.product_waits))
    assert f"(the schedule asks: 0, {asked.product_waits[1]})" in loop_lines([row])[0]


def test_the_places_asked_for_follow_the_order_chunks_and_the_polynomial():
    best = load(SCHEDULES / "best.yaml").model_dump()
    assert asked_waits(Planned(Schedule(**best))) == Asked(2 + 88, (0, 2 + 24))
    assert asked_waits(Planned(Schedule(**best | {"wait_before": {}}))) == Asked(90, (0, 90))
    # Exponentials 0, 4, 8, ... of a thread by polynomial: 6 of the first 24, 22 of 88.
    polynomial = {"exp2_polynomial": {"every": 4, "first": 0}}
    assert asked_waits(Planned(Schedule(**best | {"softmax": polynomial}))) == Asked(2 + 66, (0, 2 + 18))
    # Products waited for where they are issued: MMA0, Rescale, MMA1, then the exponentials.
    assert asked_waits(Planned(shipped()["seed"])) == Asked(66, (0, 0))
    assert asked_waits(Planned(shipped()["source_order"])) == Asked(66, (0, 66))


def test_rows_whose_label_is_no_schedules_have_nothing_beside():
    assert asked_waits(Planned(load(SCHEDULES / "inferred.yaml"))) is None
    assert asked_waits_of("cudnn") is None and asked_waits_of("pipelined_of_old") is None
    # Nothing can be derived from it any more.
    late = f"{load(SCHEDULES / 'best.yaml').label}~release_before.load_k=max_prev"
    assert Schedule.from_label(late) and asked_waits_of(late) is None


def test_a_static_report_is_one_line():
    assert str(StaticReport(168, 0, 1024, LOOPS)) == "168 registers, no spills, 1,024 bytes of shared memory"
