"""Cells as a table, and what is said below it: geometric means, which bars are met, why entries are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from tl_attention.errors import printable
from tl_attention.measure.cell import OURS
from tl_attention.measure.cell_records import AGAIN, CellRow, Verdict
from tl_attention.measure.comparison import Comparison
from tl_attention.problem.window import is_window
from tl_attention.show import text_table

HEADINGS = (
    "cell",
    "ms",
    "TFLOPS",
    "speed (95 %)",
    "of",
    "bar",
    "repeat- ability",
    "verdict",
    "beside",
    "visited / visible",
    "MHz",
    "max error / budget",
    "schedule",
)
# Which columns a narrow terminal keeps.
PRIORITY = tuple(
    HEADINGS.index(name)
    for name in ("cell", "speed (95 %)", "of", "verdict", "bar", "repeat- ability", "beside", "ms", "TFLOPS")
) + tuple(range(HEADINGS.index("visited / visible"), len(HEADINGS)))
WORST_FIRST: tuple[Verdict, ...] = ("not measured", "missed", "within repeatability", "met")


def line(row: CellRow) -> list[str]:
    """The cells of a line of the table."""
    ours, peer = row.ours, binding_peer(row)
    speed = row.speed(OURS, peer) if peer else None
    failed = "" if ours.status == "ok" else ours.status
    return [
        row.cell,
        failed if ours.median_ms is None else f"{ours.median_ms:.3f}",
        "" if ours.tflops is None else f"{ours.tflops:.0f}",
        _with_interval(speed) if speed else "",
        peer or "",
        f"{row.bars[peer]:g}" if peer in row.bars else "",
        "" if row.repeatability is None else f"{row.repeatability:.4f}",
        verdict(row),
        ", ".join(_beside(row, peer)),
        "" if row.visited is None else f"{row.visited:.2f}",
        "" if ours.sm_clock_mhz is None else f"{ours.sm_clock_mhz}",
        "" if ours.error is None else f"{ours.error:.2f}",
        ours.what,
    ]


def binding_peer(row: CellRow) -> str | None:
    """The peer whose bar is the closest; without bars the first that was timed."""
    timed = [(peer, speed.ratio - (bar or 0)) for peer, bar in row.peers.items() if (speed := row.speed(OURS, peer))]
    barred = [(peer, margin) for peer, margin in timed if peer in row.bars]
    return min(barred, key=lambda found: found[1])[0] if barred else timed[0][0] if timed else None


def verdict(row: CellRow) -> str:
    """Of all bars of a cell, the worst."""
    found = set(row.verdicts().values())
    return next((word for word in WORST_FIRST if word in found), "")


def summary(row: CellRow) -> str:
    """One cell in a line."""
    if row.ours.median_ms is None:
        return f"{row.cell}: {row.ours.status}: {row.ours.reason}" if row.ours.reason else f"{row.cell}: no peer ran"
    speeds = [f"{peer} {_with_interval(speed)}" for peer in row.peers if (speed := row.speed(OURS, peer))]
    others = [text for text in _beside(row, None) if text.partition(" ")[0] not in row.peers]
    return f"{row.cell}: {row.ours.median_ms:.3f} ms, {', '.join(speeds + others)}: {verdict(row)}"


def means(rows: Sequence[CellRow]) -> Iterator[str]:
    """A line for each group of several cells: geometric means, and the lowest cell, of ours and of other schedules."""
    groups: dict[str, list[CellRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    for group, of_group in groups.items():
        said = []
        for name, peer in dict.fromkeys(pair for row in of_group for pair in _pairs(row)):
            found = [speed.ratio for row in of_group if (speed := row.speed(name, peer))]
            if len(found) > 1:
                mean, bar = geometric_mean(found), of_group[0].mean if (name, peer) == _first(of_group[0]) else None
                asked = "" if bar is None else f", bar {bar:g}: {'met' if mean >= bar else 'missed'}"
                who = "" if name == OURS else f"{name} "
                said.append(f"{who}{mean:.3f} of {peer} (lowest {min(found):.3f}, {len(found)} cells{asked})")
        if said:
            yield f"{group}: geometric mean {'; '.join(said)}"


def below(rows: Sequence[CellRow]) -> Iterator[str]:
    """What is said below a table."""
    yield from map(printable, means(rows))
    windows = [f"{row.cell} {row.visited:.2f}" for row in rows if row.visited and is_window(row.shape.mask)]
    if windows:
        yield f"visited over visible pairs: {', '.join(windows)}"
    counted: dict[str, list[str]] = {}
    for row in rows:
        if found := verdict(row):
            counted.setdefault(found, []).append(row.cell)
    for word in reversed(WORST_FIRST):
        if cells := counted.get(word):
            which = "" if word == "met" else f": {', '.join(cells)}"
            yield printable(f"{word}: {len(cells)} of {sum(map(len, counted.values()))}{which}")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for entry in row.entries:
            if entry.status != "ok":
                reasons.setdefault((entry.name, entry.status, entry.reason), []).append(row.cell)
    for (name, status, reason), cells in reasons.items():
        yield printable(f"{name}: {status}: {reason} ({', '.join(cells)})")


def title(row: CellRow) -> str:
    """What the cells of a run share."""
    return f"cells, {row.device}, {row.run}; speed is our rate as a part of the peer's, in brackets 95 %"


def by_run(rows: Sequence[CellRow]) -> list[list[CellRow]]:
    """The cells of one run together."""
    runs: dict[str, list[CellRow]] = {}
    for row in rows:
        runs.setdefault(row.run, []).append(row)
    return list(runs.values())


def markdown(rows: Sequence[CellRow]) -> str:
    """The whole table in Markdown, and what is said below it."""
    said = "".join(f"- {text}\n" for text in below(rows))
    return f"{printable(title(rows[0]))}\n\n{text_table.markdown(HEADINGS, list(map(line, rows)))}\n\n{said}"


def _first(row: CellRow) -> tuple[str, str | None]:
    return OURS, next(iter(row.peers), None)


def _pairs(row: CellRow) -> Iterator[tuple[str, str]]:
    """What is compared in a cell: ours with each peer, other schedules with the one that was entered twice."""
    yield from ((OURS, peer) for peer in row.peers)
    for entry in row.entries:
        if entry.name != OURS and entry.name.removesuffix(AGAIN) not in row.peers and row.reference:
            yield entry.name, row.reference


def _beside(row: CellRow, without: str | None) -> Iterator[str]:
    """The speeds of all other pairs: a peer's name stands for ours against it."""
    for name, peer in _pairs(row):
        speed = row.speed(name, peer)
        if speed and (name, peer) != (OURS, without):
            yield f"{peer if name == OURS else name} {speed.ratio:.3f}"


def _with_interval(speed: Comparison) -> str:
    interval = f" ({speed.interval[0]:.3f}-{speed.interval[1]:.3f})" if speed.interval else ""
    return f"{speed.ratio:.3f}{interval}"
