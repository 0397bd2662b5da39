"""Tables are views of the rows: ranked, one for each run and problem, with the speed relative to a baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tl_attention.records import ResultsFile, Row
from tl_attention.report import COLUMNS, by_problem, cells, markdown_table, parse_columns, ranked, reasons, title

PROBLEM = {"batch": 4, "heads": 64, "seq_q": 8192, "seq_kv": 8192, "head_dim": 128, "dtype": "float16", "causal": False}


def row(name: str, ms: float | None = None, **fields: Any) -> Row:
    times = {} if ms is None else {"median_ms": ms, "p10_ms": ms - 0.1, "p90_ms": ms + 0.1, "tflops": 8796 / ms}
    sizes = "peer" if name in ("cudnn", "flash2") else "runtime"
    return replace(Row(name, name, sizes, PROBLEM, "ok", device="H200", run="monday", **times), **fields)


ROWS = [
    row("seed", 16.0, error_rms=1e-4, error_rms_budget=2e-4, registers=255, stack_bytes=0, shared_bytes=163840,
        fingerprint="897102b67f40", percent_of_matmul=70.04, matmul_tflops=712.0),
    row("wide", status="refused", reason="needs 294,912 bytes"),
    row("cudnn", 14.0), row("flash2", 28.0),
    row("late", 20.0, fingerprint="897102b67f40", same_code_as="seed"),
]


@pytest.fixture
def recorded(tmp_path):
    with ResultsFile(tmp_path / "rows.jsonl") as results:
        for entry in ROWS:
            results.append(entry)
    return results.path


def column(text: str, heading: str) -> list[str]:
    """The cells below a heading of a Markdown table."""
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    index = table[0].index(heading)
    return [line[index] for line in table[2:]]


def test_timed_rows_come_first_and_the_fastest_of_them_leads() -> None:
    assert [entry.name for entry in ranked(ROWS)] == ["cudnn", "seed", "late", "flash2", "wide"]


def test_the_ratio_is_the_speed_relative_to_cudnn(cli, recorded) -> None:
    text = cli("report", recorded, "--markdown").stdout
    assert column(text, "schedule") == ["cudnn", "seed", "late", "flash2", "wide"]
    assert column(text, "speed / cudnn") == ["1.000", "0.875", "0.700", "0.500", ""]


def test_the_ratio_is_relative_to_the_named_baseline(cli, recorded) -> None:
    text = cli("report", recorded, "--markdown", "--baseline", "seed", "--columns", "schedule,ratio").stdout
    assert column(text, "speed / seed") == ["1.143", "1.000", "0.800", "0.571", ""]


def test_without_the_default_baseline_the_ratio_is_empty() -> None:
    text = markdown_table([entry for entry in ROWS if entry.name != "cudnn"], ("schedule", "ratio"))
    assert set(column(text, "speed / cudnn")) == {""}


def test_a_baseline_with_both_kinds_of_sizes_is_its_faster_row() -> None:
    rows = [row("seed", 16.0), row("seed", 12.0, sizes="fixed"), row("late", 24.0)]
    assert column(markdown_table(rows, ("ratio",), "seed"), "speed / seed") == ["0.750", "1.000", "0.500"]


def test_every_column_shows_its_value() -> None:
    assert dict(zip(COLUMNS, cells(ROWS[0], reference=ROWS[2]))) == {
        "schedule": "seed", "sizes": "runtime", "status": "ok", "ms": "16.000 (15.900-16.100)", "tflops": "550",
        "matmul": "70.0", "ratio": "0.875", "error": "0.50", "registers": "255", "spills": "0", "shared": "160",
        "code": "897102b67f40",
    }


def test_what_is_not_known_is_an_empty_cell() -> None:
    assert set(cells(ROWS[1])[3:]) == {""}


def test_the_same_code_under_another_name_is_said() -> None:
    assert cells(ROWS[4], ("code",)) == ("897102b67f40 = seed",)


def test_two_runs_of_a_problem_are_two_tables_since_their_times_do_not_compare(cli, recorded) -> None:
    assert len(by_problem([*ROWS, row("seed", 9.0, run="tuesday")])) == 2
    with ResultsFile(recorded) as results:
        results.append(row("seed", 9.0, run="tuesday"))
    text = cli("report", recorded, "--markdown").stdout
    assert text.count("(4, 64, 8192, 128) float16, H200") == 2
    assert column(text.split("tuesday")[1], "speed / cudnn") == [""]


def test_two_problems_are_two_tables(cli, tmp_path) -> None:
    files = []
    for dtype in ("float16", "bfloat16"):
        files.append(tmp_path / f"{dtype}.jsonl")
        with ResultsFile(files[-1]) as results:
            results.append(row("seed", 9.0, problem=PROBLEM | {"dtype": dtype}))
    text = cli("report", *files, "--markdown").stdout
    assert "(4, 64, 8192, 128) float16, H200" in text and "(4, 64, 8192, 128) bfloat16, H200" in text


def test_the_title_names_problem_device_and_the_measured_matrix_product() -> None:
    assert title(ROWS) == "(4, 64, 8192, 128) float16, H200, matrix product 712 TFLOPS, monday"
    ragged = row("seed", problem=PROBLEM | {"seq_q": 1, "causal": True}, device=None)
    assert title([ragged]) == "(4, 64, 1/8192, 128) float16 causal, no GPU, monday"


def test_every_row_that_failed_says_why() -> None:
    assert reasons(ROWS) == ["wide (runtime): refused: needs 294,912 bytes"]


def test_the_terminal_shows_the_same_cells_and_the_reasons(cli, recorded) -> None:
    result = cli("report", recorded)
    assert result.exit_code == 0 and "wide (runtime): refused: needs 294,912 bytes" in result.stdout
    for entry in ROWS:
        assert all(cell in result.stdout for cell in cells(entry))


def test_brackets_and_bars_in_a_name_are_shown_as_they_are(cli, tmp_path) -> None:
    with ResultsFile(tmp_path / "rows.jsonl") as results:
        results.append(row("a[/bold]|b", 9.0))
    assert "a[/bold]|b" in cli("report", results.path).stdout
    assert "| a[/bold]\\|b |" in cli("report", results.path, "--markdown").stdout


def test_columns_are_chosen_and_ordered_by_name() -> None:
    assert parse_columns("ms, schedule") == ("ms", "schedule") and parse_columns(None) == tuple(COLUMNS)
    assert markdown_table(ROWS[:1], ("tflops", "schedule")).splitlines()[0] == "| TFLOPS | schedule |"


@pytest.mark.parametrize("options, words", [
    (["--columns", "schedule,speed"], "'speed' is no column, expected some of schedule, sizes"),
    (["--columns", "ms,ms"], "'ms' is given twice"),
    (["--columns", ""], "'' is no column"),
    (["--baseline", "cuDNN"], "no timed row is named 'cuDNN', expected one of cudnn, flash2, late, seed"),
    (["--baseline", "wide"], "no timed row is named 'wide'"),
])
def test_an_unknown_column_or_baseline_is_told(options, words, error_of, recorded) -> None:
    assert words in error_of("report", recorded, *options)


def test_a_file_without_rows_is_told(error_of, tmp_path) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert "no rows, expected the JSON lines that run or bench recorded" in error_of("report", tmp_path / "rows.jsonl")
