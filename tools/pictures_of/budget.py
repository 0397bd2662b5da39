"""How much of its error budget each record used: rows of runs and entries of cells alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tl_attention.measure.cell import OTHERS, OURS, UNMASKED
from tl_attention.measure.cell_records import AGAIN, CellRow, is_cell, parse_cell
from tl_attention.measure.records import Measured, Row, parse_object, parse_row, read_lines
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

# Of a row that was verified; and what its `sizes` are of a peer.
ROW_KEYS, PEER = ("error_max_abs", "error_max_abs_budget"), "peer"


# Whose errors are those of the gradients too.
BACKWARD = "backward-h200.jsonl"


class Kind(NamedTuple):
    """What is told apart: whether gradients are part of it, dtype, mask in words, head size."""

    gradients: bool
    dtype: str
    mask: str
    head_size: HeadSize


@dataclass(frozen=True)
class Share:
    """One verified output: whose it is, and its largest error as a part of its budget."""

    of: str
    kind: Kind
    value: float
    line: Measured


def shares(record: Path) -> list[Share]:
    """Those of a record; none of one that has other lines. Raises InputError for a line that is no row."""
    gradients = record.name == BACKWARD
    return [share for where, line in read_lines(record) for share in _of_line(line, where, gradients)]


def _of_line(line: bytes, where: str, gradients: bool) -> Iterator[Share]:
    values = parse_object(line, where)
    if is_cell(values):
        yield from _of_cell(parse_cell(line, where), gradients)
    elif all(key in values for key in ROW_KEYS):
        yield from _of_row(parse_row(line, where))


def _of_cell(row: CellRow, gradients: bool) -> Iterator[Share]:
    for entry in row.entries:
        # The same kernel is entered twice to see what repeats: its error is the same.
        if entry.error is not None and not entry.name.endswith(AGAIN):
            shape = replace(row.shape, mask=FULL) if entry.name == UNMASKED else row.shape
            yield Share(entry.name if entry.name in OTHERS else OURS, kind_of(shape, gradients), entry.error, row)


def _of_row(row: Row) -> Iterator[Share]:
    if row.error_max_abs is not None and row.error_max_abs_budget:
        share = row.error_max_abs / row.error_max_abs_budget
        yield Share(row.name if row.sizes == PEER else OURS, kind_of(row.shape), share, row)


def kind_of(shape: AttentionShape, gradients: bool = False) -> Kind:
    """The kind of a problem."""
    mask = {FULL: "unmasked", CAUSAL: "causal"}.get(shape.mask, "window")
    return Kind(gradients, shape.dtype, mask, shape.head_size)
