"""The critical path of a timeline is found backward, and a picture shows two steady iterations with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from picture_text import faults
from PIL import Image
from timelines import ABOUT
from timelines import timeline as of_two_tiles

from tl_attention.errors import InputError
from tl_attention.lab.trace import critical, picture, sheet
from tl_attention.lab.trace.critical import Segment, critical_path, path_in_words
from tl_attention.lab.trace.flows import Flow
from tl_attention.lab.trace.steady import Steady, steady
from tl_attention.lab.trace.timeline import Line, Timeline, What

TILE, END = What("tile", ""), What("end", "")
ISSUE, PRODUCT, EXP = What("issue", "mma0"), What("wait", "mma0"), What("vector", "max_prev+row_max+scale+exp+cast")
FULL, EMPTY, LOAD = What("wait", "K_full"), What("wait", "K_empty"), What("load", "K")
WHATS = (TILE, ISSUE, PRODUCT, EXP, FULL, EMPTY, LOAD, END)
CONSUMER, PRODUCER = 0, 1
# In cycles of an iteration: the consumer waits for K, which is loaded when the consumer has multiplied by the last K.
OF_CONSUMER = [(0, ISSUE), (100, PRODUCT), (500, EXP), (800, FULL)]
OF_PRODUCER = [(600, LOAD), (900, EMPTY)]
CYCLES, ITERATIONS = 1000, 6


def line(role: int, noted: Sequence[tuple[int, What]], iterations: int) -> Line:
    """Makes the line of a role which does the same in each iteration of a tile; the first begins at cycle 1000."""
    marks = [(CYCLES * (n + 1) + cycle, what) for n in range(iterations) for cycle, what in noted]
    marks = [(0, TILE), *marks, (CYCLES * (iterations + 1), END)]
    return Line(0, role, 5, 500, 0, tuple(cycle for cycle, _ in marks), tuple(WHATS.index(what) for _, what in marks))


def timeline(consumer=OF_CONSUMER, iterations: int = ITERATIONS, **about) -> Timeline:
    lines = line(CONSUMER, consumer, iterations), line(PRODUCER, OF_PRODUCER, iterations)
    return Timeline(replace(ABOUT, **about), ("consumer 0", "producer"), 1000.0, WHATS, ((),) * len(WHATS), lines)


def kept(found: Timeline) -> tuple[Flow, ...]:
    """Returns the flows of these timelines: K is full when it is loaded, and empty when it has been multiplied by."""
    consumer, producer = ([*found.spans(line)] for line in found.lines)
    full = (Flow(PRODUCER, span.start + 100, CONSUMER, span) for span in consumer if span.what == FULL)
    return (*full, *(Flow(CONSUMER, span.end - 100, PRODUCER, span) for span in producer if span.what == EMPTY))


@pytest.fixture(autouse=True)
def known_flows(monkeypatch) -> None:
    monkeypatch.setattr(critical, "flows", kept)


# --- which iterations are shown ----------------------------------------------------------------------------------


def test_two_iterations_are_of_the_middle_and_as_long_as_most() -> None:
    assert steady(timeline()) == Steady(0, 2000, 3000, 4000, 7000) and steady(timeline()).cycles == 1000
    # The third iteration is longer here, and the fourth shorter.
    first = timeline(iterations=12)
    late = [time + 40 * (4000 <= time < 5000) for time in first.lines[0].times]
    changed = replace(first, lines=(replace(first.lines[0], times=tuple(late)), first.lines[1]))
    found = steady(changed)
    assert (found.end - found.begin, found.middle - found.begin) == (2000, 1000) and 3000 < found.begin < 9000


def test_iterations_are_of_one_line_of_code() -> None:
    """Loops with a mask have marks of their own for the same product."""
    found = timeline()
    masked = tuple(
        len(WHATS) if mark == 1 and time < 3000 else mark
        for time, mark in zip(found.lines[0].times, found.lines[0].marks)
    )
    lines = replace(found.lines[0], marks=masked), found.lines[1]
    assert steady(replace(found, whats=(*WHATS, ISSUE), lines=lines)).begin == 3000


@pytest.mark.parametrize(
    "found", [timeline(iterations=2), of_two_tiles(), replace(timeline(), lines=timeline().lines[1:])]
)
def test_a_timeline_without_two_steady_iterations_is_refused(found) -> None:
    with pytest.raises(InputError, match="^some: the timeline shows no two steady iterations, expected a whole tile"):
        steady(found)


# --- the critical path -------------------------------------------------------------------------------------------


def test_the_path_goes_through_products_and_across_barriers() -> None:
    found = timeline()
    iteration = [
        (CONSUMER, 0, 500, What("tensor pipe", "mma0")),
        (PRODUCER, 500, 600, EMPTY),
        (PRODUCER, 600, 900, LOAD),
        (CONSUMER, 900, 1000, FULL),
    ]
    expected = [Segment(n, at + a, at + b, what) for at in (2000, 3000) for n, a, b, what in iteration]
    assert critical_path(found, steady(found)) == expected
    assert path_in_words(expected) == "50 % tensor pipe mma0, 30 % load K, 20 % wait (10 % K_empty, 10 % K_full)"


def test_the_path_stays_in_a_role_that_waits_for_nothing(monkeypatch) -> None:
    """A short wait for a product was for one that had ended, and an arrival before a wait ended no wait."""
    monkeypatch.setattr(
        critical,
        "flows",
        lambda found: tuple(
            Flow(PRODUCER, span.start - 1, CONSUMER, span) for span in found.spans(found.lines[0]) if span.what == FULL
        ),
    )
    found = timeline([(0, ISSUE), (440, PRODUCT), (500, EXP), (900, FULL)])
    path = critical_path(found, steady(found))
    assert {segment.line for segment in path} == {CONSUMER}
    assert [(segment.start, segment.what) for segment in path[:4]] == [
        (2000, ISSUE),
        (2440, PRODUCT),
        (2500, EXP),
        (2900, FULL),
    ]


@pytest.mark.parametrize("begin,end", [(2000, 4000), (2250, 3333), (1000, 7000), (0, 7000), (-500, 6999)])
def test_the_path_covers_a_window_without_a_gap(begin, end) -> None:
    path = critical_path(timeline(), Steady(0, begin, begin, end, 7000))
    assert path[0].start == begin and path[-1].end == end
    assert all(a.end == b.start and a.start < a.end for a, b in pairwise(path))


# --- the picture -------------------------------------------------------------------------------------------------

LONG = {
    "name": "a name that is rather long for a title, as of a file",
    "shape": "(4, 64, 8192, 128) float16 causal " * 3,
}


@pytest.mark.parametrize(
    "timelines",
    [
        [timeline()],
        [timeline([(0, ISSUE), (440, PRODUCT), (500, EXP), (900, FULL)]), timeline()],
        [timeline(), timeline(**LONG), timeline(iterations=40)],
    ],
)
def test_text_can_be_read(timelines) -> None:
    figure = picture.drawn(timelines)
    assert faults(figure, sheet.SMALL) == [] and figure.get_figwidth() * sheet.INCH == sheet.WIDTH


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_picture_has_the_same_bytes_each_time(kind, tmp_path) -> None:
    import matplotlib

    files = tmp_path / f"one.{kind}", tmp_path / f"other.{kind}"
    picture.write([timeline()], files[0])
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "none", "svg.hashsalt": "x", "savefig.dpi": 50}):
        picture.write([timeline()], files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    if kind == "svg":
        text = files[0].read_text()
        assert 'width="600pt"' in text and "<text" not in text and "dc:date" not in text and "Matplotlib" not in text
    else:
        assert Image.open(files[0]).width == 2 * sheet.WIDTH


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    timeline().write(tmp_path / "some.json")
    return tmp_path / "some.json"


def test_the_command_draws_and_says_the_path(cli, file, tmp_path) -> None:
    drawn = tmp_path / "new" / "drawn.svg"
    result = cli("trace", "--of", file, "-o", drawn)
    assert result.exit_code == 0 and drawn.stat().st_size > 1000 and f"written: {drawn}" in result.stderr
    assert "critical path of two iterations: 50 % tensor pipe mma0, 30 % load K" in result.stdout


def test_what_cannot_be_drawn_is_one_line(error_of, cli, file, tmp_path, monkeypatch) -> None:
    of_two_tiles().write(tmp_path / "two.json")
    result = cli("trace", "--of", file, "--of", tmp_path / "two.json", "-o", tmp_path / "drawn.svg")
    assert result.exit_code == 2 and not (tmp_path / "drawn.svg").exists()
    assert result.stderr.startswith("error: some: the timeline shows no two steady iterations")
    monkeypatch.delattr("tl_attention.lab.trace.picture")
    monkeypatch.delitem(sys.modules, "tl_attention.lab.trace.picture")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert 'expected what `pip install "tl-attention[pictures]"` has' in error_of(
        "trace", "--of", file, "-o", tmp_path / "drawn.svg"
    )
