"""Keys in pages: a block table says where those of each sequence lie. Its calls are calls of packed sequences.

The table's rows, one behind the other, are taken for packed sequences of as many keys as a row's pages have. Where the
rows of K and V lie that a sequence of them begins with, kernels ask the table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tl_attention.errors import InputError
from tl_attention.op.call import made
from tl_attention.op.gradients import is_traced
from tl_attention.op.plan import Plans
from tl_attention.problem.bounds import LARGEST

FUNCTION = "attention_varlen"
# The most rows that pages may have, and the most keys of all rows of a table, in pages that lie side by side.
MOST_ROWS = LARGEST // 2
TABLE, POOL = "expected contiguous torch.int32 (sequences, pages)", "(pages, page_size, heads_kv, head_dim)"
Sizes = tuple[int, ...]


class PoolSizes(NamedTuple):
    """PoolSizes are what a call's key, and the checks beside it, have of K and V in pages and of their table."""

    # (rows, heads, columns), with all rows from the first page's first to the last one's last.
    k: Sizes
    v: Sizes
    sequences: int
    keys: int  # for which all sequences together have room


class Pages(NamedTuple):
    """A Pages says where keys lie in pages."""

    # The arguments of a kernel, in the order of PAGES; it reads all rows of the table as one.
    table: Tensor  # int32 (sequences, pages of each), contiguous
    size: int  # keys of a page
    rows: int  # rows of K, and of V, from the begin of a page to that of the next in memory
    number: int
    longest: int  # the most keys of a sequence
    pool: PoolSizes | None = None  # None where no earlier call of these sizes has left them

    @classmethod
    def of(cls, table: Tensor, size: int, rows: int, number: int) -> Pages:
        """Makes a Pages of a kernel's arguments."""
        return cls(table, size, rows, number, table.shape[1] * size)

    @property
    def keys(self) -> int:
        """Returns how many keys all sequences have room for, which kernels count as if they lay in a row."""
        return self.table.numel() * self.size

    def pool_sizes(self, k: Tensor, v: Tensor) -> PoolSizes | None:
        """Returns the PoolSizes of K and V in these pages, or of all their rows; None for those that are wrong."""
        sizes, (shape, *others) = k.shape, _facts(self.table)
        if sizes[:-1] != v.shape[:-1] or len(shape) != 2 or others != [torch.int32, True, k.device]:
            return None
        rows = rows_of(self.number, self.rows, self.size)
        return PoolSizes((rows, *sizes[-2:]), (rows, *v.shape[-2:]), shape[0], self.keys)

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


def pages_of(k: Any, v: Any, table: Any, cu_seqlens_k: object, seqused_k: object) -> tuple[Pages, Tensor]:
    """Returns where keys lie in pages, (pages, page_size, heads_kv, head_dim), and the offsets that kernels count by.

    Raises InputError for arguments of other kinds. How the pages lie in memory is not looked at.
    """
    key = None
    # Sizes of a tracer's tensors may be unknown, and then have no hash.
    if type(k) is type(v) is type(table) is Tensor and not is_dynamo_compiling():
        try:
            key = k.shape, k.stride(), v.shape, table.shape, table.dtype, table.device, table.is_contiguous()
        except RuntimeError:  # Tensors without strides: refused below.
            key = None
        if (known := _known.get(key)) is not None and cu_seqlens_k is None is not seqused_k:
            return made(Pages, (table, *known[0])), known[1]
    pages, offsets = _checked(k, v, table, cu_seqlens_k, seqused_k)
    if key is not None and _lasts(table):
        pages = pages._replace(pool=pages.pool_sizes(k, v))
        _known.keep(key, (pages[1:], offsets))
    return pages, offsets


# What calls have left for later ones of their sizes: a Pages without its table, and offsets.
_known: Plans[tuple[tuple[Any, ...], Tensor]] = Plans()


def _checked(k: Any, v: Any, table: Any, cu_seqlens_k: object, seqused_k: object) -> tuple[Pages, Tensor]:
    if not (isinstance(k, Tensor) and isinstance(v, Tensor) and isinstance(table, Tensor)):
        raise _not_tensors(k, v, table)
    if cu_seqlens_k is not None:
        raise _told("cu_seqlens_k is given beside a block_table, expected None: seqused_k says how many keys there are")
    if seqused_k is None:
        raise _told("seqused_k is None beside a block_table, expected the number of keys of each sequence")
    for name, tensor in (("k", k), ("v", v), ("block_table", table)):
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "nested" if tensor.is_nested else tensor.layout
            raise _told(f"{name} is a tensor with layout {kind}, expected {torch.strided}")
    sizes, table_sizes = k.shape, table.shape
    if len(sizes) != 4 or len(table_sizes) != 2:
        raise _told(next(_faults(sizes, v.shape, _facts(table), k.device)))
    number, size = sizes[:2]
    # Pages without whole rows are refused by `as_rows`, at the first call of their strides.
    rows = _rows_of_page(sizes, k.stride())[0] or size
    return Pages.of(table, size, rows, number), offsets_of(table_sizes[0], table_sizes[1] * size, table)


def as_rows(k: Tensor, v: Tensor, pages: Pages) -> tuple[Tensor, Tensor]:
    """Returns views of all pages of K and V one behind the other, (rows, heads_kv, head_dim).

    Raises InputError for pages that no kernel reads where they lie.
    """
    of_k, of_v = _views(k.shape, k.stride(), v.shape, v.stride(), _facts(pages.table), k.device)
    return k.as_strided(*of_k), v.as_strided(*of_v)


def _facts(table: Tensor) -> tuple[Any, ...]:
    return table.shape, table.dtype, table.is_contiguous(), table.device


View = tuple[tuple[int, ...], tuple[int, ...]]


def _views(
    k: Sizes, k_strides: Sizes, v: Sizes, v_strides: Sizes, of_table: tuple[Any, ...], device: Any
) -> tuple[View, View]:
    """Returns the sizes and strides of all rows of K, and of V, whose pages have these. Raises InputError."""
    for fault in _faults(k, v, of_table, device):
        raise _told(fault)
    (count, size), (sequences, width) = k[:2], of_table[0]
    (rows, row), (of_v, row_of_v) = _rows_of_page(k, k_strides), _rows_of_page(v, v_strides)
    if rows is None or rows != of_v:
        raise _told(
            f"k and v have strides {tuple(k_strides)} and {tuple(v_strides)}, expected for both as many whole rows from "
            "a page to the next"
        )
    total = rows_of(count, rows, size)
    for words, found in (("k has", total), ("block_table has room for", sequences * width * size)):
        if found > MOST_ROWS:
            raise _told(f"{words} {found} rows, expected at most {MOST_ROWS}")
    return ((total, *k[2:]), (row, *k_strides[2:])), ((total, *v[2:]), (row_of_v, *v_strides[2:]))


def rows_of(number: int, rows: int, size: int) -> int:
    """Returns how many rows there are from the first of so many pages' first to the last one's last."""
    return (number - 1) * rows + size if number else 0


def _told(fault: str) -> InputError:
    return InputError(f"{FUNCTION}: {fault}")


def _not_tensors(k: object, v: object, table: object) -> InputError:
    """Returns the error for the first of these that is no tensor."""
    if not isinstance(table, Tensor):
        return _told(f"block_table is {type(table).__name__}, {TABLE}")
    name, found = ("v", v) if isinstance(k, Tensor) else ("k", k)
    return _told(f"{name} is {type(found).__name__} beside a block_table, expected a tensor {POOL}")


def _faults(k: Sizes, v: Sizes, of_table: tuple[Any, ...], device: object) -> Iterator[str]:
    table, dtype, contiguous, lies_on = of_table
    for name, sizes in (("k", k), ("v", v)):
        if len(sizes) != 4:
            yield f"{name} is {tuple(sizes)} beside a block_table, expected a tensor {POOL}"
    if dtype != torch.int32 or len(table) != 2 or not contiguous or lies_on != device:
        lies = "" if contiguous else "not contiguous "
        yield f"block_table is {lies}{dtype} {tuple(table)} on {lies_on}, {TABLE} on {device}"
    if k[:3] != v[:3] or k[1] == 0:
        yield f"k {tuple(k)} and v {tuple(v)} do not match, expected as many pages, keys and heads, and a key"


def _rows_of_page(sizes: Sizes, strides: Sizes) -> tuple[int | None, int]:
    """Returns (how many rows there are from a page to the next, a row's stride); None for no whole rows, or too few."""
    count, size = sizes[:2]
    # The stride of a page's only row says nothing.
    page, row = strides[:2] if size > 1 else (strides[0], strides[0])
    rows, beyond = divmod(page, row) if row else (0, 1)
    return size if count < 2 else None if beyond or rows < size else rows, row


@functools.lru_cache(maxsize=256)
def _kept_offsets(sequences: int, keys: int, device: torch.device) -> Tensor:
    return torch.arange(sequences + 1, dtype=torch.int32, device=device) * keys


def offsets_of(sequences: int, keys: int, beside: Tensor) -> Tensor:
    """Returns the offsets of so many sequences of so many keys each, which later calls find again."""
    found = _kept_offsets if _lasts(beside) else _kept_offsets.__wrapped__
    return found(sequences, keys, beside.device)


def _lasts(beside: Tensor) -> bool:
    """Says whether a tensor that is made beside this one is there for later calls."""
    # What is made while a graph is captured is the graph's, and a tracer's tensors have no data.
    return not (is_traced(beside) or (beside.is_cuda and torch.cuda.is_current_stream_capturing()))
