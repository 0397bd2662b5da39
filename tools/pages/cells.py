"""Reads the cells of records, and makes the tables of speed from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import geometric_mean

from pages.made import RESULTS
from tl_attention.lab.measure import records
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import Measured
from tl_attention.lab.show.cells import binding_peer
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown, number
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape

SHORT = {"float16": "fp16", "bfloat16": "bf16"}
# The cards that were measured; most records are of CARD alone.
CARDS = ("h100", "h200")
CARD = "h200"
# The lengths of the tables, of which the grid has more.
LENGTHS = (1024, 4096, 16384)
PICTURE = "docs/speed.svg"
PEERS = {name: PEER_NAMES[name] for name in ("fa3", "cudnn")}
SDPA = {"flash2": "SDPA's flash", "cudnn": "SDPA's cuDNN"}
ALONE = ("problem: batch, heads, length, head_dim", "ms", "speed", "vs.")
NAMES = {**PEER_NAMES, "unmasked": "our rate without a mask", "without_lse": "ours without the LSE"}


def record(stem: str, card: str = CARD) -> Path:
    """Returns the file that holds a card's record."""
    return RESULTS / f"{stem}-{card}.jsonl"


def read(path: Path) -> list[CellRow]:
    """Reads the cells of a record."""
    return records.read_all(CellRow, path)


def speeds(rows: Iterable[CellRow], peer: str) -> list[float]:
    """Returns our speed beside a peer in each cell in which both were timed."""
    return [speed.ratio for row in rows if (speed := row.speed(OURS, peer))]


def span(ratios: Sequence[float], digits: int = 3, unit: str = "") -> str:
    """Says which of some ratios is the lowest and which the highest."""
    return f"{min(ratios):.{digits}f}{unit} to {max(ratios):.{digits}f}{unit}"


def spread(ratios: Sequence[float]) -> str:
    """Gives the geometric mean of some ratios and, of more than one, their range; "" of none."""
    if not ratios:
        return ""
    return f"{geometric_mean(ratios):.3f}" + f" ({span(ratios)})" * (len(ratios) > 1)


def read_all(card: str) -> list[CellRow]:
    """Reads a card's cells and, at the tables' lengths and in the same dtype, its grid; the smallest head is first."""
    cells = read(record("cells", card))
    dtype = cells[0].shape.dtype
    grid = [row for row in read(record("grid", card)) if row.shape.seq_kv in LENGTHS and row.shape.dtype == dtype]
    return sorted([*cells, *grid], key=lambda row: (bool(row.shape.asked["softcap"]), sizes_of(row.shape.head_size)))


def all_cards() -> list[CellRow]:
    """Reads what the section of speed shows, card by card."""
    return [row for card in CARDS for row in read_all(card)]


def section(rows: Sequence[CellRow]) -> str:
    """Makes the section of speed: the picture, and the tables of each card."""
    parts = [f"![Speed vs. {PEERS['fa3']}]({Path(PICTURE).name})\n", f"{about_lengths(rows[0])}\n"]
    for device in dict.fromkeys(row.device for row in rows):
        parts.extend(card_tables([row for row in rows if row.device == device]))
    return "\n".join(parts)


def card_tables(rows: Sequence[CellRow]) -> Iterator[str]:
    """Writes the heading and the tables of one card."""
    of_lengths, others = divided(rows)
    yield f"### On one {rows[0].device}\n"
    if of_lengths:
        yield f"{over_lengths(of_lengths)}\n"
    if others:
        yield f"{markdown(ALONE, list(map(alone, others)))}\n"


def divided(rows: Sequence[CellRow]) -> tuple[list[CellRow], list[CellRow]]:
    """Divides the cells into those of groups with several lengths, and the others."""
    lengths = {
        group: {row.shape.seq_kv for row in of} for group, of in records.grouped(rows, attrgetter("group")).items()
    }
    several, one = ([row for row in rows if (len(lengths[row.group]) > 1) is some] for some in (True, False))
    return several, one


def about_lengths(row: CellRow) -> str:
    """Says what the tables over lengths have in common."""
    tokens = row.shape.batch * row.shape.seq_kv
    return f"In the tables over lengths the speeds are in {SHORT[row.shape.dtype]}, and the batch is {tokens} / length."


def measured_on(row: Measured) -> str:
    """Names the machine, the run and the method of a record's line."""
    versions = ", ".join(f"{what} {version}" for what, version in row.versions.items())
    return (
        f"{row.device}, driver {row.driver}, {row.run}, commit {row.commit}; {versions}, nvcc {row.nvcc}. {row.method}."
    )


def over_lengths(rows: Sequence[CellRow], peers: Mapping[str, str] = PEERS) -> str:
    """Makes the table of cells of several lengths: a column for each peer and length, and the geometric mean.

    The mean is against the first peer.
    """
    lengths = sorted({row.shape.seq_kv for row in rows})
    columns = [f"{name}, {length(seq)}" for name in peers.values() for seq in lengths]
    headings = ["head_dim", "heads", "", *columns, f"mean / {next(iter(peers.values()))}"]
    return markdown(headings, list(_grid(rows, lengths, peers)))


def _grid(rows: Sequence[CellRow], lengths: Sequence[int], peers: Mapping[str, str]) -> Iterator[list[str]]:
    """Yields a line for each group and mask."""
    for cells in records.grouped(rows, lambda row: (row.group, row.shape.mask == CAUSAL)).values():
        of_line, shape = {row.shape.seq_kv: row for row in cells}, cells[0].shape
        what = [
            *["causal"] * (shape.mask == CAUSAL),
            *[f"softcap {shape.asked['softcap']:g}"] * bool(shape.asked["softcap"]),
        ]
        found = [_speed(of_line.get(seq), peer) for peer in peers for seq in lengths]
        against = speeds(cells, next(iter(peers)))
        yield [
            str(shape.head_size),
            heads_of(shape),
            ", ".join(what),
            *(number(speed, 3) for speed in found),
            number(geometric_mean(against), 3) if against else "",
        ]


def heads_of(shape: AttentionShape) -> str:
    """Writes the number of heads, as in `16`, or `40 on 8` where 40 heads share the keys and values of 8."""
    return str(shape.heads) if shape.group == 1 else f"{shape.heads} on {shape.heads_kv}"


def alone(row: CellRow) -> list[str]:
    """Makes the line of a cell that stands alone in its group."""
    peer = binding_peer(row)
    speed, ms = _speed(row, peer) if peer else None, row.ours.median_ms
    visited = f", which visits {row.visited:.2f} x the visible pairs" * (peer == "unmasked") if row.visited else ""
    return [
        f"{row.shape}{visited}",
        row.ours.status if ms is None else f"{ms:.3f}",
        number(speed, 3),
        NAMES.get(peer, peer) if peer else "",
    ]


def _speed(row: CellRow | None, peer: str) -> float | None:
    found = row.speed(OURS, peer) if row else None
    return found.ratio if found else None


def length(seq: int) -> str:
    return f"{seq // 1024}k" if seq % 1024 == 0 else str(seq)
