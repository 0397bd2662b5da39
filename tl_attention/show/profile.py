"""This module shows profiled kernels as tables: counters beside theory, bytes of several kernels, and their stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tl_attention.errors import printable
from tl_attention.measure import counters
from tl_attention.measure.profile import ProfileRow
from tl_attention.measure.records import grouped
from tl_attention.problem import traffic
from tl_attention.show.table import Table

Line = tuple[str, ...]


@dataclass(frozen=True)
class _Bytes:
    """A `_Bytes` is a counter of bytes, with what theory says of it and, in words, what the two count."""

    what: str
    metric: str
    theory: Callable[[ProfileRow], int | None]
    words: str


_BYTES = (
    _Bytes("DRAM read", counters.DRAM_READ, lambda row: traffic.inputs(row.shape), "Q, K and V once"),
    _Bytes("DRAM written", counters.DRAM_WRITTEN, lambda row: traffic.outputs(row.shape), "the output once"),
    _Bytes(
        "read from L2",
        counters.SECTORS_READ,
        lambda row: row.read_from_l2,
        "sectors that L2 reads for the SMs; Q of each tile, K and V of each cluster. It is less where one read serves "
        "neighbouring SMs: many of cp.async's, few of TMA's",
    ),
    _Bytes(
        "arrived in SMs",
        counters.ARRIVED,
        lambda row: row.arriving_in_sms,
        "what the crossbar hands to the SMs; a load that a cluster shares once for each of its tiles",
    ),
    _Bytes(
        "missed in L2",
        counters.SECTORS_MISSED,
        lambda row: traffic.inputs(row.shape),
        "sectors of the SMs that L2 did not have where they asked; Q, K and V once. The other half may have had them",
    ),
    _Bytes(
        "between L2 halves",
        counters.SECTORS_OF_FABRIC,
        lambda row: None,
        "sectors that one half of L2 asks the other for",
    ),
    _Bytes(
        "written to L2", counters.SECTORS_WRITTEN, lambda row: traffic.outputs(row.shape), "the output once; spills too"
    ),
)
HEADINGS = ("what", "measured", "theory", "measured / theory")
# A stall that is below this in every column is left out.
LEAST_PERCENT = 0.005


def title(row: ProfileRow) -> str:
    """Says what was profiled, and where."""
    several = f", the longest of {row.launches} launches" if row.launches > 1 else ""
    where = f"{row.device or 'no GPU'}, {row.run}" if row.metrics else "theory alone"
    return printable(f"{row.name} ({row.sizes}), {row.shape}, {where}{several}")


def table(row: ProfileRow) -> Table:
    """Makes a table of a kernel's counters, each beside what theory says.

    A row without metrics shows only what has a theory.
    """
    lines = [*_times(row), *_bytes(row), *_counts(row)]
    return Table.plain(title(row), HEADINGS, [line for line in lines if any(line[1:])])


def traffic_table(rows: Sequence[ProfileRow]) -> Table:
    """Makes a table of the bytes of several kernels, one after another."""
    lines = [(row.name, *line) for row in rows for line in _bytes(row) if any(line[1:])]
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
    """Returns percent of all stalls, by reason; {} where none were counted."""
    counted = {reason: row.metrics.get(counters.stalled(reason)) for reason in counters.STALLS}
    known = {reason: cycles for reason, cycles in counted.items() if cycles is not None}
    total = sum(known.values())
    return {reason: 100 * cycles / total for reason, cycles in known.items()} if total else {}


def by_problem(rows: Sequence[ProfileRow]) -> list[list[ProfileRow]]:
    """Groups rows by run and problem. Rows without stalls are left out."""
    return [*grouped([row for row in rows if stalls(row)], lambda row: (row.run, str(row.shape))).values()]


def below(rows: Sequence[ProfileRow]) -> Iterator[str]:
    """Yields lines that say what the words of the tables mean, and what was not counted."""
    yield "GB are 10^9 bytes, GiB 2^30"
    yield "L2 hit rate: as ncu has it, from counters of several passes, so it may be over 100 %"
    yield "SMs' L2 hit rate: of the sectors that the SMs read and write; cycles and warps are those of an SM"
    yield from (f"{of.what}: {of.words}" for of in _BYTES)
    for row in rows:
        if row.metrics and (lacks := [metric for metric in counters.METRICS if metric not in row.metrics]):
            yield f"{row.name}: not counted: {', '.join(lacks)}"


def amount(value: float | None) -> str:
    """Returns a number of bytes as `1.611 GB = 1.500 GiB`, "" for none."""
    return "" if value is None else f"{value / 1e9:.3f} GB = {value / 2**30:.3f} GiB"


def _times(row: ProfileRow) -> Iterator[Line]:
    duration = row.metrics.get(counters.DURATION)
    yield "duration", "" if duration is None else f"{duration / 1e6:.3f} ms", "", ""
    for what, metric in counters.PERCENT.items():
        yield what, _percent(row.metrics.get(metric)), "", ""
    asked = [row.metrics.get(metric) for metric in (counters.SECTORS_READ, counters.SECTORS_WRITTEN)]
    missed = row.metrics.get(counters.SECTORS_MISSED)
    if missed is not None and None not in asked and (sectors := sum(value or 0 for value in asked)):
        yield "SMs' L2 hit rate", _percent(100 * (1 - missed / sectors)), "", ""


def _bytes(row: ProfileRow) -> Iterator[Line]:
    for of in _BYTES:
        measured, theory = row.bytes_of(of.metric), of.theory(row)
        ratio = f"{measured / theory:.3f}" if measured is not None and theory else ""
        yield of.what, amount(measured), amount(theory), ratio


def _counts(row: ProfileRow) -> Iterator[Line]:
    for what, (metric, digits) in counters.COUNTS.items():
        value = row.metrics.get(metric)
        yield what, "" if value is None else f"{value:,.{digits}f}", "", ""


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} %"
