"""Cells sorted into series over lengths, and the words for them: what the pictures of a grid have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pictures.style import SHORT
from tl_attention.measure.cell_records import CellRow
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.mask import FULL, Mask


class Key(NamedTuple):
    """What a series has besides its lengths."""

    mask: Mask
    heads: int
    heads_kv: int
    head_size: HeadSize
    dtype: str
    optional: tuple[str, ...]


def key_of(row: CellRow) -> Key:
    """The series of a cell."""
    s = row.shape
    return Key(s.mask, s.heads, s.heads_kv, s.head_size, s.dtype, s.asked.parameters)


def by_panel(rows: Sequence[CellRow]) -> dict[Key, list[CellRow]]:
    """The cells of each series by length; first those without a mask, in the record's order of what is left."""
    found: dict[Key, list[CellRow]] = {}
    for row in rows:
        found.setdefault(key_of(row), []).append(row)
    ordered = sorted(found, key=lambda key: key.mask != FULL)
    return {key: sorted(found[key], key=lambda row: row.shape.seq_kv) for key in ordered}


def words(key: Key) -> str:
    """`40 heads on 8, causal, bf16`; `8 heads of 64, bf16` where head_dim is not 128."""
    heads = f"{key.heads} heads" if key.heads == key.heads_kv else f"{key.heads} heads on {key.heads_kv}"
    size = "" if key.head_size == 128 else f" of {key.head_size}"
    return ", ".join([f"{heads}{size}", *key.mask.suffix.split(maxsplit=0), *key.optional, SHORT[key.dtype]])


def problem(rows: Sequence[CellRow]) -> str:
    """What all cells have in common."""
    sizes = sorted({str(row.shape.head_size) for row in rows}, key=lambda size: (len(size), size))
    tokens = sorted({row.shape.batch * row.shape.seq_kv for row in rows})
    return f"head_dim {' and '.join(sizes)}, batch {' or '.join(map(str, tokens))} / length"


def length(seq: int) -> str:
    """`4k`."""
    return f"{seq // 1024}k" if seq % 1024 == 0 else str(seq)
