"""This module shows profiled kernels as tables: counters beside theory, bytes of several kernels, and their stalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tl_attention.errors import printable
from tl_attention.lab.measure import counters
from tl_attention.lab.measure.counters import Counter
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import grouped
from tl_attention.lab.show.table import Table

BYTES = [counter for counter in counters.COUNTERS if counter.unit in ("byte", "sector")]
HEADINGS = ("what", "measured", "theory", "measured / theory")
# A stall that is below this in every column is left out.
LEAST_PERCENT = 0.005


def title(row: ProfileRow) -> str:
    """Returns a table's title, with the kernel, problem, device and run, or "theory alone" without metrics."""
    several = f", the longest of {row.launches} launches" if row.launches > 1 else ""
    where = f"{row.device or 'no GPU'}, {row.run}" if row.metrics else "theory alone"
    return printable(f"{row.name} ({row.sizes}), {row.shape}, {where}{several}")


def table(row: ProfileRow) -> Table:
    """Makes a table of a kernel's counters, each beside what theory says.

    A row without metrics shows only what has a theory.
    """
    return Table.plain(title(row), HEADINGS, list(_lines(row, counters.COUNTERS)))


def tables(rows: Sequence[ProfileRow]) -> list[Table]:
    """Makes a table of each kernel's counters, and then one of the stalls of each run and problem."""
    return [*map(table, rows), *map(stall_table, by_problem(rows))]


def traffic_table(rows: Sequence[ProfileRow]) -> Table:
    """Makes one table of the bytes that several kernels move, each measured beside what theory says."""
    lines = [(row.name, *line) for row in rows for line in _lines(row, BYTES)]
    return Table.plain("", ("schedule", *HEADINGS), lines)


def stall_table(rows: Sequence[ProfileRow]) -> Table:
    """Makes a table of stalls as percent of all stalls of a kernel, the largest first.

    It has a column for each kernel and, for two kernels, how they differ. A warp that issues (`selected`) is in no
    stall; a warp that could issue and waits for another (`not_selected`) counts as a stall.
    """
    columns = [stalls(row) for row in rows]
    known = [reason for reason in counters.STALLS if any(column.get(reason, 0) >= LEAST_PERCENT for column in columns)]
    known.sort(key=lambda reason: -max(column.get(reason, 0) for column in columns))
    lines = [(reason, *map(_percent, (column.get(reason) for column in columns))) for reason in known]
    headings = ["stall", *(row.name for row in rows)]
    if len(rows) == 2:
        headings.append("delta")
        differ = [columns[1].get(reason, 0) - columns[0].get(reason, 0) for reason in known]
        lines = [(*line, f"{delta:+.2f} %") for line, delta in zip(lines, differ)]
    return Table.plain(f"stalls, {rows[0].shape}", headings, lines)


def stalls(row: ProfileRow) -> dict[str, float]:
    """Returns each stall of a kernel as percent of all its stalls, by reason; {} where none were counted."""
    counted = {reason: row.metrics.get(counters.stalled(reason)) for reason in counters.STALLS}
    known = {reason: cycles for reason, cycles in counted.items() if cycles is not None}
    total = sum(known.values())
    return {reason: 100 * cycles / total for reason, cycles in known.items()} if total else {}


def by_problem(rows: Sequence[ProfileRow]) -> list[list[ProfileRow]]:
    """Returns the rows that have stalls in lists, one per run and problem, and leaves out rows without stalls."""
    return [*grouped([row for row in rows if stalls(row)], lambda row: (row.run, str(row.shape))).values()]


def below(rows: Sequence[ProfileRow]) -> Iterator[str]:
    """Yields lines that say what the words of the tables mean, and what was not counted."""
    yield "GB are 10^9 bytes, GiB 2^30"
    yield "L2 hit rate: as ncu has it, from counters of several passes, so it may be over 100 %"
    yield "SMs' L2 hit rate: of the sectors that the SMs read and write; cycles and warps are those of an SM"
    yield from (f"{counter.what}: {counter.words}" for counter in BYTES)
    for row in rows:
        if row.metrics and (lacks := [metric for metric in counters.METRICS if metric not in row.metrics]):
            yield f"{row.name}: not counted: {', '.join(lacks)}"


def amount(value: float | None) -> str:
    """Returns a number of bytes as `1.611 GB = 1.500 GiB`, "" for None."""
    return "" if value is None else f"{value / 1e9:.3f} GB = {value / 2**30:.3f} GiB"


def _lines(row: ProfileRow, shown: Sequence[Counter]) -> Iterator[tuple[str, ...]]:
    """Yields texts (what, measured, theory, ratio) for each counter with a value or theory, and SMs' L2 hit rate."""
    for counter in shown:
        theory = counter.theory(row.shape, row.tiling)
        if counter.metric in row.metrics or theory is not None:
            measured = row.bytes_of(counter.metric) if counter.unit in ("byte", "sector") else None
            ratio = f"{measured / theory:.3f}" if measured is not None and theory else ""
            yield counter.what, _measured(row, counter), amount(theory), ratio
        if counter.metric == counters.L2_HIT_RATE and (rate := _hit_rate(row)):
            yield "SMs' L2 hit rate", rate, "", ""


def _measured(row: ProfileRow, counter: Counter) -> str:
    value = row.metrics.get(counter.metric)
    if value is None:
        return ""
    if counter.unit == "ns":
        return f"{value / 1e6:.3f} ms"
    if counter.unit == "%":
        return _percent(value)
    return amount(row.bytes_of(counter.metric)) if counter.unit else f"{value:,.{counter.digits}f}"


def _hit_rate(row: ProfileRow) -> str:
    """Returns, as text, how many percent of the sectors that SMs ask for are in L2, "" where a count is missing."""
    metrics = (counters.SECTORS_READ, counters.SECTORS_WRITTEN, counters.SECTORS_MISSED)
    read, written, missed = (row.metrics.get(metric) for metric in metrics)
    if read is None or written is None or missed is None or not read + written:
        return ""
    return _percent(100 * (1 - missed / (read + written)))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} %"
