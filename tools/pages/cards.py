"""Makes the tables of docs/CARDS.md from the records of other cards and of mma_sync."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pages.cells import SHORT, over_lengths, read
from pages.made import RESULTS, SCHEDULES, filling, laid_out
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown
from tl_attention.problem.card import CARDS, Card
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import CAUSAL
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load_file
from tl_attention.schedule.schedule import Schedule

RECORD = RESULTS / "cards.jsonl"
SPEEDS, IDEAS = RESULTS / "cells-mma-h200.jsonl", RESULTS / "bench-mma-h200-L.jsonl"
# Kernels for this arch have run where the project's records were made.
RUN_ON = "sm_90a"


def blocks_per_sm(row: Row) -> int:
    """Returns how many thread blocks of a compiled row an SM of its card holds at once."""
    assert row.registers is not None, "the row is compiled"
    schedule, card = Schedule.from_label(row.label), CARDS[row.arch]
    takes = lowering_of(schedule).resources(Planned(schedule), row.shape.head_size, card)
    return takes.blocks_that_fit(card, schedule.threads, row.registers)


def section(rows: Sequence[Row]) -> str:
    """Makes the section of other cards from the rows of its record."""
    cards = [card for card in CARDS.values() if any(row.arch == card.arch for row in rows)]
    of = {f"TileLang {row.versions['tilelang']}, nvcc {row.nvcc}, ptxas {row.ptxas}" for row in rows}
    return laid_out(
        "cards", compilers="; ".join(sorted(of)), run_on=CARDS[RUN_ON], limits=limits(cards), table=table(rows, cards)
    )


def limits(cards: Iterable[Card]) -> str:
    """Makes the table of what an SM of each card has."""
    headings = ["card", "compute capability", "SMs", "shared memory per SM, per thread block", "threads per SM"]
    lines = [
        [
            str(card),
            ".".join(map(str, card.capability)),
            str(card.sms),
            f"{card.shared_bytes_per_sm:,}, {card.shared_bytes_per_block:,} bytes",
            f"{card.threads_per_sm:,}",
        ]
        for card in cards
    ]
    return markdown(headings, lines)


def table(rows: Sequence[Row], cards: Sequence[Card]) -> str:
    """Makes a line for each schedule and head size, and for dtypes and masks that differ in some card's cell."""
    kernels: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in sorted(rows, key=_place):
        of_dtypes = kernels.setdefault((row.name, str(row.shape.head_size)), {})
        of_dtypes.setdefault(_what(row), {})[row.arch] = _cell(row)
    lines = []
    for (name, size), of_dtypes in kernels.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for what, cells in of_dtypes.items():
            same.setdefault(tuple(cells.get(card.arch, "") for card in cards), []).append(what)
        lines += [[f"`{name}`", size, ", ".join(what), *cells] for cells, what in same.items()]
    return markdown(["schedule", "head_dim", "dtype, mask", *(card.arch for card in cards)], lines)


def _place(row: Row) -> tuple[object, ...]:
    """Returns where a row stands; in the record rows stand in the order in which their compilations ended."""
    return row.name, sizes_of(row.shape.head_size), row.shape.mask == CAUSAL, row.shape.dtype != "float16"


def _what(row: Row) -> str:
    return f"{SHORT[row.shape.dtype]}{' causal' if row.shape.mask == CAUSAL else ''}"


def _cell(row: Row) -> str:
    if row.registers is None:
        return "-"
    return f"{row.registers}, {row.stack_bytes}, {row.shared_bytes:,}, {blocks_per_sm(row)}"


def ideas() -> str:
    """Makes the table of the rate of each schedule of mma_sync, and of peers, the fastest first."""
    summaries = {path.stem: load_file(path).summary for path in SCHEDULES.glob("**/*.yaml") if "mma_sync" in str(path)}
    lines = [
        (PEER_NAMES.get(row.name, f"`{row.name}`"), summaries.get(row.name, ""), f"{row.tflops:.0f}")
        for row in sorted(read_rows(IDEAS), key=lambda row: -(row.tflops or 0))
    ]
    return markdown(("schedule", "idea", "TFLOPS"), lines)


PARTS = {"speeds": lambda: over_lengths(read(SPEEDS), {"flash2": PEER_NAMES["flash2"]}), "ideas": ideas}
MADE = filling("docs/CARDS.md", {**PARTS, "cards": lambda: section(read_rows(RECORD))})
