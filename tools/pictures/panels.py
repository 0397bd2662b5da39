"""The pictures of a grid share what is here: cells are sorted into series over lengths, and series get names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pages.cells import SHORT

from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import grouped
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.mask import FULL, Mask


class Key(NamedTuple):
    """A key is what all cells of a series share: everything but the length."""

    mask: Mask
    heads: int
    heads_kv: int
    head_size: HeadSize
    dtype: str
    optional: tuple[str, ...]


def key_of(row: CellRow) -> Key:
    """Returns the series of a cell."""
    s = row.shape
    return Key(s.mask, s.heads, s.heads_kv, s.head_size, s.dtype, s.asked.parameters)


def by_panel(rows: Sequence[CellRow]) -> dict[Key, list[CellRow]]:
    """Returns the cells of each series by length; series without a mask first, and else in the record's order."""
    found = grouped(rows, key_of)
    ordered = sorted(found, key=lambda key: key.mask != FULL)
    return {key: sorted(found[key], key=lambda row: row.shape.seq_kv) for key in ordered}


def words(key: Key) -> str:
    """Names a series, as in `40 heads on 8, causal, bf16`, or `8 heads of 64, bf16` where head_dim is not 128."""
    heads = f"{key.heads} heads" if key.heads == key.heads_kv else f"{key.heads} heads on {key.heads_kv}"
    size = "" if key.head_size == 128 else f" of {key.head_size}"
    return ", ".join([f"{heads}{size}", *key.mask.suffix.split(maxsplit=0), *key.optional, SHORT[key.dtype]])


def problem(rows: Sequence[CellRow]) -> str:
    """Says which head sizes and numbers of tokens the cells have."""
    sizes = sorted({str(row.shape.head_size) for row in rows}, key=lambda size: (len(size), size))
    tokens = sorted({row.shape.batch * row.shape.seq_kv for row in rows})
    return f"head_dim {' and '.join(sizes)}, batch {' or '.join(map(str, tokens))} / length"
