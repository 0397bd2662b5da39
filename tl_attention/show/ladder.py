"""A ladder as a table, and what each step changed: in the keys of the schedule, and in the loop that ptxas made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tl_attention.build.sass import Loop, steady
from tl_attention.errors import ScheduleRefused
from tl_attention.files.ladder_file import Ladder, Step
from tl_attention.hardware.card import CARDS
from tl_attention.lowering.registry import lowering_of
from tl_attention.measure.products import PRODUCTS
from tl_attention.measure.records import Row
from tl_attention.program.planned import Planned
from tl_attention.show.diff import changed_keys
from tl_attention.show.report import PEER_NAMES

_HEADINGS = (
    "step",
    "ms (p10-p90)",
    "TFLOPS",
    "% of product",
    "text",
    "speed / {peer}",
    "speed / step before",
    "registers",
    "spills B",
    "shared KiB",
    "warps per SM",
)
# Which columns a narrow terminal keeps.
PRIORITY = (0, 1, 6, 2, 3, 4, 5, 7, 8, 10, 9)
# A longer value of a key is in the files.
LONGEST_VALUE = 40
NOTHING = "-"


def headings(ladder: Ladder) -> tuple[str, ...]:
    """Of the table; the first peer has a column."""
    first = next(iter(ladder.peers), "peer")
    peer = PEER_NAMES.get(first, first)
    return tuple(heading.format(peer=peer) for heading in _HEADINGS)


def lines(ladder: Ladder, rows: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """A line of the table for each step and then for each peer; `rows` are those of one run, by name."""
    steps = [_line(step.name, rows, step.text, ladder, step.against) for step in ladder.steps]
    return steps + [_line(peer, rows, text, ladder, None) for peer, text in ladder.peers.items()]


def title(ladder: Ladder, rows: Mapping[str, Row]) -> str:
    """What was measured, where, and what 100 % is."""
    row = next((row for row in rows.values() if row.matmul_tflops), None) or next(iter(rows.values()))
    plain = f", {PRODUCTS[ladder.product]} {row.matmul_tflops:.0f} TFLOPS" if row.matmul_tflops else ""
    return f"{ladder.shape}, {row.device or 'no GPU'}{plain}, {row.measured_in}"


def below(ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """What each step is and changed, and what the last column is."""
    for step in ladder.steps:
        yield f"{step.name}: {step.idea}{f' ({step.schedule.name})' if step.schedule else ''}"
        yield from (f"  {line}" for line in changes(step, ladder, rows))
    yield f"text: {ladder.source}: {ladder.unit}; {ladder.method}"


def changes(step: Step, ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """What a step changed against the one that it goes on from; of the first its loop. Last its note."""
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
    """`621 -> 590 instructions: FMUL 66 -> 35`: of each kind that is counted, where it differs."""
    kinds = dict.fromkeys((*before.counts, *after.counts))
    counts = {kind: (before.counts.get(kind, 0), after.counts.get(kind, 0)) for kind in kinds}
    changed = [f"{kind} {was} -> {now}" for kind, (was, now) in counts.items() if was != now]
    others = [loop.instructions - sum(loop.counts.values()) for loop in (before, after)]
    if others[0] != others[1]:
        changed.append(f"others {others[0]} -> {others[1]}")
    total = f"{before.instructions} -> {after.instructions} instructions"
    return f"{total}: {', '.join(changed)}" if changed else f"{total}, as many of each kind, in another order"


def _line(
    name: str, rows: Mapping[str, Row], text: float | None, ladder: Ladder, against: str | None
) -> tuple[str, ...]:
    row, peer = rows.get(name), rows.get(next(iter(ladder.peers), ""))
    figure = f"{text:g}" if text is not None else ""
    if row is None:
        return (PEER_NAMES.get(name, name), NOTHING, "", "", figure, *[""] * (len(_HEADINGS) - 5))
    time = row.status if row.median_ms is None else f"{row.median_ms:.3f} ({row.p10_ms:.3f}-{row.p90_ms:.3f})"
    warps = warps_per_sm(row)
    return (
        PEER_NAMES.get(name, name),
        time,
        _number(row.tflops),
        _number(row.percent_of_matmul, 1),
        figure,
        _number(row.speed(peer) if peer else None, 3),
        _gain(row, against, ladder),
        _number(row.registers),
        _number(row.stack_bytes),
        _number(row.shared_bytes and row.shared_bytes / 1024),
        _number(warps),
    )


def _gain(row: Row, against: str | None, ladder: Ladder) -> str:
    """How much faster it is than the step that it goes on from: the median of paired ratios, and which step that was."""
    if row.against is None or against is None:
        return ""
    order = [step.name for step in ladder.measured]
    is_next = order.index(row.name) == order.index(against) + 1
    return f"{1 / row.against.ratio:.3f}{'' if is_next else f' ({against})'}"


def warps_per_sm(row: Row) -> int | None:
    """Warps that an SM of its card holds of a compiled row at once; None of a peer, and where the compiler adds warps."""
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


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def by_name(rows: Sequence[Row], ladder: Ladder) -> dict[str, Row]:
    """The rows of the newest run of a record, by step and peer; those of other problems left out."""
    names = {*(step.name for step in ladder.steps), *ladder.peers}
    return _newest([row for row in rows if row.shape == ladder.shape and row.name in names])


def tiles_by_name(rows: Sequence[Row], ladder: Ladder) -> dict[str, Row]:
    """The newest rows of what was compiled alone, by its schedule."""
    names = {tile.schedule.name for tile in ladder.tiles}
    return _newest([row for row in rows if row.name in names])


def _newest(rows: Sequence[Row]) -> dict[str, Row]:
    newest = max((row.measured_in for row in rows), default="")
    return {row.name: row for row in rows if row.measured_in == newest}


TILE_HEADINGS = ("compiled alone", "registers", "spills B", "shared KiB", "warps per SM", "text")


def tile_lines(ladder: Ladder, rows: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """What each tile takes, beside the text's; of one that is refused why."""
    lines: list[tuple[str, ...]] = []
    for tile in ladder.tiles:
        row = rows.get(tile.schedule.name)
        if row is None or row.registers is None:
            why = f"{row.status}: {row.reason.partition('; use')[0]}" if row else NOTHING
            lines.append((tile.schedule.name, why, "", "", "", tile.text))
        else:
            takes = (row.registers, row.stack_bytes, row.shared_bytes and row.shared_bytes / 1024, warps_per_sm(row))
            lines.append((tile.schedule.name, *map(_number, takes), tile.text))
    return lines
