"""A picture shows two steady iterations of a thread block with the critical path, small enough for a page.

Rows are the roles, and below them their products in the tensor pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

from matplotlib.figure import Figure

from tl_attention.errors import InputError
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import PICTURE
from tl_attention.lab.trace.colours import COLOURS
from tl_attention.lab.trace.critical import TENSOR_PIPE, Segment, critical_path, path_in_words
from tl_attention.lab.trace.flights import in_flight
from tl_attention.lab.trace.shares import shares_of_block, tensor_pipe
from tl_attention.lab.trace.sheet import (
    GRID,
    INK,
    NORMAL,
    QUIET,
    TITLE,
    WIDTH,
    Sheet,
    look,
    saved,
    styled,
    width_of,
    wrapped,
)
from tl_attention.lab.trace.steady import steady
from tl_attention.lab.trace.timeline import Span, Timeline, What

MOST = 3
# The columns: names of rows stand left of LEFT.
MARGIN, LEFT, RIGHT = 14, 128, WIDTH - 22
# Heights of rows, and of what is between them, where the path runs.
ROLE, LANE, BELOW_ROLE, BELOW_LANE = 38, 15, 10, 5
# Heights of the title, what is below it, the names of the iterations, the axis, the legend, and between timelines.
NAME, SAID, ITERATIONS, AXIS, LEGEND, BETWEEN = 32, 19, 16, 34, 26, 20
# From one line of text to the next, in boxes and below the rows; of a box, what is left free beside its text.
LINE, LEADING, BESIDE = 11.5, 14.0, 6
LONGEST_NAME = 18
UNBROKEN = "\N{NO-BREAK SPACE}%\N{NO-BREAK SPACE}"


def check(timelines: int) -> None:
    """Raises InputError unless a picture of so many timelines can be drawn."""
    if timelines > MOST:
        raise InputError(f"a picture: {timelines} timelines, expected at most {MOST}")


def write(timelines: Sequence[Timeline], file: Path) -> None:
    """Draws timelines above each other, at one scale, and writes the picture; the same bytes each time.

    Raises InputError where a timeline shows no two steady iterations.
    """
    user_file.write(file, saved(drawn(timelines), file.suffix[1:]), PICTURE)


def drawn(timelines: Sequence[Timeline]) -> Figure:
    """Returns the figure of these timelines."""
    with styled():
        panels = [_Panel(timeline) for timeline in timelines]
        scale = (RIGHT - LEFT) / max(panel.window.end - panel.window.begin for panel in panels)
        sheet, top = Sheet(sum(panel.height for panel in panels) + BETWEEN * (len(panels) - 1) + LEGEND + MARGIN), 0.0
        for panel in panels:
            panel.draw(sheet, top, scale)
            top += panel.height + BETWEEN
        _legend(sheet, {kind for panel in panels for kind in panel.kinds()}, top - BETWEEN)
        return sheet.figure


def _legend(sheet: Sheet, kinds: set[str], top: float) -> None:
    """Says in one line what colours are, for the kinds that are shown."""
    x, y = float(MARGIN), top + LEGEND / 2
    words = {"product": "product in flight, from issue to wait", "issue": "issue to the tensor cores"}
    for kind in [kind for kind in (*COLOURS, "product") if kind in kinds]:
        sheet.box(x, y - 6.5, 20, 13, look(kind, True))
        sheet.text(x + 26, y, words.get(kind, kind), ha="left")
        x += 26 + width_of(words.get(kind, kind)) + 14
    sheet.line([(x, y), (x + 20, y)], INK, 2)
    sheet.text(x + 26, y, "critical path", ha="left")


@dataclass(frozen=True)
class _Row:
    """A _Row is a role, or its products of one name in flight."""

    name: str
    line: int  # the index of the role's line
    product: str
    spans: Sequence[Span]  # in the window
    top: float  # from the panel's

    @property
    def height(self) -> int:
        return LANE if self.product else ROLE

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def names(self, span: Span, width: float) -> Iterator[list[str]]:
        """Yields texts for a span's box of this width, the best first, each as a list of lines."""
        kind, name = span.what
        if self.product:
            yield [f"{name} of KV block {span.number}"]
            yield [name]
        elif kind == "vector":
            names = name.split("+")
            fewer = [*names[:2], "..."][: len(names)]
            yield from (wrapped(" ".join(some), width) for some in (names, fewer, [kind]))
        else:
            yield from ([str(span.what)], [kind, name], [name or kind])


class _Panel:
    """A _Panel is the part of a picture that shows one timeline."""

    def __init__(self, timeline: Timeline):
        self.timeline, self.window = timeline, steady(timeline)
        self.path = critical_path(timeline, self.window)
        self.name = timeline.about.name[:60]
        self.beside, self.said = self._said()
        self.first = NAME + SAID * len(self.said) + ITERATIONS
        self.rows = [*self._rows()]
        self.axis = self.rows[-1].bottom + BELOW_ROLE
        words = f"Critical path (what is not pale): {path_in_words(self.path)}."
        self.words = wrapped(words.replace(" % ", UNBROKEN), WIDTH - 2 * MARGIN)
        self.height = self.axis + AXIS + len(self.words) * LEADING

    def kinds(self) -> Iterator[str]:
        """Yields the kinds of boxes that the panel has."""
        for row in self.rows:
            yield from ("product" if row.product else span.what.kind for span in row.spans)

    def draw(self, sheet: Sheet, top: float, scale: float) -> None:
        """Draws the panel at a place of the sheet; `scale` is the pixels of a cycle."""
        self.sheet, self.top, self.scale = sheet, top, scale
        self.points = [*self._points()]
        sheet.text(MARGIN, top + NAME - 12, self.name, TITLE, ha="left", weight="bold")
        sheet.text(self._behind_name(), top + NAME - 11.5, self.beside, NORMAL, ha="left", color=QUIET)
        for n, line in enumerate(self.said):
            sheet.text(MARGIN, top + NAME + SAID * (n + 0.5), line, NORMAL, ha="left")
        self._axis()
        for row in self.rows:
            ink = QUIET if row.product else INK
            sheet.text(LEFT - 8, top + row.top + row.height / 2, row.name, ha="right", color=ink)
            for span in row.spans:
                self._span(row, span)
        if lanes := [row for row in self.rows if row.product]:
            sheet.text(LEFT - 8, top + lanes[0].top - LEADING / 2 - 2, "tensor pipe", ha="right")
        sheet.line(self.points, INK, 2, zorder=4)
        for n, line in enumerate(self.words):
            sheet.text(MARGIN, top + self.axis + AXIS + LEADING * (n + 0.5), line, ha="left")

    def _said(self) -> tuple[str, list[str]]:
        """Returns what is shown, to stand beside the name where it fits, and the lines below the name."""
        about, block = self.timeline.about, self.timeline.lines[self.window.line].block
        shown = f"{about.shape}, {about.device}"
        busy = tensor_pipe(self.timeline, [*shares_of_block(self.timeline, block).values()])
        fast = f"{self.window.cycles:,.0f} cycles for an iteration"
        fast += "" if busy is None else f", tensor pipe busy {100 * busy:.0f} % of the time"
        if self._behind_name() + width_of(shown, NORMAL) <= WIDTH - MARGIN:
            return shown, [fast]
        return "", [*wrapped(shown, WIDTH - 2 * MARGIN, NORMAL), fast]

    def _behind_name(self) -> float:
        return MARGIN + width_of(self.name, TITLE, "bold") + 10

    def _rows(self) -> Iterator[_Row]:
        block, top = self.timeline.lines[self.window.line].block, float(self.first)
        lines = {n: line for n, line in enumerate(self.timeline.lines) if line.block == block}
        roles = {n: self.timeline.roles[line.role][:LONGEST_NAME] for n, line in lines.items()}
        spans = self.timeline.blocks[block]
        for n, role in roles.items():
            yield _Row(role, n, "", self._shown(spans[n]), top)
            top += ROLE + BELOW_ROLE
        top += LEADING
        for n, role in roles.items():
            for product, flights in sorted(in_flight(spans[n]).items()):
                yield _Row(f"{product}, {role}", n, product, self._shown(flights), top)
                top += LANE + BELOW_LANE

    def _shown(self, spans: Sequence[Span]) -> list[Span]:
        return [span for span in spans if self.window.begin < span.end and span.start < self.window.end]

    def _x(self, cycle: int) -> float:
        """Returns the place of a cycle, or the window's edge behind which that lies."""
        return LEFT + (min(max(cycle, self.window.begin), self.window.end) - self.window.begin) * self.scale

    def _axis(self) -> None:
        """Draws the names of the iterations above the rows, and the scale below them."""
        window, head, foot = self.window, self.top + self.first, self.top + self.axis
        for n, (begin, end) in enumerate(((window.begin, window.middle), (window.middle, window.end)), 1):
            self.sheet.text((self._x(begin) + self._x(end)) / 2, head - 9, f"iteration {n}", color=QUIET)
        for cycle in (window.begin, window.middle, window.end):
            x = self._x(cycle)
            self.sheet.line([(x, head - ITERATIONS), (x, foot)], QUIET, 0.8, linestyle=(0, (4, 3)))
        steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
        step = next(step for step in steps if step * self.scale >= 60)
        for cycle in range(0, window.end - window.begin + 1, step):
            x = self._x(window.begin + cycle)
            self.sheet.line([(x, head), (x, foot + 4)], GRID, 0.6)
            self.sheet.text(x, foot + 12, f"{cycle:,}", color=QUIET)
        self.sheet.text(LEFT - 8, foot + 12, "cycles", ha="right", color=QUIET)

    def _span(self, row: _Row, span: Span) -> None:
        """Draws a box for a span: pale where it is not on the path, and with its name where that fits."""
        left, right, top = self._x(span.start), self._x(span.end), self.top + row.top
        style = look("product" if row.product else span.what.kind, self._on_path(row, span))
        self.sheet.box(left, top, right - left, row.height, style)
        left, right = self._free(row, left, right)
        room = right - left - BESIDE
        for lines in row.names(span, room):
            if max(map(width_of, lines)) <= room and len(lines) * LINE <= row.height:
                first = top + row.height / 2 - (len(lines) - 1) / 2 * LINE
                for n, line in enumerate(lines):
                    self.sheet.text_in_box((left + right) / 2, first + n * LINE, line, style)
                return

    def _on_path(self, row: _Row, span: Span) -> bool:
        what = What(TENSOR_PIPE, row.product) if row.product else span.what
        return any(
            (segment.line, segment.what) == (row.line, what) and segment.start < span.end and span.start < segment.end
            for segment in self.path
        )

    def _points(self) -> Iterator[tuple[float, float]]:
        """Yields the corners of the path, which runs below a row's boxes, and across to another where it goes on."""
        before: Segment | None = None
        for segment in self.path:
            product = segment.what.name if segment.what.kind == TENSOR_PIPE else ""
            row = next(row for row in self.rows if (row.line, row.product) == (segment.line, product))
            y = self.top + row.bottom + 3
            if not (before and segment.what.kind == "wait" and before.line != segment.line):
                yield self._x(segment.start), y
            yield self._x(segment.end), y
            before = segment

    def _free(self, row: _Row, left: float, right: float) -> tuple[float, float]:
        """Returns the widest part of a box that the path does not cross on its way to another row."""
        edges = [(left, left), (right, right)]
        for (x0, y0), (x1, y1) in pairwise(self.points):
            first, last = min(x0, x1), max(x0, x1)
            if (
                min(y0, y1) < self.top + row.bottom
                and max(y0, y1) > self.top + row.top
                and left < last
                and first < right
            ):
                edges.append((first - 2, last + 2))
        parts = ((before[1], after[0]) for before, after in pairwise(sorted(edges)))
        return max(parts, key=lambda part: part[1] - part[0])
