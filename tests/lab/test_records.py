"""In the record of a run, what is written stays, no half line is left, and what is read is checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, python

from tl_attention.errors import InputError
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.records import Row, problem_of, read_rows
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

EVALUATED = ROOT / "results/evaluate-h200.jsonl"
CELLS = EVALUATED.with_name("cells-h200.jsonl")
PROBLEM = {"batch": 1, "heads": 2, "seq_q": 64, "seq_kv": 64, "head_dim": 128, "dtype": "float16", "causal": False}
ROW = Row(
    "seed",
    "pipelined_128x128",
    "runtime",
    PROBLEM,
    "ok",
    error_rms=1e-4,
    error_rms_budget=2e-4,
    median_ms=1.5,
    p10_ms=1.4,
    p90_ms=1.6,
    n=40,
    tflops=600.0,
    registers=168,
    stack_bytes=0,
    versions={"torch": "2.13"},
    run="now",
)
REFUSED = Row("wide", "pipelined_128x256", "runtime", PROBLEM, "refused", reason="needs 294,912 bytes")


def test_each_row_is_in_the_file_before_the_next_is_written_behind_those_that_are_there(tmp_path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    for before in (0, 2):
        results = ResultsFile(path)
        for count, row in enumerate((ROW, REFUSED), 1):
            results.append(row)
            assert (len(read_rows(path)), results.written) == (before + count, count)
    assert read_rows(path) == [ROW, REFUSED] * 2


def test_a_row_says_its_problem_in_words_of_its_own() -> None:
    for causal, mask in ((False, FULL), (True, CAUSAL)):
        shape = AttentionShape(1, 2, 64, 64, 128, mask=mask)
        assert list(problem_of(shape).items()) == list((PROBLEM | {"causal": causal}).items())
        assert replace(ROW, problem=problem_of(shape)).shape == shape


def test_an_error_that_is_no_number_leaves_valid_json(tmp_path) -> None:
    text = replace(ROW, error_rms=float("nan"), error_max_abs=float("inf")).to_json()
    row = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert "error_rms" not in row and "error_max_abs" not in row and row["error_rms_budget"] == 2e-4


def test_a_line_that_a_killed_process_left_half_written_does_not_swallow_the_next_row(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW.to_json() + "\n" + ROW.to_json()[:50])
    results = ResultsFile(path)
    results.append(REFUSED)
    assert json.loads(path.read_text().splitlines()[-1])["name"] == "wide"
    with pytest.raises(InputError, match=r"rows\.jsonl:2: not JSON"):
        read_rows(path)


FULL_DISK = """
import resource, sys
from pathlib import Path
from tl_attention.errors import InputError
from tl_attention.lab.measure.results_file import ResultsFile
from test_records import ROW
results = ResultsFile(Path(sys.argv[1]))
results.append(ROW)
size = results.path.stat().st_size
# The next row fits by half.
resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        results.append(ROW)
    except InputError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
results.append(ROW)
"""


def test_a_row_that_fits_by_half_leaves_the_rows_before_it_and_no_half_line(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    done = python("-c", FULL_DISK, str(path), cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    line = f"{path}: the row of seed cannot be written: File too large; rows before it, which are kept: 1"
    assert done.stdout.splitlines() == [line, line]
    assert read_rows(path) == [ROW, ROW], "the one before and the one after the disk was full"


def test_a_full_device_is_told_and_a_null_device_takes_all() -> None:
    results = ResultsFile(Path("/dev/full"))
    with pytest.raises(InputError, match="/dev/full: the row of seed cannot be written: No space left on device"):
        results.append(ROW)
    results = ResultsFile(Path("/dev/null"))
    results.append(ROW)
    assert Path("/dev/full").exists() and Path("/dev/null").exists()


def test_without_a_row_no_file_is_made_and_one_that_was_there_stays(tmp_path) -> None:
    (tmp_path / "old.jsonl").touch()
    for name in ("new.jsonl", "old.jsonl"):
        ResultsFile(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


@pytest.mark.parametrize("name, reason", [(".", "Is a directory"), ("file/rows.jsonl", "exists|Not a directory")])
def test_a_path_that_cannot_be_written_is_told_at_once(name, reason, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=f"cannot be written: .*({reason})"):
        ResultsFile(tmp_path / name)


FIELDS = json.loads(ROW.to_json())


def evaluation_line(**times: float) -> str:
    """Returns the first recorded evaluation of the results that ship, with other times in its first row."""
    values = json.loads(EVALUATED.read_text().splitlines()[0])
    values["rows"][0]["timing"] |= times
    return json.dumps(values)


def cell_line(**fields: object) -> str:
    """Returns the first recorded cell of the results that ship, with other fields in our entry."""
    values = json.loads(CELLS.read_text().splitlines()[0])
    next(entry for entry in values["entries"] if entry["name"] == OURS).update(fields)
    return json.dumps(values)


BAD_LINES = {
    "deep": ("[" * 100_000, "not JSON"),
    "an evaluation in no time": (
        evaluation_line(best_ms=0.0),
        "evaluation: rows[0].timing.best_ms: expected more than 0, found 0",
    ),
    "an evaluation in less than no time": (
        evaluation_line(mean_ms=-1.0),
        "evaluation: rows[0].timing.mean_ms: expected more than 0, found -1",
    ),
    "not UTF-8": (b"\xff\xfe", "not text: byte 0 is not UTF-8"),
    "more digits than Python reads": (json.dumps(FIELDS)[:-1] + f', "n": 1{"0" * 9999}}}', "or too large for a float"),
    "a cell without ours": (cell_line(name="theirs"), "entries: expected one of the name 'ours'"),
    "a cell of no work": (cell_line(flops=0), "entries[0].flops: expected more than 0, found 0"),
    "a cell in no time": (cell_line(rounds_ms=[0.0]), "entries[0].rounds_ms[0]: expected more than 0"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_is_no_row_is_named_and_the_others_are_shown(name, tmp_path, cli) -> None:
    line, words = BAD_LINES[name]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(f"{ROW.to_json()}\n\n".encode() + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    result = cli("report", path)
    assert result.exit_code == 0 and "1.500 (1.400-1.600)" in result.stdout
    assert result.stderr.startswith(f"skipped: {path}:3: ") and words in result.stderr
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 1000


def test_a_file_of_something_else_is_one_line_beside_what_is_shown(tmp_path, cli) -> None:
    (tmp_path / "notes.md").write_text("a\n" * 50)
    (tmp_path / "rows.jsonl").write_text(ROW.to_json())
    result = cli("report", tmp_path / "notes.md", tmp_path / "rows.jsonl")
    assert result.exit_code == 0 and result.stderr.count("\n") == 1 and "(and 49 more lines)" in result.stderr


def test_every_shipped_record_is_shown_and_so_is_what_a_half_line_stands_between(cli, tmp_path) -> None:
    # Trainings and the host's time are no table of times (docs/pytorch-measurements.md), and profiles have a command.
    records = (ROOT / "results").glob("*.jsonl")
    shipped = sorted(path for path in records if not path.name.startswith(("training", "host", "profile")))
    (tmp_path / "half.jsonl").write_text(f"{ROW.to_json()}\n{ROW.to_json()[:70]}\n{REFUSED.to_json()}\n")
    result = cli("report", *shipped, tmp_path / "half.jsonl")
    assert result.exit_code == 0
    assert result.stderr == f"skipped: {tmp_path}/half.jsonl:2: not JSON, expected one row of results a line\n"
    for words in ("best_causal", "leaderboard_submit", "refused: needs 294,912 bytes"):
        assert words in result.stdout


def test_a_file_of_an_older_version_that_lacks_newer_fields_is_read(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({name: FIELDS[name] for name in ("name", "label", "sizes", "problem", "status")}))
    assert read_rows(path) == [Row("seed", "pipelined_128x128", "runtime", PROBLEM, "ok")]
