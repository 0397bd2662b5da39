"""Tables are views of the rows: ranked, one for each run and problem, with the speed relative to a baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tl_attention.lab.measure import records
from tl_attention.lab.measure.records import Row
from tl_attention.lab.show.report import kernel_of, predicted_lines, recorded_for, recorded_lines, table

PROBLEM = {"batch": 4, "heads": 64, "seq_q": 8192, "seq_kv": 8192, "head_dim": 128, "dtype": "float16", "causal": False}


def row(name: str, ms: float | None = None, **fields: Any) -> Row:
    times = {} if ms is None else {"median_ms": ms, "p10_ms": ms - 0.1, "p90_ms": ms + 0.1, "tflops": 8796 / ms}
    sizes = "peer" if name in ("cudnn", "flash2") else "runtime"
    return replace(Row(name, name, sizes, PROBLEM, "ok", device="H200", run="monday", **times), **fields)


def test_rows_of_one_run_are_compared_round_by_round() -> None:
    seed = row("seed", 20.0, rounds_ms=(10.0, 20.0, 30.0))
    peer = row("cudnn", 10.0, rounds_ms=(10.0, 20.0, 6.0))
    shown = table([seed, peer])
    assert seed.speed(peer) == 1.0 and {line[shown.headings.index("speed / cudnn")] for line in shown.rows} == {"1.000"}
    assert seed.speed(replace(peer, run="tuesday")) == seed.speed(replace(peer, rounds_ms=())) == 0.5
    assert seed.speed(row("cudnn", status="refused")) is None


def test_a_predicted_time_or_its_lack_is_a_line_of_its_own() -> None:
    seed = row("seed")
    assert predicted_lines([seed, row("wide")], {kernel_of(seed): "15.500 ms"}) == ["seed (runtime): 15.500 ms"]


def test_columns_without_a_value_are_left_out_and_not_named() -> None:
    assert table([row("wide", status="refused", reason="no")]).fitting(80) == ([0, 1, 2], [])


def test_the_times_of_another_machine_are_those_of_the_same_code_and_problem() -> None:
    here = row("mine", status="checked_on_cpu", fingerprint="f757c4ee1c97", device=None)
    there = [
        row("best", 9.0, fingerprint="f757c4ee1c97", problem=PROBLEM | {"causal": True}),
        row("best", 10.0, fingerprint="f757c4ee1c97", problem=PROBLEM | {"dtype": "bfloat16"}),
        row("mine", 11.0, fingerprint="000000000000"),
        row("best", 12.0, fingerprint="f757c4ee1c97", device="NVIDIA H200", run="2026-11-21T10:50:27Z"),
    ]
    assert recorded_for(here, there) is there[3] and recorded_for(here, there[:3]) is None
    unnamed = [replace(row, fingerprint=None) for row in (here, there[3])]
    assert recorded_for(unnamed[0], unnamed[1:]) is None
    assert recorded_lines([here], there) == ["mine (runtime): 12.000 ms as best, 733 TFLOPS (NVIDIA H200, 2026-11-21)"]
    assert recorded_lines([replace(here, status="ok")], there) == []


def test_where_the_machine_code_differs_both_compilers_are_named() -> None:
    there = row(
        "best", 12.0, fingerprint="f757", machine_code="aaaa", nvcc="13.0.88", ptxas="13.0.88", device="NVIDIA H200"
    )
    here = replace(there, status="checked_on_cpu", median_ms=None, nvcc="13.2.41", ptxas="13.2.41")
    told = "made it there, nvcc 13.2.41 with ptxas 13.2.41 here"
    for code, words in {
        "aaaa": "",
        "bbbb": f"; the machine code differs: nvcc 13.0.88 with ptxas 13.0.88 {told}",
        None: f"; the machine code may differ: nvcc 13.0.88 with ptxas 13.0.88 {told}",
    }.items():
        [line] = recorded_lines([replace(here, machine_code=code)], [there])
        assert line.partition(")")[2].partition(")")[2] == words
    assert "differ" not in recorded_lines([replace(there, status="compiled", machine_code=None)], [there])[0]


def test_the_records_that_travel_along_have_a_time_each() -> None:
    rows = records.rows()
    assert len(rows) > 100 and all(entry.median_ms for entry in rows)
    assert {"best", "best_causal", "cudnn", "fa3"} <= {entry.name for entry in rows}
