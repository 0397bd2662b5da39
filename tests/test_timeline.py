"""A timeline is decoded from the buffer of a traced kernel, written, read, and shown as a Chrome trace."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from timelines import CLOCK, NOTED, WHATS, WINDOW, timeline, written

from tl_attention.errors import InputError
from tl_attention.proof.code.marks import HEAD, LIMIT, MOST_BLOCKS, RECORDS
from tl_attention.trace import chrome
from tl_attention.trace.timeline import Line, Span, Timeline, Window, decoded


def test_each_role_of_each_block_is_a_line_whose_clock_goes_on():
    found = timeline()
    assert [(line.block, line.role, line.sm, line.wall_ns) for line in found.lines] == [
        (7, 0, 100, 500),
        (7, 1, 100, 1500),
        (2, 0, 101, 2500),
        (2, 1, 101, 3500),
    ]
    assert all(line.times == tuple(CLOCK + cycle for cycle, _ in NOTED) for line in found.lines)


def test_spans_are_numbered_in_their_tile():
    found = timeline()
    spans = [*found.spans(found.lines[0])]
    assert spans[1:4] == [
        Span(WHATS[1], CLOCK + 10, CLOCK + 30, 0, 0),
        Span(WHATS[2], CLOCK + 30, CLOCK + 70, 0, 0),
        Span(WHATS[3], CLOCK + 70, CLOCK + 90, 0, 0),
    ]
    assert [(span.tile, span.number) for span in spans if span.what == WHATS[1]] == [(0, 0), (0, 1), (1, 0)]
    # They fill the time from the first mark to the last.
    assert sum(span.end - span.start for span in spans) == 200 and len(spans) == len(NOTED) - 1


def test_a_window_leaves_out_the_first_iterations_and_ends_after_its_last():
    window = Window((3,), 2, 2)
    (line, _) = decoded(written(window), window, 2, len(WHATS))
    assert line.marks == (1, 2, 3, 0) and line.times[0] == CLOCK + 90


RECORD = MOST_BLOCKS * 2 * len(WHATS) * 4


@pytest.mark.parametrize(
    "window,words",
    [
        (Window((), 0, 8), r"^0 thread blocks to trace, expected 1 to 16$"),
        (Window(tuple(range(MOST_BLOCKS + 1)), 0, 8), r"^17 thread blocks to trace, expected 1 to 16$"),
        (Window((0, 1), 0, 0), rf"^0 iterations to trace, expected 1 to {LIMIT // RECORD}: the buffer is full then$"),
        (Window((0,), -1, 8), r"^-1 iterations to leave out, expected 0 to \d+$"),
        (Window((0,), 1 << 22, 8), rf"^4194304 iterations to leave out, expected 0 to {(1 << 31) // RECORD - 1}$"),
        (Window((0, 1), 0, LIMIT // RECORD + 1), rf"iterations to trace, expected 1 to {LIMIT // RECORD}: "),
    ],
)
def test_a_window_that_the_buffer_cannot_hold_is_refused(window, words):
    with pytest.raises(InputError, match=words):
        window.head(2, len(WHATS))


def test_the_largest_window_fits():
    assert [*Window((0, 1), 3, LIMIT // RECORD).head(2, len(WHATS))] == [3, 2, 0, 1]


def damage(words: np.ndarray, place: int, value: int) -> np.ndarray:
    words = words.copy()
    words.view(np.uint32)[place] = value
    return words


@pytest.mark.parametrize(
    "place,value,words",
    [
        (2 * (HEAD + 2), 0, "thread block 7, role 0 noted nothing: is there such a block?"),
        (RECORDS // 4 + 1, 500, "the times of block 7, role 0 are damaged"),
    ],
)
def test_a_damaged_buffer_is_refused(place, value, words):
    with pytest.raises(InputError, match=words):
        decoded(damage(written(WINDOW), place, value), WINDOW, 2, len(WHATS))


def test_a_file_has_all_of_it(tmp_path):
    timeline().write(tmp_path / "trace.json")
    assert Timeline.read(tmp_path / "trace.json") == timeline()


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda told: told.update(form="another"), "its form is 'another', expected 'tl-attention timeline 2'"),
        (lambda told: told.pop("lines"), "'lines'"),
        (lambda told: told["lines"][0].update(role=2), "block 7 has a role 2 that there is not"),
        (lambda told: told["lines"][1]["times"].pop(), "the times of block 7, role 1 are damaged"),
        (lambda told: told["lines"][0]["marks"].__setitem__(2, 9), "block 7, role 0 has a mark that there is not"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, change, words):
    file = tmp_path / "trace.json"
    timeline().write(file)
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))
    with pytest.raises(InputError, match=f"^{file}: no timeline: .*{words}") as refused:
        Timeline.read(file)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_no_json_is_one_line(tmp_path):
    (tmp_path / "text").write_text("{")
    for name, words in (("text", "no timeline: "), ("nothing", "cannot be read: No such file")):
        with pytest.raises(InputError, match=f"^{tmp_path / name}: {words}"):
            Timeline.read(tmp_path / name)


# --- the Chrome trace ------------------------------------------------------------------------------------------------


def test_products_fly_from_issue_to_the_end_of_their_wait():
    found = timeline()
    flights = chrome.in_flight([*found.spans(found.lines[0])])
    assert [(span.start - CLOCK, span.end - CLOCK) for span in flights["mma0"]] == [(10, 70), (90, 99), (125, 190)]


def test_a_chrome_trace_is_what_the_format_says(tmp_path):
    """Every event has its phase's fields, threads are named, and no two spans of a thread overlap."""
    chrome.write(timeline(), tmp_path / "chrome.json")
    told = json.loads((tmp_path / "chrome.json").read_text())
    assert told["displayTimeUnit"] == "ns"
    named, ends = set(), {}
    for event in told["traceEvents"]:
        place = event["pid"], event.get("tid")
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            named.add(place)
        else:
            assert event["ph"] == "X" and {"name", "cat", "ts", "dur", "pid", "tid"} <= event.keys()
            assert place in named and (event["pid"], None) in named
            assert event["ts"] >= ends.get(place, 0.0) - 1e-3 and event["dur"] >= 0
            ends[place] = event["ts"] + event["dur"]
    assert len(ends) == 8


def test_sms_are_aligned_by_the_wall_clock():
    found = timeline()
    begun = [event["ts"] for event in chrome.events_of(found) if event["ph"] == "X" and event["name"] == "tile"]
    assert begun[0] == 0.0 and found.zero(found.lines[0]) == CLOCK and found.zero(found.lines[2]) == CLOCK - 2000
    faster = replace(found, mhz=2000.0)
    assert faster.zero(faster.lines[2]) == CLOCK - 4000
    issue = next(event for event in chrome.events_of(faster) if event.get("cat") == "issue")
    assert issue["ts"] == 10 / 2000 and issue["dur"] == 20 / 2000


def test_a_line_without_marks_is_no_damage():
    assert [*timeline().spans(Line(0, 0, 0, 0, 0, (), ()))] == []
