"""Command lines of good and bad words end in their work, or in one line; what lies in the folder stays as it was.

Compiling, timing and predicting are replaced by stand-ins that return at once.
"""

from __future__ import annotations

import os
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import ROOT
from test_damaged import CELLS_TEXT, RESULTS, SCHEDULE_TEXT, lines_of
from test_records import ROW
from test_trace_picture import timeline as two_iterations
from tiers import sampled
from timelines import timeline

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels import preflight
from tl_attention.lab.cli import main
from tl_attention.lab.cli.options import HeadSizeType
from tl_attention.lab.cli.outputs import OutputFile
from tl_attention.lab.files.kinds import CHROME, MACHINE, PAGE, PICTURE, RECORD, SEARCH_PAGE, SUBMISSION, TIMELINE, Kind
from tl_attention.lab.leaderboard import evaluate, submission
from tl_attention.lab.leaderboard.results import Evaluation, LineResult, Outcome
from tl_attention.lab.measure import bench, cells, compilation, doctor
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import parse_line, problem_of
from tl_attention.lab.model import machine as machines
from tl_attention.lab.model import prediction
from tl_attention.lab.model import timeline as predicted_timeline
from tl_attention.lab.show import diff
from tl_attention.lab.trace import chrome, page, picture, recording

# --- the folder -------------------------------------------------------------------------------------------------------

FOREIGN = {
    "mine.yaml": SCHEDULE_TEXT,
    "bad.yaml": b"base: best\nblock_N: 100\n",
    "folder/one.yaml": b"base: seed\n",
    "cells.yaml": CELLS_TEXT,
    "ladder-mine.yaml": (RESULTS / "ladder-rtx3090_tuned.yaml").read_bytes(),
    "lines.txt": b"batch_size: 1; num_heads: 2; seq_len: 64; head_dim: 128; seed: 3\n",
    "notes.md": b"# What I measured\n",
    "package.json": b'{"name": "mine", "version": "1"}',
    "problems.jsonl": b'{"problem": "What is 1 + 1?", "solution": "2"}\n',
    "other.py": b"def attention(data):\n    return data\n",
    "photo.svg": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>\n',
    "page-of-mine.html": b"<!doctype html>\n<title>Mine</title>\n",
    "damaged.json": b'{"form":"tl-attention timeline 3","about":{}}',
    "damaged.jsonl": b'{"name": "seed", "label": 3}\n',
}
LINKS = {"link.yaml": "mine.yaml", "link.json": "timeline.json", "link.jsonl": "rows.jsonl"}
HARD_LINKS = {"hard.json": "timeline.json"}
NEW = (
    *("new.json", "new.chrome.json", "new.jsonl", "new.html", "new.svg", "new.png", "new.yaml", "new.py"),
    *("sub/new.jsonl", "no/way/new.jsonl"),
)
NOWHERE = (
    "/dev/null",
    ".",
    "folder",
    "",
    "mine.yaml/x.json",
    "/tl-attention-none/x.py",
    "x" * 300,
    "a\0b",
    "\ud800.json",
)


@dataclass(frozen=True)
class Ours:
    """An Ours is a file that commands made: its kind, and its bytes."""

    kind: Kind
    data: bytes


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ours]:
    """Holds a file of each kind that commands write, as they write it."""
    folder = tmp_path_factory.mktemp("made")
    two_iterations().write(folder / "timeline.json")
    timeline().write(folder / "other.json")
    chrome.write(timeline(), folder / "chrome.json")
    page.write([timeline()], folder / "page.html")
    for name in ("picture.svg", "picture.png"):
        picture.write([two_iterations()], folder / name)

    def made(kind: Kind, *names: str) -> dict[str, Ours]:
        return {name: Ours(kind, (folder / name).read_bytes()) for name in names}

    rows = {"rows.jsonl": "bench-h200-L", "cells.jsonl": "cells-h200", "profile.jsonl": "profile-h200"}
    rows |= {"evaluated.jsonl": "evaluate-h200"}
    return {
        **made(TIMELINE, "timeline.json", "other.json"),
        **made(CHROME, "chrome.json"),
        **made(PAGE, "page.html"),
        **made(PICTURE, "picture.svg", "picture.png"),
        **{name: Ours(RECORD, lines_of(f"{record}.jsonl")[0]) for name, record in rows.items()},
        "machine.yaml": Ours(MACHINE, (machines.FOLDER / "h200.yaml").read_bytes()),
        "leaderboard_submit.py": Ours(SUBMISSION, (ROOT / "leaderboard_submit.py").read_bytes()),
    }


def test_a_kind_is_known_of_each_file_that_is_written_and_of_no_other(ours) -> None:
    kinds = (CHROME, MACHINE, PAGE, PICTURE, RECORD, SEARCH_PAGE, SUBMISSION, TIMELINE)
    for name, found in ours.items():
        assert [kind for kind in kinds if kind.begins.match(found.data)] == [found.kind], name
    for name, data in FOREIGN.items():
        known = [kind for kind in kinds if kind.begins.match(data)]
        assert known == ([TIMELINE] if name == "damaged.json" else []), name
    for record in RESULTS.glob("*.jsonl"):
        assert RECORD.begins.match(record.read_bytes()), record
    cut = ROW.to_json()[:50].encode()
    assert RECORD.begins.match(b"\n" + ROW.to_json().encode()) and RECORD.begins.match(cut)
    assert RECORD.begins.match(cut + b"\n" + ROW.to_json().encode())


def lay_out(files: dict[str, bytes]) -> None:
    """Writes these files, and the links to some of them, into the current folder."""
    for name, data in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(data)
    for links, link in ((LINKS, os.symlink), (HARD_LINKS, os.link)):
        for name, target in links.items():
            if not os.path.lexists(name):
                link(target, name)


def what_is_there() -> dict[str, bytes]:
    """Returns the bytes of each file below the current folder, but for runs/."""
    found = (path for path in Path().rglob("*") if path.is_file() and path.parts[0] != "runs")
    return {str(path): path.read_bytes() for path in found}


# --- the stand-ins ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all that compiles, times or predicts return at once, and a schedule be proved once."""
    cell = parse_line(CellRow, lines_of("cells-h200.jsonl")[0], "here")
    packed = (ROOT / "leaderboard_submit.py").read_text()

    def recorded(rows: list[Any], record: Any) -> list[Any]:
        for row in rows:
            record(row)
        return rows

    def row_of(candidate: Any) -> Any:
        names = {"name": candidate.name, "label": candidate.label, "sizes": candidate.sizes}
        return replace(ROW, **names, problem=problem_of(candidate.shape))

    def steps_of(found: Any) -> list[Any]:
        problem = problem_of(found.shape)
        return [
            replace(ROW, name=step.name, label=step.schedule.schedule.label, problem=problem) for step in found.measured
        ]

    def cell_of(one: Any) -> CellRow:
        return replace(cell, cell=one.name, group=one.group, problem=problem_of(one.shape))

    def predicted(candidate: Any, machine: Any) -> Any:
        numbers = {"cycles": 1e6, "clock_mhz": 1e3, "iteration": 1e3, "tile": 1e4, "blocks": 47, "instructions": 600}
        return prediction.Prediction(
            candidate.name,
            candidate.shape,
            machine.title,
            **numbers,
            busy={"issue slots": 0.5},
            waits={"wait mma0": 100.0},
        )

    def evaluated(name: str, source: bytes, lines: Any, mode: str, device: str) -> Evaluation:
        rows = tuple(LineResult(line, Outcome("pass", "", 1.0), True, True) for line in lines)
        return Evaluation(name, "", mode, device, {}, Outcome("pass", "", 1.0), rows)

    safe, known = preflight.refuse_unless_safe, dict[Any, Any]()

    def proved_once(planned: Any, *of: Any) -> None:
        key = planned.schedule.label, *of
        if key not in known:
            try:
                known[key] = safe(planned, *of)
            except ScheduleRefused as refusal:
                known[key] = refusal
        if known[key]:
            raise known[key]

    for module, name, stand_in in (
        (preflight, "refuse_unless_safe", proved_once),
        (bench, "measure", lambda found, record, *_, **__: recorded([*map(row_of, found)], record)),
        (bench, "climb", lambda found, card, record, *_, **__: recorded(steps_of(found), record)),
        (cells, "measure", lambda found, record, *_, **__: recorded([*map(cell_of, found)], record)),
        (prediction, "predict", predicted),
        (predicted_timeline, "predicted", lambda *_: timeline()),
        (recording, "record", lambda *_: timeline()),
        (submission, "pack", lambda *_: packed),
        (evaluate, "evaluate", evaluated),
        (compilation, "check_can_be_filled", lambda: None),
        (compilation, "fill", lambda found: ((kernel, None) for kernel in found)),
        (diff, "code", lambda *_: ["the code is the same"]),
        (doctor, "examine", lambda: iter([doctor.Fact("python", "3")])),
    ):
        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(sys.modules["tl_attention.lab.cli.trace"], "visible_gpus", lambda: ("a GPU",))
    monkeypatch.setattr(sys.modules["tl_attention.lab.cli.search"], "_search", lambda *_: None)


LINE = re.compile(r":\d+: |: \d+ more mistakes")
SEVERAL = re.compile(r"\d+ of \d+ schedules have errors\n$")
DEFAULT = "leaderboard_submit.py"

# --- the lines --------------------------------------------------------------------------------------------------------

SCHEDULES = ("seed", "best", "mine.yaml", "folder", "d64", "ws_fa3_192x96")
WORDS: dict[str, tuple[str, ...]] = {
    "shape": ("1,2,128,128", "1,4/2,256,64", "2,2,64,256,128", "1,2,64+128,128"),
    "window": ("128,0", "-1,-1", "64,64"),
    "machine": ("h200", "h100", "machine.yaml"),
    "blocks": ("0,1", "3"),
    "marks": ("tile,wait,end", "tile,end"),
    "only": ("d64-*", "*"),
    "baseline": ("cudnn", "seed"),
    "ladder": ("worklog", "ladder-mine.yaml", "fa4"),
    "card": ("h100", "sm_86", "RTX 3090"),
    "cells": ("cells.yaml",),
    "lines": ("lines.txt",),
    "recorded": ("timeline.json", "other.json", "link.json"),
    "results": ("rows.jsonl", "cells.jsonl", "evaluated.jsonl", "profile.jsonl", "link.jsonl"),
    "files": ("best", "mine.yaml", "other.py", "leaderboard_submit.py"),
}
BAD = (
    "",
    "x",
    "0",
    "-1",
    "1.5",
    "nan",
    "1e999",
    "9" * 400,
    "(",
    "best,",
    "bad.yaml",
    "missing.yaml",
    "\x1b[2J",
    "%s",
    "--",
    "é" * 99,
)


def good(parameter: click.Parameter, draw: random.Random, files: list[str]) -> str:
    """Draws a word that a parameter may take."""
    kind = parameter.type
    if isinstance(kind, OutputFile):
        return draw.choice(draw.choice((NEW, files)))
    if str(parameter.name) in WORDS:
        return draw.choice(WORDS[str(parameter.name)])
    if isinstance(kind, click.Choice):
        return draw.choice([*kind.choices])
    if isinstance(kind, click.IntRange):
        return str(draw.choice([kind.min or 0, (kind.min or 0) + 3]))
    if isinstance(kind, HeadSizeType):
        return draw.choice(("64", "128", "256", "192/128"))
    return draw.choice(("0", "30", "0.5")) if kind is click.FLOAT else draw.choice(SCHEDULES)


def line_of(draw: random.Random, files: list[str]) -> list[str]:
    """Draws a command line, mostly of words that their parameters may take."""
    command = main.commands[draw.choice([*main.commands])]
    words = [str(command.name)]
    for parameter in command.params:
        is_output = isinstance(parameter.type, OutputFile)
        times = draw.choice((1, 1, 2)) if parameter.multiple or parameter.nargs == -1 else 1
        if isinstance(parameter, click.Option):
            if draw.random() > (0.5 if is_output or parameter.required else 0.12):
                continue
            if parameter.is_flag:
                words.append(draw.choice([*parameter.opts, *parameter.secondary_opts]))
                continue
        elif not parameter.required and draw.random() < 0.3:
            continue
        for _ in range(times):
            word = draw.choice((*BAD, *files)) if draw.random() < 0.1 else good(parameter, draw, files)
            words += [parameter.opts[-1], word] if isinstance(parameter, click.Option) else [word]
    if draw.random() < 0.05:
        words.insert(draw.randrange(len(words) + 1), draw.choice((*BAD, "--output", "--help", "-o")))
    return words


def complaints(result: Any) -> Iterator[str]:
    """Yields what is wrong with how a command ended: a traceback, or no line or several on what was wrong."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        yield "".join(traceback.format_exception(result.exception)[-3:])
    if result.exit_code == 2:
        said = result.stderr.splitlines()
        errors = [line for line in said if line.startswith("error: ")]
        # Of several files, and several mistakes of one, each has its line.
        if len({LINE.split(error)[0] for error in errors}) != 1 and not SEVERAL.search(result.stderr):
            yield f"{len(errors)} errors"
        if not all(line.isprintable() for line in said):
            yield "not printable"
    elif result.exit_code not in (0, 1):
        yield "another exit code"


def may_be(words: list[str], name: str, before: bytes | None, after: bytes | None, ours: dict[str, Ours]) -> bool:
    """Says whether a command line may leave a file so: named once, as an output, new or of the kind that is written."""
    name = LINKS.get(name, name)
    names = {name, *(link for link, target in {**LINKS, **HARD_LINKS}.items() if target == name)}
    by_default = words[0] == "submit" and name == DEFAULT and "-o" not in words and "--output" not in words
    if after is None:
        return False
    if not by_default and sum(str(Path(word)) in names for word in words) != 1:
        return False
    if before is None:
        return True
    kind = ours[name].kind if name in ours else None
    if kind is None or kind.done == "":
        return False
    return after.startswith(before) if kind.done == "add to" else kind.begins.match(after) is not None


SAMPLE, WHOLE = 25, 1000


@pytest.mark.parametrize("first,count", sampled([(0, SAMPLE), (SAMPLE, WHOLE)], [(0, SAMPLE)]))
@pytest.mark.usefixtures("stand_ins")
def test_a_command_line_does_its_work_or_is_one_line_and_nothing_is_lost(
    first, count, ours, cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    there = FOREIGN | {name: found.data for name, found in ours.items()}
    lay_out(there)
    there = what_is_there()
    files, codes, written, wrong = [*there, *NEW, *NOWHERE], Counter[tuple[str, int]](), Counter[str](), list[str]()
    for number in range(first, first + count):
        words = line_of(random.Random(f"line {number}"), files)
        result = cli(*words)
        codes[words[0], result.exit_code] += 1
        found = what_is_there()
        changed = {name: found.get(name) for name in {*found, *there} if found.get(name) != there.get(name)}
        lost = [name for name, after in changed.items() if not may_be(words, name, there.get(name), after, ours)]
        if said := [*complaints(result), *(f"{name} is lost" for name in lost)]:
            wrong.append(f"{number}: {words}: {said}: {result.exit_code}: {result.stderr[-300:]}")
        written.update([*changed])
        for name in {*found} - {*there}:
            Path(name).unlink()
        lay_out({name: there[name] for name in changed if name in there and name not in LINKS})
    assert not wrong, "\n\n".join(wrong)
    if count > SAMPLE:
        assert {command for command, code in codes if code == 0} >= {*main.commands} and len(written) > 10
