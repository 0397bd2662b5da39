"""This module shows a ladder as a table, each step's changes, and each tile's best configuration beside the text's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.files.ladder_file import Ladder, LadderStep
from tl_attention.lab.machine_code.sass import Loop, steady
from tl_attention.lab.measure import published
from tl_attention.lab.measure.records import Row, grouped
from tl_attention.lab.show.diff import changed_keys
from tl_attention.lab.show.report import PEER_NAMES, times, title
from tl_attention.lab.show.table import Column, Table, number
from tl_attention.problem.card import CARDS, KIB
from tl_attention.program.planned import Planned
from tl_attention.schedule.configuration import Configuration, parse, tile_text

# A longer value of a key is in the files.
LONGEST_VALUE = 40
NOTHING = "-"


def table(ladder: Ladder, rows: Mapping[str, Row]) -> Table:
    """Makes a table of a ladder's rows, with a line for each step and then for each peer.

    `rows` are those of one run, by name. The first peer has a column.
    """
    first = next(iter(ladder.peers), "peer")
    figures = {step.name: step.text for step in ladder.steps} | dict(ladder.peers)
    against = {step.name: step.against for step in ladder.steps}

    def of(cell: Callable[[Row], str], without: str = "") -> Callable[[str], str]:
        return lambda name: cell(rows[name]) if name in rows else without

    def speed(row: Row) -> str:
        return number(row.speed(rows[first]) if first in rows else None, 3)

    columns = (
        Column("step", lambda name: PEER_NAMES.get(name, name), 0),
        Column("ms (p10-p90)", of(lambda row: times(row) or row.status, NOTHING), 1),
        Column("TFLOPS", of(lambda row: number(row.tflops)), 3),
        Column("% of product", of(lambda row: number(row.percent_of_matmul, 1)), 4),
        Column("text", lambda name: "" if figures[name] is None else f"{figures[name]:g}", 5),
        Column(f"speed / {PEER_NAMES.get(first, first)}", of(speed), 6),
        Column("speed / step before", of(lambda row: _gain(row, against.get(row.name), ladder)), 2),
        Column("registers", of(lambda row: number(row.registers)), 7),
        Column("spills B", of(lambda row: number(row.stack_bytes)), 8),
        Column("shared KiB", of(lambda row: number(row.shared_bytes, 0, KIB)), 10),
        Column("warps per SM", of(lambda row: number(warps_per_sm(row))), 9),
    )
    return Table.of(title(list(rows.values())), columns, figures)


def below(ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines below a ladder's table, on what each step is and changed, and what the column `text` is."""
    for step in ladder.steps:
        yield f"{step.name}: {step.idea}{f' ({step.schedule.name})' if step.schedule else ''}"
        yield from (f"  {line}" for line in changes(step, ladder, rows))
    yield f"text: {ladder.source}: {ladder.unit}; {ladder.method}"


def changes(step: LadderStep, ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields lines on which keys and code a step changed against the step it is compared with, and its note.

    The first step has the line of its loop. A step's note comes last.
    """
    row = rows.get(step.name)
    before = ladder.step(step.against) if step.against else None
    if step.schedule and before and before.schedule:
        changed = list(changed_keys(before.schedule.schedule, step.schedule.schedule))
        words = "; ".join(_short(*change) for change in changed)
        yield f"keys against {before.name}: {words}" if changed else f"keys: those of {before.name}"
    if row is not None:
        yield from _code_lines(row, rows.get(before.name) if before else None)
        if row.reason:
            yield f"{row.status}: {row.reason}"
    if step.note:
        yield step.note


def _short(key: str, was: str, now: str) -> str:
    return f"{key}{was} -> {now}" if max(map(len, (was, now))) <= LONGEST_VALUE else key.rstrip(": ")


def _code_lines(row: Row, before: Row | None) -> Iterator[str]:
    loop = steady(row.loops)
    if row.same_code_as:
        yield f"code: that of {row.same_code_as}"
    elif loop is None:
        return
    elif before is None or (was := steady(before.loops)) is None:
        yield f"steady loop: {loop}"
    else:
        yield f"steady loop: {loop_change(was, loop)}"


def loop_change(before: Loop, after: Loop) -> str:
    """Returns in words how many instructions of each kind a loop has before and after, where that differs.

    An example is `621 -> 590 instructions: FMUL 66 -> 35`.
    """
    kinds = dict.fromkeys((*before.counts, *after.counts))
    counts = {kind: (before.counts.get(kind, 0), after.counts.get(kind, 0)) for kind in kinds}
    changed = [f"{kind} {was} -> {now}" for kind, (was, now) in counts.items() if was != now]
    others = [loop.instructions - sum(loop.counts.values()) for loop in (before, after)]
    if others[0] != others[1]:
        changed.append(f"others {others[0]} -> {others[1]}")
    total = f"{before.instructions} -> {after.instructions} instructions"
    return f"{total}: {', '.join(changed)}" if changed else f"{total}, as many of each kind, in another order"


def _gain(row: Row, against: str | None, ladder: Ladder) -> str:
    """Returns how many times as fast a row is as the step it goes on from, named unless it is the one before."""
    if row.against is None or against is None:
        return ""
    order = [step.name for step in ladder.measured]
    is_next = order.index(row.name) == order.index(against) + 1
    return f"{1 / row.against.ratio:.3f}{'' if is_next else f' ({against})'}"


def warps_per_sm(row: Row) -> int | None:
    """Returns how many warps of a row's kernel an SM of its card holds at once, None where that is not known.

    It is None for a peer, and where the compiler adds warps.
    """
    if row.registers is None or row.label == row.name:
        return None
    from tl_attention.schedule.schedule import Schedule

    schedule, card = Schedule.from_label(row.label), CARDS[row.arch]
    if not schedule.has_program:
        return None
    try:
        takes = lowering_of(schedule).resources(Planned(schedule), row.shape.head_size, card)
    except ScheduleRefused:
        return None
    threads = schedule.threads + takes.producer_threads
    return card.warps_per_sm(threads, row.registers, takes.static_bytes + takes.shared_bytes)


def by_name(rows: Sequence[Row], ladder: Ladder) -> dict[str, Row]:
    """Returns the newest run's rows of the ladder's problem, by the name of the step or peer.

    Rows of other problems are left out.
    """
    names = {*(step.name for step in ladder.steps), *ladder.peers}
    return {row.name: row for row in _newest(row for row in rows if row.shape == ladder.shape and row.name in names)}


def tiles_by_name(rows: Sequence[Row], ladder: Ladder) -> dict[str, Row]:
    """Returns the newest run's rows of the tiles that were compiled alone, by the name of the tile's schedule."""
    names = {tile.schedule.name for tile in ladder.tiles}
    return {row.name: row for row in _newest(row for row in rows if row.name in names)}


def _newest(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of the newest run, [] if there are no rows."""
    runs = grouped(rows, lambda row: row.run)
    return runs[max(runs)] if runs else []


def tile_table(ladder: Ladder, rows: Mapping[str, Row]) -> Table:
    """Makes a table of the registers, spills, shared memory and warps of each tile, beside the published figures.

    For a tile that is refused it says why.
    """
    lines: list[tuple[str, ...]] = []
    for tile in ladder.tiles:
        row, name = rows.get(tile.schedule.name), tile.schedule.name
        if row is None or row.registers is None:
            why = f"{row.status}: {row.reason.partition('; use')[0]}" if row else NOTHING
            lines.append((name, why, "", "", "", tile.text))
        else:
            takes = number(row.registers), number(row.stack_bytes), number(row.shared_bytes, 0, KIB)
            lines.append((name, *takes, number(warps_per_sm(row)), tile.text))
    headings = ("compiled alone", "registers", "spills B", "shared KiB", "warps per SM", "text")
    return Table.plain("tiles, compiled alone", headings, lines)


# These options are on in all of the space, so they are left out, as in the text.
ALWAYS_ON = "async+eager+swizzled"
CHOICE = (
    "tile",
    "where",
    f"options behind {ALWAYS_ON}",
    "TFLOPS",
    "% of best",
    "registers per thread",
    "bytes spilled",
    "shared KiB per block",
    "warps per SM",
)
THERE = f"text, {published.CARD.name}"


def shown_record(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Splits the newest run of configurations into (the first row of each, the second rows of those timed twice).

    Those timed twice are the best of each tile; the second list is fastest first.
    """
    named = grouped(_newest(row for row in rows if row.name.startswith("(")), lambda row: row.name)
    best = [row for of_name in named.values() for row in of_name[1:]]
    return [of_name[0] for of_name in named.values()], sorted(best, key=lambda row: row.median_ms or 0.0)


def counted(rows: Sequence[Row]) -> str:
    """Returns a text that says how many configurations were refused, compiled, left out and timed.

    The rows are one of each configuration.
    """
    refused = sum(row.fingerprint is None for row in rows)
    left_out = [row for row in rows if row.status == "compiled"]
    same = sum(bool(row.same_code_as) for row in left_out)
    timed = sum(row.median_ms is not None for row in rows)
    return (
        f"{len(rows)} in the space: {refused} were refused before they were timed, and {len(rows) - refused} were compiled. Among "
        f"the compiled ones {len(left_out) - same} were left out for spills or room, {same} have the same code as another, and "
        f"{timed} were timed"
    )


def best_of_tiles(rows: Sequence[Row]) -> Table:
    """Makes a table of these rows, the best of each tile, each followed by the published best of the same tile.

    Configurations name the rows. A rate is also shown as a part of the best: our rows' of the best here, the text's of
    the best there. What a row lacks is left empty: its times where there was no GPU, and all that was compiled where it
    was refused.
    """
    there = {line.configuration.tile: line for line in published.BEST}
    most = max((row.tflops for row in rows if row.tflops is not None), default=0.0)
    most_there = max(line.tflops for line in published.BEST)
    found: list[tuple[str, ...]] = []
    for row in rows:
        configuration, takes, card = parse(row.name), None, CARDS[row.arch]
        if row.registers is not None and row.shared_bytes is not None:
            warps = card.warps_per_sm(configuration.threads, row.registers, row.shared_bytes)
            takes = row.registers, row.stack_bytes or 0, row.shared_bytes, warps
        where = row.device or f"compiled for {card.name}"
        found.append((tile_text(configuration.tile), where, *_cells(configuration, row.tflops, most, takes)))
        if line := there.get(configuration.tile):
            takes = line.registers, line.stack_bytes, line.shared_bytes, line.warps_per_sm
            found.append(("", THERE, *_cells(line.configuration, line.tflops, most_there, takes)))
    return Table.plain("the best of each tile", CHOICE, found)


def _cells(
    configuration: Configuration, tflops: float | None, most: float, takes: tuple[int, int, int, int] | None
) -> Iterator[str]:
    """Yields a line's cells: options, rate, percent of the best, registers, bytes of stack, shared KiB, and warps."""
    yield str(configuration).partition(": ")[2].removeprefix(f"{ALWAYS_ON}+")
    yield from ("", "") if tflops is None else (f"{tflops:.1f}", f"{100 * tflops / most:.1f}")
    if takes is None:
        yield from [""] * 4
    else:
        registers, stack_bytes, shared_bytes, warps = takes
        yield from (str(registers), str(stack_bytes), f"{shared_bytes / KIB:g}", str(warps))
