"""A KV cache is a pool of pages: new keys are written to it, and queries see those of their sequences."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown

FUNCTION = "flash_attn_with_kvcache"


class Cache(NamedTuple):
    """A Cache says where the keys of sequences lie, and how many there are of each."""

    k: Tensor  # (pages, page_size, heads_kv, head_dim)
    v: Tensor  # (pages, page_size, heads_kv, head_dim_v)
    table: Tensor  # int32 (sequences, pages of each)
    lengths: Tensor  # int32 (sequences,)

    @property
    def longest(self) -> int:
        """Returns the most keys that a sequence has room for."""
        return self.table.shape[1] * self.k.shape[1]

    def append(self, k: Tensor, v: Tensor) -> Cache:
        """Writes new keys, (sequences, new, heads_kv, head_dim), behind each sequence's own; returns the longer Cache.

        What has no room goes to the last key's place.
        """
        size, new = self.k.shape[1], k.shape[1]
        place = (self.lengths[:, None] + torch.arange(new, device=k.device)).clamp(max=self.longest - 1)
        page = self.table.gather(1, place // size).clamp(0, self.k.shape[0] - 1)
        for cache, given in ((self.k, k), (self.v, v)):
            cache[page.long(), place % size] = given
        return self._replace(lengths=(self.lengths + new).clamp(max=self.longest))


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
    if table is None:
        if batch_idx is None and len(k) < sequences:
            raise InputError(f"{FUNCTION}: k_cache has {len(k)} sequences, expected at least q's {sequences}")
        own = torch.arange(sequences, dtype=torch.int32, device=q.device) if batch_idx is None else batch_idx.int()
        table = own[:, None].contiguous()
    if isinstance(lengths, int) and not isinstance(lengths, bool):
        lengths = torch.full((sequences,), lengths, dtype=torch.int32, device=q.device)
    elif lengths is None:
        lengths = torch.full((sequences,), table.shape[1] * k.shape[1], dtype=torch.int32, device=q.device)
    elif not isinstance(lengths, Tensor) or lengths.shape != (sequences,):
        found = tuple(lengths.shape) if isinstance(lengths, Tensor) else shown(lengths)
        raise InputError(f"{FUNCTION}: cache_seqlens is {found}, expected an integer or int32 ({sequences},)")
    return Cache(k, v, table, lengths)
