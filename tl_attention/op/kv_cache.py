"""A KV cache is a pool of pages, or has a row for each sequence: new keys are written to it, and queries see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.op.pages import Pages, offsets_of, pages_of

FUNCTION = "flash_attn_with_kvcache"


class Cache(NamedTuple):
    """A Cache says where the keys of sequences lie, and how many there are of each."""

    k: Tensor  # (pages, page_size, heads_kv, head_dim)
    v: Tensor  # (pages, page_size, heads_kv, head_dim_v)
    table: Tensor  # int32 (sequences, pages of each)
    lengths: Tensor  # int32 (sequences,)
    packed: bool  # whether page n is all that sequence n has, and they lie one behind the other

    @property
    def longest(self) -> int:
        """Returns the most keys that a sequence has room for."""
        return self.table.shape[1] * self.k.shape[1]

    def laid_out(self) -> tuple[Tensor, Tensor, Tensor, Pages | None]:
        """Returns (K, V, offsets of keys, pages), or None for the pages of keys that lie as packed ones do."""
        if self.packed:
            sequences = len(self.table)
            k, v = (x[:sequences].flatten(0, 1) for x in (self.k, self.v))
            return k, v, offsets_of(sequences, self.longest, self.k), None
        pages, begins = pages_of(self.k, self.v, self.table, None, self.lengths)
        return self.k, self.v, begins, pages

    def longer(self, new: int) -> Cache:
        """Returns the Cache with so many more keys of each sequence, as far as there is room."""
        return self._replace(lengths=(self.lengths + new).clamp(0, self.longest))

    def append(self, k: Tensor, v: Tensor) -> None:
        """Writes new keys, (sequences, new, heads_kv, head_dim), behind each sequence's own, as far as there is room.

        A padded batch has sequences of -1 keys, whose new one has no place.
        """
        places = self._places(k.shape[1])
        within = places.clamp(0, self.longest - 1)
        named = self._pages_of(within)
        page = named.clamp(0, self.k.shape[0] - 1)
        there = ((places == within) & (page == named)).flatten()
        page, place = page.flatten().long(), (within % self.k.shape[1]).flatten()
        # Where there is no place, the first key that has one is written once more: nothing waits for the GPU, and no
        # place gets two values.
        first = there.int().argmax(0, keepdim=True)
        page, place = (torch.where(there, x, x[first]) for x in (page, place))
        for cache, new in ((self.k, k.flatten(0, 1)), (self.v, v.flatten(0, 1))):
            again = torch.where(there[first, None, None], new[first], cache[page[first], place[first]])
            cache[page, place] = torch.where(there[:, None, None], new, again)

    def check_append(self, k: Tensor, v: Tensor, contents: bool) -> None:
        """Raises InputError for new keys that have no place of their own; `contents` waits for the GPU to say so."""
        for fault in self._faults_of(k, v, contents):
            raise InputError(f"{FUNCTION}: {fault}")

    def _faults_of(self, k: Tensor, v: Tensor, contents: bool) -> Iterator[str]:
        for name, given, cache in (("k", k, self.k), ("v", v, self.v)):
            wanted = f"({len(self.table)}, new, {cache.shape[2]}, {cache.shape[3]}) {cache.dtype} on {cache.device}"
            if not isinstance(given, Tensor):
                yield f"{name} is {type(given).__name__}, expected {wanted}"
            sizes = (given.shape[:1], given.shape[2:]) == ((len(self.table),), cache.shape[2:])
            if not sizes or (given.dtype, given.device) != (cache.dtype, cache.device):
                yield f"{name} is {tuple(given.shape)} {given.dtype} on {given.device}, expected {wanted}"
        if k.shape[1] != v.shape[1]:
            yield f"k has {k.shape[1]} new keys and v {v.shape[1]}, expected as many"
        if not contents or not k.shape[1]:
            return
        places = self._places(k.shape[1])
        for sequence, end in enumerate((places[:, -1] + 1).tolist()):
            if end > self.longest:
                yield f"sequence {sequence} has {end} keys with the new ones, expected at most the {self.longest} of its pages"
        pages = [{*row} for row in self._pages_of(places).tolist()]
        for sequence, own in enumerate(pages):
            for other, others in enumerate(pages[:sequence]):
                if shared := sorted(own & others):
                    yield f"sequences {other} and {sequence} both append to page {shared[0]}, expected a page of its own for each"

    def _places(self, new: int) -> Tensor:
        return self.lengths[:, None] + torch.arange(new, device=self.lengths.device)

    def _pages_of(self, places: Tensor) -> Tensor:
        return self.table.gather(1, places // self.k.shape[1])


def check_queries(q: Any, offsets: Any) -> None:
    """Raises InputError unless q is (batch, seq_q, heads, head_dim), or (rows, heads, head_dim) with offsets."""
    dimensions = 4 if offsets is None else 3
    if not isinstance(q, Tensor) or q.dim() != dimensions:
        found = tuple(q.shape) if isinstance(q, Tensor) else type(q).__name__
        sizes = "(rows, heads, head_dim) beside cu_seqlens_q" if dimensions == 3 else "(batch, seq_q, heads, head_dim)"
        raise InputError(f"{FUNCTION}: q is {found}, expected {sizes}")
    if dimensions == 3 and (not isinstance(offsets, Tensor) or offsets.dim() != 1):
        found = tuple(offsets.shape) if isinstance(offsets, Tensor) else type(offsets).__name__
        raise InputError(f"{FUNCTION}: cu_seqlens_q is {found}, expected torch.int32 (sequences + 1,)")


def cache_of(
    q: Tensor, k: Any, v: Any, lengths: Any, table: Tensor | None, batch_idx: Tensor | None, sequences: int
) -> Cache:
    """Returns the Cache of a call's arguments. Raises InputError for those that say no place for a sequence.

    A cache without a table has a page for each sequence, which `batch_idx` names, or else its number.
    """
    for name, tensor in (("k_cache", k), ("v_cache", v)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"{FUNCTION}: {name} is {found}, expected (batch or pages, rows, heads_kv, head_dim)")
    if table is not None and batch_idx is not None:
        raise InputError(f"{FUNCTION}: cache_batch_idx is given beside a page_table, expected one of both")
    packed = False
    if table is None:
        if batch_idx is None and len(k) < sequences:
            raise InputError(f"{FUNCTION}: k_cache has {len(k)} sequences, expected at least q's {sequences}")
        packed = batch_idx is None and all(x.stride(0) == x.shape[1] * x.stride(1) for x in (k, v))
        own = torch.arange(sequences, dtype=torch.int32, device=q.device) if batch_idx is None else batch_idx.int()
        table = own[:, None].contiguous()
    if isinstance(lengths, int) and not isinstance(lengths, bool):
        lengths = torch.full((sequences,), lengths, dtype=torch.int32, device=q.device)
    elif lengths is None:
        lengths = torch.full((sequences,), table.shape[1] * k.shape[1], dtype=torch.int32, device=q.device)
    elif not isinstance(lengths, Tensor) or lengths.shape != (sequences,):
        found = tuple(lengths.shape) if isinstance(lengths, Tensor) else shown(lengths)
        raise InputError(f"{FUNCTION}: cache_seqlens is {found}, expected an integer or int32 ({sequences},)")
    return Cache(k, v, table, lengths, packed)
