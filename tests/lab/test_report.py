"""Tables are views of the rows: ranked, one for each run and problem, with the speed relative to a baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tl_attention.lab.measure import records
from tl_attention.lab.measure.records import Row
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.show.report import (
    by_problem,
    kernel_of,
    predicted_lines,
    ranked,
    reasons,
    recorded_for,
    recorded_lines,
    table,
    title,
)

PROBLEM = {"batch": 4, "heads": 64, "seq_q": 8192, "seq_kv": 8192, "head_dim": 128, "dtype": "float16", "causal": False}


def row(name: str, ms: float | None = None, **fields: Any) -> Row:
    times = {} if ms is None else {"median_ms": ms, "p10_ms": ms - 0.1, "p90_ms": ms + 0.1, "tflops": 8796 / ms}
    sizes = "peer" if name in ("cudnn", "flash2") else "runtime"
    return replace(Row(name, name, sizes, PROBLEM, "ok", device="H200", run="monday", **times), **fields)


ROWS = [
    row(
        "seed", 16.0, error_max_abs=3e-5, error_max_abs_budget=1e-4, registers=255, stack_bytes=0, shared_bytes=163840,
        fingerprint="897102b67f40", percent_of_matmul=70.04, matmul_tflops=712.0,
    ),
    row("wide", status="refused", reason="needs 294,912 bytes"),
    row("cudnn", 14.0),
    row("flash2", 28.0),
    row("late", 20.0, fingerprint="897102b67f40", same_code_as="seed"),
]  # fmt: skip


@pytest.fixture
def record(tmp_path):
    results = ResultsFile(tmp_path / "rows.jsonl")
    for entry in ROWS:
        results.append(entry)
    return results.path


def column(text: str, heading: str) -> list[str]:
    """Returns the cells below a heading of a Markdown table."""
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    index = table[0].index(heading)
    return [line[index] for line in table[2:]]


def markdown(*given) -> str:
    return table(*given).markdown()


def cells(entry: Row, beside: Row | None = None) -> dict[str, str]:
    shown = table([entry, *([beside] if beside else [])])
    return dict(zip(shown.headings, shown.rows[0]))


def test_the_ratio_is_the_speed_relative_to_cudnn(cli, record) -> None:
    text = cli("report", record, "--markdown").stdout
    assert column(text, "schedule") == ["cudnn", "seed", "late", "flash2", "wide"]
    assert column(text, "speed / cudnn") == ["1.000", "0.875", "0.700", "0.500", ""]


def test_the_ratio_is_relative_to_the_named_baseline(cli, record) -> None:
    text = cli("report", record, "--markdown", "--baseline", "seed").stdout
    assert column(text, "speed / seed") == ["1.143", "1.000", "0.800", "0.571", ""]


def test_rows_of_one_run_are_compared_round_by_round() -> None:
    seed = row("seed", 20.0, rounds_ms=(10.0, 20.0, 30.0))
    peer = row("cudnn", 10.0, rounds_ms=(10.0, 20.0, 6.0))
    assert seed.speed(peer) == 1.0 and column(markdown([seed, peer]), "speed / cudnn") == ["1.000", "1.000"]
    assert seed.speed(replace(peer, run="tuesday")) == seed.speed(replace(peer, rounds_ms=())) == 0.5
    assert seed.speed(row("cudnn", status="refused")) is None


def test_a_baseline_with_both_kinds_of_sizes_is_its_faster_row() -> None:
    rows = [row("seed", 16.0), row("seed", 12.0, sizes="fixed"), row("late", 24.0)]
    assert column(markdown(rows, "seed"), "speed / seed") == ["0.750", "1.000", "0.500"]


def test_every_column_shows_its_value() -> None:
    assert cells(ROWS[0], beside=ROWS[2]) == {
        "schedule": "seed",
        "sizes": "runtime",
        "status": "ok",
        "ms (p10-p90)": "16.000 (15.900-16.100)",
        "TFLOPS": "550",
        "% of matmul": "70.0",
        "speed / cudnn": "0.875",
        "max error / budget": "0.30",
        "registers": "255",
        "stack B": "0",
        "shared kB": "160",
        "code": "897102b67f40",
    }


def test_a_predicted_time_or_its_lack_is_a_line_of_its_own() -> None:
    assert predicted_lines(ROWS[:2], {kernel_of(ROWS[0]): "15.500 ms"}) == ["seed (runtime): 15.500 ms"]


def test_what_is_not_known_is_an_empty_cell() -> None:
    assert set([*cells(ROWS[1]).values()][3:]) == {""}


def test_the_same_code_under_another_name_is_said() -> None:
    assert cells(ROWS[4])["code"] == "897102b67f40 = seed"


def test_two_runs_of_a_problem_are_two_tables_since_their_times_do_not_compare(cli, record) -> None:
    assert len(by_problem([*ROWS, row("seed", 9.0, problem=PROBLEM | {"dtype": "bfloat16"})])) == 2
    results = ResultsFile(record)
    results.append(row("seed", 9.0, run="tuesday"))
    text = cli("report", record, "--markdown").stdout
    assert text.count("(4, 64, 8192, 128) float16, H200") == 2
    assert column(text.split("tuesday")[1], "speed / cudnn") == [""]


def test_the_title_names_problem_device_and_the_measured_matrix_product() -> None:
    assert title(ROWS) == "(4, 64, 8192, 128) float16, H200, matrix product 712 TFLOPS, monday"
    ragged = row("seed", problem=PROBLEM | {"seq_q": 1, "causal": True}, device=None)
    assert title([ragged]) == "(4, 64, 1/8192, 128) float16 causal, no GPU, monday"


def test_the_same_reason_is_said_once_with_the_rows_that_have_it() -> None:
    rows = [
        row(name, status="checked_on_cpu", reason="no GPU", problem=PROBLEM | {"dtype": dtype})
        for dtype in ("float16", "bfloat16")
        for name in ("seed", "best")
    ]
    rows.append(row("wide", status="refused", reason="too large", problem=PROBLEM | {"dtype": "bfloat16"}))
    assert reasons(rows) == [
        "checked_on_cpu, 4 rows: no GPU\n    seed, best (runtime float16, runtime bfloat16)",
        "wide (runtime bfloat16): refused: too large",
    ]


def test_a_reason_names_the_problem_where_there_are_several() -> None:
    rows = [row("seed", 1.0), row("wide", status="refused", reason="no", problem=PROBLEM | {"causal": True})]
    assert reasons(rows) == ["wide (runtime (4, 64, 8192, 128) float16 causal): refused: no"]


# The columns in their order, a word for each.
NAMES = (
    "schedule",
    "sizes",
    "status",
    "ms",
    "tflops",
    "matmul",
    "ratio",
    "error",
    "registers",
    "stack",
    "shared",
    "code",
)


@pytest.mark.parametrize(
    "width, shown, left_out",
    [
        (200, "schedule sizes status ms tflops matmul ratio error registers stack shared code", ""),
        (80, "schedule sizes status ms tflops matmul ratio", "error registers stack shared code"),
        (66, "schedule sizes status ms ratio", "tflops matmul error registers stack shared code"),
        (5, "schedule", "sizes status ms tflops matmul ratio error registers stack shared code"),
    ],
)
def test_a_narrow_terminal_keeps_the_columns_that_say_most(width, shown, left_out) -> None:
    whole = table([*ROWS, row("fa3_pipelined", 18.0)])
    fitting = whole.fitting(width)
    assert [[NAMES[n] for n in columns] for columns in fitting] == [shown.split(), left_out.split()]
    assert max(map(len, whole.picked(fitting[0]).lines())) <= max(width, len("fa3_pipelined"))


def test_columns_without_a_value_are_left_out_and_not_named() -> None:
    assert table([row("wide", status="refused", reason="no")]).fitting(80) == ([0, 1, 2], [])


@pytest.mark.parametrize("columns", [20, 80, 100])
def test_no_word_of_a_table_is_broken_and_what_is_left_out_is_named(columns, cli, record, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = cli("report", record).stdout
    assert [line.split()[0] for line in text.split("---\n")[1].splitlines()[:5]] == [r.name for r in ranked(ROWS)]
    assert "also recorded: " in text and "shared kB, code; a wider terminal shows them" in " ".join(text.split())


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


def test_the_terminal_shows_the_same_cells_and_the_reasons(cli, record, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = cli("report", record)
    assert result.exit_code == 0 and "wide (runtime): refused: needs 294,912 bytes" in result.stdout
    for entry in ROWS:
        assert all(cell in result.stdout for cell in cells(entry).values())


def test_brackets_and_bars_in_a_name_are_shown_as_they_are(cli, tmp_path) -> None:
    results = ResultsFile(tmp_path / "rows.jsonl")
    results.append(row("a[/bold]|b", 9.0))
    assert "a[/bold]|b" in cli("report", results.path).stdout
    assert "| a[/bold]\\|b |" in cli("report", results.path, "--markdown").stdout


@pytest.mark.parametrize("options", [(), ("--markdown",)])
def test_no_control_character_of_a_name_or_a_reason_reaches_the_terminal(options, cli, tmp_path) -> None:
    results = ResultsFile(tmp_path / "rows.jsonl")
    results.append(row("\x1b[31mred\n", status="refused", reason="\x1b]0;title\x07", device="\x9b1m"))
    results.append(row("twin", 9.0, same_code_as="\x1b[31mred\n", run="\x1b[2J"))
    text = cli("report", results.path, *options).stdout
    assert "\\x1b[31mred\\n" in text and "twin" in text
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--baseline", "cuDNN"], "no timed row is named 'cuDNN', expected one of cudnn, flash2, late, seed"),
        (["--baseline", "wide"], "no timed row is named 'wide'"),
    ],
)
def test_an_unknown_baseline_is_told(options, words, error_of, record) -> None:
    assert words in error_of("report", record, *options)


def test_a_file_without_rows_is_told(error_of, tmp_path) -> None:
    (tmp_path / "rows.jsonl").touch()
    message = error_of("report", tmp_path / "rows.jsonl")
    assert "no rows, expected the JSON lines that run, bench, compare or submit --evaluate recorded" in message
