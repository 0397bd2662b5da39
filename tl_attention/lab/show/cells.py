"""This module shows cells as a table. Below come geometric means, which bars are met, and why entries are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from tl_attention.errors import printable
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import AGAIN, CellRow, Verdict
from tl_attention.lab.measure.records import RoundRatios, grouped
from tl_attention.lab.show.table import Column, Table, number
from tl_attention.problem.mask import is_window

WORST_FIRST: tuple[Verdict, ...] = ("not measured", "missed", "within repeatability", "met")


def binding_peer(row: CellRow) -> str | None:
    """Returns the peer whose bar our speed clears by the least or misses by the most, None if none was timed.

    Without bars it is the first peer that was timed.
    """
    timed = [(peer, speed.ratio - (bar or 0)) for peer, bar in row.peers.items() if (speed := row.speed(OURS, peer))]
    barred = [(peer, margin) for peer, margin in timed if peer in row.bars]
    return min(barred, key=lambda found: found[1])[0] if barred else timed[0][0] if timed else None


def verdict(row: CellRow) -> str:
    """Returns the worst verdict on a cell's bars, "" where there are none."""
    found = set(row.verdicts().values())
    return next((word for word in WORST_FIRST if word in found), "")


def summary(row: CellRow) -> str:
    """Returns a line on a cell with our time, our speeds against its peers and the verdict, or why ours failed."""
    if row.ours.median_ms is None:
        return f"{row.cell}: {row.ours.status}: {row.ours.reason}" if row.ours.reason else f"{row.cell}: no peer ran"
    speeds = [f"{peer} {_with_interval(speed)}" for peer in row.peers if (speed := row.speed(OURS, peer))]
    others = [text for text in _beside(row, None) if text.partition(" ")[0] not in row.peers]
    return f"{row.cell}: {row.ours.median_ms:.3f} ms, {', '.join(speeds + others)}: {verdict(row)}"


def means(rows: Sequence[CellRow]) -> Iterator[str]:
    """Yields for each group of cells a line with the geometric mean and the lowest of the cells' speeds.

    The line has those of ours and of other schedules. A group of one cell has no line.
    """
    for group, of_group in grouped(rows, lambda row: row.group).items():
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
    """Yields the lines of text below a table of cells, on mean speeds, visited pairs, verdicts and failures."""
    yield from map(printable, means(rows))
    windows = [f"{row.cell} {row.visited:.2f}" for row in rows if row.visited and is_window(row.shape.mask)]
    if windows:
        yield f"visited over visible pairs: {', '.join(windows)}"
    judged = grouped([row for row in rows if verdict(row)], verdict)
    for word in reversed(WORST_FIRST):
        if cells := [row.cell for row in judged.get(word, [])]:
            which = "" if word == "met" else f": {', '.join(cells)}"
            yield printable(f"{word}: {len(cells)} of {sum(map(len, judged.values()))}{which}")
    failed = [(row.cell, entry) for row in rows for entry in row.entries if entry.status != "ok"]
    for (name, status, reason), of in grouped(
        failed, lambda pair: (pair[1].name, pair[1].status, pair[1].reason)
    ).items():
        yield printable(f"{name}: {status}: {reason} ({', '.join(cell for cell, _ in of)})")


def title(row: CellRow) -> str:
    """Returns the title of a run's table of cells, with the device, the run and what a speed is."""
    return f"cells, {row.device}, {row.run}; speed is our rate as a part of the peer's, in brackets 95 %"


def by_run(rows: Sequence[CellRow]) -> list[list[CellRow]]:
    """Groups the rows of cells into one list for each run."""
    return [*grouped(rows, lambda row: row.run).values()]


def table(rows: Sequence[CellRow]) -> Table:
    """Makes a table with a line for each cell of a run."""
    return Table.of(title(rows[0]), COLUMNS, rows)


def markdown(rows: Sequence[CellRow]) -> str:
    """Returns one Markdown text with the table of a run's cells, all its columns, and the lines below it."""
    said = "".join(f"- {text}\n" for text in below(rows))
    return f"{table(rows).section()}\n{said}"


def _first(row: CellRow) -> tuple[str, str | None]:
    return OURS, next(iter(row.peers), None)


def _pairs(row: CellRow) -> Iterator[tuple[str, str]]:
    """Yields (entry, peer) names to compare, ours with each peer, other schedules with a peer that is entered twice."""
    yield from ((OURS, peer) for peer in row.peers)
    for entry in row.entries:
        if entry.name != OURS and entry.name.removesuffix(AGAIN) not in row.peers and row.reference:
            yield entry.name, row.reference


def _beside(row: CellRow, without: str | None) -> Iterator[str]:
    """Yields the name, a peer's for ours, and the speed of each timed pair, except ours against the peer `without`."""
    for name, peer in _pairs(row):
        speed = row.speed(name, peer)
        if speed and (name, peer) != (OURS, without):
            yield f"{peer if name == OURS else name} {speed.ratio:.3f}"


def _with_interval(speed: RoundRatios) -> str:
    interval = f" ({speed.interval[0]:.3f}-{speed.interval[1]:.3f})" if speed.interval else ""
    return f"{speed.ratio:.3f}{interval}"


def _ms(row: CellRow) -> str:
    failed = "" if row.ours.status == "ok" else row.ours.status
    return failed if row.ours.median_ms is None else f"{row.ours.median_ms:.3f}"


def _binding(row: CellRow) -> str:
    peer = binding_peer(row)
    speed = row.speed(OURS, peer) if peer else None
    return _with_interval(speed) if speed else ""


COLUMNS = (
    Column("cell", lambda row: row.cell, 0),
    Column("ms", _ms, 7),
    Column("TFLOPS", lambda row: number(row.ours.tflops), 8),
    Column("speed (95 %)", _binding, 1),
    Column("of", lambda row: binding_peer(row) or "", 2),
    Column("bar", lambda row: f"{row.bars[peer]:g}" if (peer := binding_peer(row)) in row.bars else "", 4),
    Column("repeat- ability", lambda row: number(row.repeatability, 4), 5),
    Column("verdict", verdict, 3),
    Column("beside", lambda row: ", ".join(_beside(row, binding_peer(row))), 6),
    Column("visited / visible", lambda row: number(row.visited, 2), 9),
    Column("MHz", lambda row: number(row.ours.sm_clock_mhz), 10),
    Column("max error / budget", lambda row: number(row.ours.error, 2), 11),
    Column("schedule", lambda row: row.ours.what, 12),
)
