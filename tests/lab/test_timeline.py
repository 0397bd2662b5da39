"""A timeline is decoded from the buffer of a traced kernel, written, read, and shown as a Chrome trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timelines import ABOUT, CLOCK, NOTED, WHATS, WINDOW, timeline, written

from tl_attention.codeproof.mark_places import NAMED_BARRIER
from tl_attention.codeproof.marks import HEAD, LIMIT, MOST_BLOCKS, RECORDS
from tl_attention.errors import InputError
from tl_attention.lab.trace.flights import flights, in_flight, lanes
from tl_attention.lab.trace.flows import flows
from tl_attention.lab.trace.timeline import Line, Span, Timeline, What, Window, decoded


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
        (RECORDS // 4 + 1, 500, "thread block 7, role 0 has times that fall or are too large"),
    ],
)
def test_a_damaged_buffer_is_refused(place, value, words):
    with pytest.raises(InputError, match=words):
        decoded(damage(written(WINDOW), place, value), WINDOW, 2, len(WHATS))


def test_a_file_has_all_of_it(tmp_path):
    timeline().write(tmp_path / "trace.json")
    assert Timeline.read(tmp_path / "trace.json") == timeline()


# --- the Chrome trace ------------------------------------------------------------------------------------------------


def test_products_fly_from_issue_to_the_end_of_their_wait():
    found = timeline()
    flown = in_flight([*found.spans(found.lines[0])])
    assert [(span.start - CLOCK, span.end - CLOCK) for span in flown["mma0"]] == [(10, 70), (90, 99), (125, 190)]


# --- who ended a wait ------------------------------------------------------------------------------------------------

PRODUCT, FULL, EMPTY, LOAD, TURN, MEET, REST = (
    What(*what.split("."))
    for what in (
        "issue.mma0",
        "wait.K_full",
        "wait.K_empty",
        "load.K",
        f"wait.{NAMED_BARRIER}",
        "wait.threads",
        "vector.exp",
    )
)
LOAD_Q, FULL_Q = What("load", "Q"), What("wait", "Q_full")
OF_FLOWS = (What("tile", ""), PRODUCT, FULL, EMPTY, LOAD, TURN, MEET, REST, LOAD_Q, FULL_Q)
ARRIVES = ((), (NAMED_BARRIER,), (), (), ("K_full",), (), (), ("K_empty",), (), ())


def roles(*noted: list[tuple[int, What]]) -> Timeline:
    """Returns the timeline of a thread block whose roles note these marks."""
    lines = tuple(
        Line(0, n, 5, 500, 0, tuple(cycle for cycle, _ in marks), tuple(OF_FLOWS.index(what) for _, what in marks))
        for n, marks in enumerate(noted)
    )
    return Timeline(ABOUT, tuple("abc"[: len(lines)]), 1000.0, OF_FLOWS, ARRIVES, lines)


def told_flows(found: Timeline) -> list[tuple[int, int, int, What, int]]:
    return sorted((flow.line, flow.start, flow.to, flow.wait.what, flow.wait.start) for flow in flows(found))


TILE = (0, OF_FLOWS[0])


@pytest.mark.parametrize(
    "noted,expected",
    [
        # The second wait is for the second load, though that had been issued before the first wait.
        (
            ([TILE, (50, FULL), (90, REST), (100, FULL), (120, REST)], [TILE, (10, LOAD), (20, LOAD), (200, REST)]),
            [(1, 10, 0, FULL, 50), (1, 20, 0, FULL, 100)],
        ),
        # A load of the next tile is for the wait of that tile.
        (
            ([TILE, (50, FULL), (90, OF_FLOWS[0]), (100, FULL), (120, REST)], [TILE, (10, LOAD), (20, REST)]),
            [(1, 10, 0, FULL, 50)],
        ),
        # Room is made where the vector statements begin; a wait that nobody kept has no flow.
        (
            (
                [TILE, (60, REST), (80, PRODUCT), (90, TILE[1])],
                [TILE, (40, EMPTY), (70, LOAD), (75, EMPTY), (78, LOAD)],
            ),
            [(0, 60, 1, EMPTY, 40)],
        ),
        # A turn ends where the other role has issued, also in the wait behind it.
        (
            ([TILE, (10, PRODUCT), (70, REST), (99, REST)], [TILE, (20, TURN), (25, FULL), (80, PRODUCT), (90, REST)]),
            [(0, 70, 1, FULL, 25)],
        ),
        # All meet when the last comes, also where that shows in the next span.
        (
            ([TILE, (10, MEET), (15, REST), (80, REST)], [TILE, (60, MEET), (65, REST)], [TILE, (5, MEET), (64, REST)]),
            [(1, 60, 0, REST, 15), (1, 60, 2, MEET, 5)],
        ),
    ],
)
def test_a_wait_is_ended_by_the_arrival_that_it_was_for(noted, expected):
    noted = [[*marks, (marks[-1][0] + 20, TILE[1])] for marks in noted]
    assert told_flows(roles(*noted)) == sorted(expected)


QS = [[TILE, (30, FULL_Q), (at, REST), (99, REST)] for at in (50, 60)]
TWO_LOADS = [TILE, (10, LOAD_Q), (20, LOAD_Q), (25, LOAD), (35, LOAD), (40, REST), (99, REST)]


def test_each_consumer_awaits_its_own_part_of_q():
    assert told_flows(roles(*QS, TWO_LOADS)) == [(2, 10, 0, FULL_Q, 30), (2, 20, 1, FULL_Q, 30)]


def test_loads_are_on_their_way_until_the_first_wait_for_them_is_over():
    """Another wait for the same load is not shown, nor a load that nobody waits for."""
    consumers = [[*QS[0][:-1], (70, FULL), (end, REST), (98, REST)] for end in (80, 85)]
    found = roles(*consumers, TWO_LOADS)
    assert [flown for flown in flights(found)[:2] if flown] == []
    assert [(name, [(span.start, span.end) for span in lane]) for name, lane in flights(found)[2]] == [
        ("K on its way", [(25, 80)]),
        ("Q on its way", [(10, 50)]),
        ("Q on its way", [(20, 50)]),
    ]


def test_a_window_that_begins_later_shows_no_loads():
    """Its roles begin in other tiles, and count them from there."""
    found = roles(*QS, TWO_LOADS)
    later = replace(found, about=replace(ABOUT, skip=1))
    assert told_flows(later) == [] and flights(later) == [[], [], []]


def test_spans_lie_in_as_few_lanes_as_hold_them():
    spans = [Span(PRODUCT, *times, 0, 0) for times in ((0, 10), (5, 20), (10, 15), (12, 30), (20, 21))]
    assert [[span.start for span in lane] for lane in lanes(spans[::-1])] == [[0, 10, 20], [5], [12]]


def test_a_line_without_marks_is_no_damage():
    assert [*timeline().spans(Line(0, 0, 0, 0, 0, (), ()))] == []
