"""Keys in pages: a block table says where those of each sequence lie. Its calls are calls of packed sequences.

The table's rows, one behind the other, are taken for packed sequences of as many keys as a row's pages have. Where the
rows of K and V lie that a sequence of them begins with, kernels ask the table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op.gradients import is_traced
from tl_attention.problem.bounds import LARGEST

FUNCTION = "attention_varlen"
# The most rows that pages may have, and the most keys of all rows of a table, in pages that lie side by side.
MOST_ROWS = LARGEST // 2


class Pages(NamedTuple):
    """A Pages says where keys lie in pages."""

    table: Tensor  # int32 (sequences, pages of each), contiguous
    size: int  # keys of a page
    rows: int  # rows of K, and of V, from the begin of a page to that of the next in memory
    number: int
    # Writes keys to pages, after a call is checked and before a kernel reads them.
    fill: Callable[[], None] | None = None

    @property
    def longest(self) -> int:
        """Returns the most keys of a sequence."""
        return self.table.shape[1] * self.size

    @property
    def keys(self) -> int:
        """Returns how many keys all sequences have room for, which kernels count as if they lay in a row."""
        return self.table.numel() * self.size

    @property
    def arguments(self) -> tuple[Tensor, int, int, int]:
        """Returns the arguments of a kernel, in the order of PAGES."""
        return self.table.view(-1), self.size, self.rows, self.number

    def faults(self, used: list[int]) -> Iterator[str]:
        """Yields what is wrong with the table's entries for so many used keys of each sequence; waits for the GPU."""
        for sequence, (entries, keys) in enumerate(zip(self.table.tolist(), used)):
            named = entries[: -(-min(keys, self.longest) // self.size)]
            for place, page in enumerate(named):
                if not 0 <= page < self.number:
                    yield (
                        f"block_table names page {page} at {place} of sequence {sequence}, expected 0 to "
                        f"{self.number - 1}"
                    )


class Placed(NamedTuple):
    """A Placed has the keys of a call with pages, as packed sequences have them."""

    k: Tensor  # (rows, heads_kv, head_dim) of all pages
    v: Tensor
    cu_seqlens_k: Tensor
    pages: Pages


def placed(k: Tensor, v: Tensor, table: object, cu_seqlens_k: object, seqused_k: object) -> Placed:
    """Returns where the keys lie of a call with a block table. Raises InputError for what no kernel reads in place."""
    for fault in _faults(k, v, table, cu_seqlens_k, seqused_k):
        raise InputError(f"{FUNCTION}: {fault}")
    assert isinstance(table, Tensor)
    count, size = k.shape[:2]
    (rows, row), (of_v, row_of_v) = (_rows_of_page(x) for x in (k, v))
    if rows is None or rows != of_v:
        raise InputError(
            f"{FUNCTION}: k and v have strides {tuple(k.stride())} and {tuple(v.stride())}, expected for both as many "
            "whole rows from a page to the next"
        )
    pages, total = Pages(table, size, rows, count), max(count - 1, 0) * rows + size * (count > 0)
    for words, found in (("k has", total), ("block_table has room for", pages.keys)):
        if found > MOST_ROWS:
            raise InputError(f"{FUNCTION}: {words} {found} rows, expected at most {MOST_ROWS}")
    k, v = (x.as_strided((total, *x.shape[2:]), (stride, *x.stride()[2:])) for x, stride in ((k, row), (v, row_of_v)))
    return Placed(k, v, offsets_of(len(table), pages.longest, table), pages)


def _faults(k: Any, v: Any, table: Any, cu_seqlens_k: object, seqused_k: object) -> Iterator[str]:
    expected = "expected contiguous torch.int32 (sequences, pages)"
    if not isinstance(table, Tensor):
        yield f"block_table is {type(table).__name__}, {expected}"
    for name, tensor in (("k", k), ("v", v)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            yield f"{name} is {found} beside a block_table, expected a tensor (pages, page_size, heads_kv, head_dim)"
    if table.dtype != torch.int32 or table.dim() != 2 or not table.is_contiguous() or table.device != k.device:
        lies = "" if table.is_contiguous() else "not contiguous "
        yield f"block_table is {lies}{table.dtype} {tuple(table.shape)} on {table.device}, {expected} on {k.device}"
    if k.shape[:3] != v.shape[:3] or k.shape[1] == 0:
        yield f"k {tuple(k.shape)} and v {tuple(v.shape)} do not match, expected as many pages, keys and heads, and a key"
    if cu_seqlens_k is not None:
        yield "cu_seqlens_k is given beside a block_table, expected None: seqused_k says how many keys there are"
    if seqused_k is None:
        yield "seqused_k is None beside a block_table, expected the number of keys of each sequence"


def _rows_of_page(tensor: Tensor) -> tuple[int | None, int]:
    """Returns (how many rows there are from a page to the next, a row's stride); None for no whole rows, or too few."""
    count, size = tensor.shape[:2]
    # The stride of a page's only row says nothing.
    page, row = tensor.stride()[:2] if size > 1 else tensor.stride()[:1] * 2
    rows, beyond = divmod(page, row) if row else (0, 1)
    return size if count < 2 else None if beyond or rows < size else rows, row


@functools.lru_cache(maxsize=256)
def _kept_offsets(sequences: int, keys: int, device: torch.device) -> Tensor:
    return torch.arange(sequences + 1, dtype=torch.int32, device=device) * keys


def offsets_of(sequences: int, keys: int, beside: Tensor) -> Tensor:
    """Returns the offsets of so many sequences of so many keys each, which later calls find again."""
    # What is made while a graph is captured is the graph's, and a tracer's tensors have no data.
    if is_traced(beside) or (beside.is_cuda and torch.cuda.is_current_stream_capturing()):
        return _kept_offsets.__wrapped__(sequences, keys, beside.device)
    return _kept_offsets(sequences, keys, beside.device)
