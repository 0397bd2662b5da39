"""Every file that ships is read, and one that is damaged ends in one line that names it, or is shown like any other."""

from __future__ import annotations

import functools
import random
import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from damage import damaged
from stand_in import KERNEL
from test_trace_picture import timeline as two_iterations
from tiers import sampled
from timelines import timeline

from tl_attention.compiler import store
from tl_attention.compiler.scratch import scratch_file
from tl_attention.errors import InputError
from tl_attention.lab.cli.report import _entry
from tl_attention.lab.files.ladder_file import ladder_names, load_ladder
from tl_attention.lab.leaderboard import results as evaluations
from tl_attention.lab.leaderboard.contract import RANKED_LINES, read_test_lines
from tl_attention.lab.leaderboard.evaluate import evaluate
from tl_attention.lab.machine_code.sass import cuobjdump
from tl_attention.lab.measure.cell import load_cells
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import Row, parse_line, read_lines, read_rows
from tl_attention.lab.model import machine
from tl_attention.lab.show import cells as shown_cells
from tl_attention.lab.show import ladder as shown_ladder
from tl_attention.lab.show import profile as shown_profile
from tl_attention.lab.show import report as shown_rows
from tl_attention.lab.show import timeline as shown_timeline
from tl_attention.lab.trace import chrome, page, picture
from tl_attention.lab.trace.timeline import Timeline
from tl_attention.schedule.files import catalogue
from tl_attention.schedule.files.named import load

RESULTS = ROOT / "results"
TIMELINES = sorted(path.stem for path in (RESULTS / "timelines").glob("*.json"))
CELLS = sorted(path.name for path in RESULTS.glob("*.yaml") if "groups:" in path.read_text())
# These have lines of tools, which read them.
OF_TOOLS = ("host", "training")
RECORDS = sorted(path.name for path in RESULTS.glob("*.jsonl") if not path.name.startswith(OF_TOOLS))


def show_timeline(file: Path, draws: bool = True) -> None:
    """Shows a timeline in every view; a picture needs two steady iterations, which not every timeline has."""
    found = Timeline.read(file)
    assert shown_timeline.table(found).section() and "" not in shown_timeline.below(found)
    assert [*chrome.events_of(found)] and page.text([found])
    if draws:
        try:
            picture.drawn([found])
        except InputError as error:
            assert "two steady iterations" in str(error)


def rows_of(file: Path) -> list[Any]:
    """Reads a record as `report` and `profile --of` do."""
    lines, of_profile = read_lines(file), file.name.startswith("profile")
    return [parse_line(ProfileRow, line, where) if of_profile else _entry(line, where, file) for where, line in lines]


def show_record(file: Path) -> None:
    """Reads and shows a record."""
    for row in rows_of(file):
        if isinstance(row, ProfileRow):
            assert shown_profile.table(row).section() and shown_profile.stall_table([row]).section()
            assert [*shown_profile.below([row])]
        elif isinstance(row, CellRow):
            assert shown_cells.markdown([row])
        elif isinstance(row, Row):
            assert shown_rows.table([row], None).section()
            [*shown_rows.loop_lines([row])]
        else:
            assert evaluations.table(row.heading, [(row.name, row.evaluation)], row.name).section()


@pytest.mark.parametrize("name", sampled(TIMELINES, ["drift", "predicted-best", "seed"]))
def test_every_timeline_that_ships_is_shown_in_every_view(name) -> None:
    show_timeline(RESULTS / f"timelines/{name}.json")


@pytest.mark.parametrize("name", sampled(RECORDS, ["cells-h100.jsonl", "evaluate-h100.jsonl", "profile-h200.jsonl"]))
def test_every_record_that_ships_is_shown(name) -> None:
    show_record(RESULTS / name)


def test_every_file_that_ships_is_read() -> None:
    assert all(load_cells(RESULTS / name) for name in CELLS) and len(CELLS) == 10
    assert all(load_ladder(name).steps for name in ladder_names())
    assert all(machine.load(name).title for name in machine.names())
    assert all(load(name).label for name in catalogue.all_names())
    assert all(Timeline.read(RESULTS / f"timelines/{name}.json").about.name for name in TIMELINES)
    assert all(rows_of(RESULTS / name) for name in RECORDS)


# --- damaged files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A Kind of file has the form that damages are drawn for, examples, and a function that reads and shows one."""

    form: str
    examples: Callable[[Path], list[bytes]]  # small ones
    show: Callable[[Path], object]


CELLS_TEXT = b"""tokens: 4096
graph: true
groups:
  d64:
    heads: 16
    heads_kv: 4
    head_dim: 192/128
    seq: [1024, 4096]
    causal: [false, true]
    window: [-1, -1]
    lse: true
    peers: {fa3: 0.97, cudnn: null, without_lse: 0.9}
    mean: 1.0
  packed:
    heads: 8
    head_dim: 64
    lengths: {eq: 8x512, drawn: 2926+227/400}
    schedule: d64
    dtype: fp16
    peers: {"ours:d64": 0.5}
"""
SCHEDULE_TEXT = b"""base: best
summary: a damaged one
head_dims: [128]
block_N: 128
split: {exp: [48, 80]}
kernel: {registers: [240, 24]}
wait_before: {mma1: exp.1}
"""


def lines_of(*names: str) -> list[bytes]:
    """Returns the shortest line of each of these records."""
    return [min((RESULTS / name).read_bytes().splitlines(), key=len) + b"\n" for name in names]


def timelines_in(folder: Path) -> list[bytes]:
    for name, found in (("some", timeline()), ("two iterations", two_iterations())):
        found.write(folder / name)
    drift = (RESULTS / "timelines/drift.json").read_bytes()
    return [(folder / "some").read_bytes(), (folder / "two iterations").read_bytes(), drift]


@functools.cache
def ladder_rows() -> list[Row]:
    return read_rows(RESULTS / "ladder-rtx3090_tuned-h200.jsonl")


def show_ladder(file: Path) -> None:
    """Shows a ladder as `ladder FILE --of RECORD` does."""
    found = load_ladder(file)
    steps = shown_ladder.by_name(ladder_rows(), found)
    if steps:
        assert shown_ladder.table(found, steps).section() and [*shown_ladder.below(found, steps)]


def show_cells(file: Path) -> None:
    assert all(f"{cell.name} {cell.shape}" for cell in load_cells(file))


def show_kernel(file: Path) -> None:
    """A stored kernel that is not what was kept under its name is taken for absent."""
    kernel = file.with_name("kernel.so")
    kernel.write_bytes(file.read_bytes())
    assert store.read(kernel) in (None, KERNEL)


def kernel_in(folder: Path) -> list[bytes]:
    store.keep(folder / "kernel.so", KERNEL)
    return [(folder / "kernel.so").read_bytes()]


KINDS = {
    "schedule.yaml": Kind("yaml", lambda folder: [SCHEDULE_TEXT, (ROOT / "schedules/seed.yaml").read_bytes()], load),
    "cells.yaml": Kind("yaml", lambda folder: [CELLS_TEXT], show_cells),
    "ladder-x.yaml": Kind("yaml", lambda folder: [(RESULTS / "ladder-rtx3090_tuned.yaml").read_bytes()], show_ladder),
    "machine.yaml": Kind(
        "yaml", lambda folder: [(machine.FOLDER / "h200.yaml").read_bytes()], lambda path: machine.load(str(path))
    ),
    "rows.jsonl": Kind(
        "jsonl",
        lambda folder: lines_of(
            *("bench-h200-L.jsonl", "experiments-h200.jsonl", "cells-h200.jsonl", "packed-h200.jsonl"),
            *("evaluate-h200.jsonl", "evaluate-cold-h200.jsonl"),
        ),
        show_record,
    ),
    "profile.jsonl": Kind("jsonl", lambda folder: lines_of("profile-h200.jsonl"), show_record),
    "timeline.json": Kind("json", timelines_in, lambda path: show_timeline(path, draws=path.stat().st_size % 8 == 0)),
    "lines.txt": Kind("", lambda folder: [b"".join(f"{line}\n".encode() for line in RANKED_LINES)], read_test_lines),
    "kernel": Kind("", kernel_in, show_kernel),
}
SAMPLE, WHOLE = 12, 630


@pytest.mark.parametrize(
    "name,first,count",
    sampled(
        [(name, *part) for name in KINDS for part in ((0, SAMPLE), (SAMPLE, WHOLE))],
        [(name, 0, SAMPLE) for name in KINDS],
    ),
)
def test_a_damaged_file_is_one_line_or_is_shown(name, first, count, tmp_path) -> None:
    kind, file = KINDS[name], tmp_path / name
    examples = kind.examples(tmp_path)
    for example in examples:
        file.write_bytes(example)
        kind.show(file)
    refused = 0
    for number in range(first, first + count):
        draw = random.Random(f"{name} {number}")
        file.write_bytes(damaged(draw, draw.choice(examples), kind.form))
        try:
            kind.show(file)
        except InputError as error:
            refused += 1
            assert error.lines and all(line.startswith(str(file)) and line.isprintable() for line in error.lines), (
                number
            )
        except Exception as error:
            raise AssertionError(f"{name}, damage {number}: {error!r}") from error
    assert refused > count / 3 or name == "kernel"


@pytest.mark.parametrize(
    "write",
    [
        lambda data: cuobjdump(data, "--dump-sass"),
        lambda data: scratch_file("x", data).__enter__(),
        lambda data: evaluate("x.py", data, RANKED_LINES, device="cpu"),
    ],
)
@pytest.mark.parametrize("way", ["full", "no folder"])
def test_a_temporary_file_that_cannot_be_written_is_one_line(write, way, monkeypatch) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if way == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    else:
        monkeypatch.setattr(tempfile, "tempdir", "/tl-attention-none")
    try:
        with pytest.raises(InputError, match="cannot be written: .*; set TMPDIR to a folder with room$"):
            write(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
