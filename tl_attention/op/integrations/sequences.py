"""The tokens of a batch of Transformers make sequences: all of a row of the batch, or what padding leaves, or packed ones.

A `Note` on a mask says so to the attention of each layer. What it finds out, it finds out once for all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tl_attention.errors import InputError
from tl_attention.op.gradients import requires_gradient
from tl_attention.op.varlen import attention_varlen

# This attribute of a mask is its Note.
NOTE = "tl_attention_note"
# Arguments of a layer that say where packed sequences lie, as Transformers' collators make them.
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@dataclass(frozen=True)
class Sequences:
    """Sequences says where those of a batch lie, as `attention_varlen` takes it.

    `rows` and `keys` number the tokens that count among all queries and all keys of the batch; None stands for all.
    """

    cu_seqlens: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    rows: Tensor | None = None
    keys: Tensor | None = None

    def attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Computes attention of tensors (batch, heads, seq, head_dim), with `options` of `attention_varlen`.

        Returns (batch, seq_q, heads, head_dim_v), 0 for queries that do not count.
        """
        q, k, v = (_chosen(x, of) for x, of in ((query, self.rows), (key, self.keys), (value, self.keys)))
        found = attention_varlen(q, k, v, *self.cu_seqlens, *self.longest, **options)
        batch, _, seq_q, _ = query.shape
        if self.rows is not None:
            found = found.new_zeros((batch * seq_q, *found.shape[1:])).index_copy(0, self.rows, found)
        return found.unflatten(0, (batch, seq_q))


def _chosen(x: Tensor, numbers: Tensor | None) -> Tensor:
    together = x.transpose(1, 2).flatten(0, 1)
    return together if numbers is None else together.index_select(0, numbers)


def given_sequences(others: dict[str, Any]) -> Sequences | None:
    """Removes a layer's arguments that say where packed sequences lie, and returns what they say; None without any.

    Raises InputError where some of them are missing.
    """
    # In two steps: torch.compile traces no name that is bound within a comprehension.
    popped = [(name, others.pop(name, None)) for name in PACKING]
    given = {name: found for name, found in popped if found is not None}
    if not given:
        return None
    if len(given) < len(PACKING):
        missing = next(name for name in PACKING if name not in given)
        raise InputError(f"transformers: {missing} is missing beside {', '.join(given)}, expected all of them")
    cu_q, cu_k, longest_q, longest_k = given.values()
    return Sequences((cu_q.to(torch.int32), cu_k.to(torch.int32)), (int(longest_q), int(longest_k)))


class Padding:
    """Padding says which tokens of a batch only fill it up, by `mask` (batch, keys), which is False there.

    The last `seq_q` keys are the queries' own, which only count where those do; None stands for other queries, which all
    count. What the host needs to know is on its way to it from the beginning; whoever asks first waits.
    """

    def __init__(self, mask: Tensor, seq_q: int | None) -> None:
        self.mask = mask
        self._rows = None if seq_q is None else mask[:, mask.shape[1] - seq_q :]
        runs = (mask & ~pad(mask, (1, -1))).sum(1)
        found = [mask.sum(), mask.sum(1).max(), runs.max()]
        if self._rows is not None:
            found += [self._rows.sum(), self._rows.sum(1).max()]
        self._numbers = _Numbers(torch.stack(found))
        self._begins: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}

    @property
    def of_queries(self) -> Tensor:
        """Returns the mask of the queries' own tokens, (batch, seq_q)."""
        return self.mask if self._rows is None else self._rows

    @property
    def is_none(self) -> bool:
        """Returns True if all tokens count."""
        return self._numbers.read[0] == self.mask.numel()

    @property
    def has_gaps(self) -> bool:
        """Returns True if a sequence has padding between its tokens."""
        return self._numbers.read[2] > 1

    def attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Computes attention of tensors (batch, heads, seq, head_dim), with `options` of `attention_varlen`.

        Tokens that follow each other are read where they lie, which only the forward pass can. Others are taken out first.

        Returns (batch, seq_q, heads, head_dim_v), 0 for queries that do not count.
        """
        batch, _, seq_q, _ = query.shape
        keys, values = _in_place(key), _in_place(value)
        if self.has_gaps or requires_gradient(query, key, value) or not keys or not values or keys[1] != values[1]:
            return self._taken_out(seq_q).attention(query, key, value, **options)
        q = query.transpose(1, 2).flatten(0, 1)
        cu_q, used_q = self._lie(True, seq_q, seq_q)
        cu_k, used_k = self._lie(False, key.shape[2], keys[1])
        longest_k, longest_q = self._numbers.read[1], seq_q if self._rows is None else self._numbers.read[4]
        found = attention_varlen(
            q, keys[0], values[0], cu_q, cu_k, longest_q, longest_k, seqused_q=used_q, seqused_k=used_k, zero_unused=True,
            **options,
        )  # fmt: skip
        return found.unflatten(0, (batch, seq_q))

    def _lie(self, of_queries: bool, seq: int, between: int) -> tuple[Tensor, Tensor]:
        """Returns (where each sequence's tokens begin, and the end, how many there are), as int32.

        Of the first token of a row of the batch to that of the next it is `between` rows.
        """
        known = of_queries, between
        if known not in self._begins:
            mask = self._rows if of_queries else self.mask
            if mask is None:
                mask = self.mask.new_ones((len(self.mask), seq))
            numbers = torch.arange(len(mask), device=mask.device) * between
            begins = pad(numbers + mask.int().argmax(1), (0, 1), value=(len(mask) - 1) * between + seq)
            self._begins[known] = begins.to(torch.int32), mask.sum(1, dtype=torch.int32)
        return self._begins[known]

    def _taken_out(self, seq_q: int) -> Sequences:
        """Returns the sequences of the tokens that count, for so many queries in each row of the batch."""
        keys, longest_k, _, *of_rows = self._numbers.read
        cu_k, of_keys = self._keys
        if self._rows is None:
            cu_q = torch.arange(len(self.mask) + 1, dtype=torch.int32, device=self.mask.device) * seq_q
            return Sequences((cu_q, cu_k), (seq_q, longest_k), None, of_keys[:keys])
        rows, longest_q = of_rows
        cu_q, of_queries = self._queries
        return Sequences((cu_q, cu_k), (longest_q, longest_k), of_queries[:rows], of_keys[:keys])

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor]:
        return _counted(self.mask)

    @cached_property
    def _queries(self) -> tuple[Tensor, Tensor]:
        assert self._rows is not None
        return _counted(self._rows)


class Packing:
    """A Packing says where sequences begin that lie behind each other in the rows of a batch.

    Each token has one of `numbers` (batch, tokens). A sequence begins with each row, and where `begins(before, here)` holds of
    the number of the token before and its own. Tokens count where `mask` (batch, tokens) is True; None stands for all, and
    others are as if they were not there. What the host needs to know is on its way to it from the beginning; whoever asks
    first waits.
    """

    def __init__(self, numbers: Tensor, mask: Tensor | None, begins: Callable[[Tensor, Tensor], Tensor]) -> None:
        here = numbers[:, 1:]
        if mask is None:
            anew, found = begins(numbers[:, :-1], here), []
        else:
            places = torch.arange(mask.shape[1], device=mask.device)
            before = torch.where(mask, places, -1).cummax(1).values[:, :-1]
            anew = begins(numbers.gather(1, before.clamp(min=0)), here) & (before >= 0) & mask[:, 1:]
            found = [mask.sum()]
        self._anew, self._mask = anew, mask
        self._numbers = _Numbers(torch.stack([anew.sum(), numbers[:, 0].min(), *found]))

    @property
    def is_none(self) -> bool:
        """Returns True if no row holds more than one sequence."""
        return not self._numbers.read[0]

    @property
    def lowest(self) -> int:
        """Returns the lowest number that a row begins with."""
        return self._numbers.read[1]

    @cached_property
    def sequences(self) -> Sequences:
        """Returns where the sequences lie. A row without a token that counts has an empty one."""
        first, (anew, _, *counted) = self._first, self._numbers.read
        begins = torch.argsort(~first, stable=True)[: anew + len(self._anew)]
        count, tokens = len(first), None
        if self._mask is not None and counted != [count]:
            counts, (count,) = self._mask.flatten(), counted
            begins, tokens = (counts.cumsum(0) - counts.int())[begins], _counted(self._mask)[1][:count]
        cu_seqlens, longest = pad(begins, (0, 1), value=count).to(torch.int32), self._anew.shape[1] + 1
        return Sequences((cu_seqlens, cu_seqlens), (longest, longest), tokens, tokens)

    @cached_property
    def ids(self) -> Tensor:
        """Returns the number of each token's sequence, (batch, tokens)."""
        return self._first.cumsum(0).view(len(self._anew), -1)

    @property
    def _first(self) -> Tensor:
        """Returns where sequences begin among all tokens, (batch * tokens,)."""
        return pad(self._anew, (1, 0), value=True).flatten()


def _counted(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (where sequences begin when padding is left out, int32, the numbers of all tokens, those of padding last)."""
    begins = pad(mask.sum(1).cumsum(0), (1, 0)).to(torch.int32)
    return begins, torch.argsort(~mask.flatten(), stable=True)


def _in_place(x: Tensor) -> tuple[Tensor, int] | None:
    """Returns (rows of the same memory, how many of them are from one sequence to the next); None if that is no number.

    The tensor is (batch, heads, seq, head_dim), the rows are (rows, heads, head_dim). In a cache the tokens of a head lie one
    behind the other, so a row is a token of any head, and the next head begins `seq` rows later: rows overlap then.
    """
    batch, heads, seq, head_dim = x.shape
    if not x.numel():
        return None
    # The stride of one token alone says nothing.
    row = x.stride(2) if seq > 1 else x.stride(0)
    between = x.stride(0) // row if row and batch > 1 else seq
    if not row or (batch > 1 and (x.stride(0) % row or between < seq)):
        return None
    return x.as_strided(((batch - 1) * between + seq, heads, head_dim), (row, x.stride(1), x.stride(3))), between


class _Numbers:
    """These numbers of a GPU are on their way to the host, beside its other work, from the beginning."""

    def __init__(self, numbers: Tensor) -> None:
        self._here, self._event = numbers, None
        if numbers.is_cuda:
            here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._here, self._event = here.copy_(numbers, non_blocking=True), torch.cuda.Event()
            self._event.record()

    @cached_property
    def read(self) -> list[int]:
        """Returns the numbers, and waits for them."""
        if self._event is not None:
            self._event.synchronize()
        return self._here.tolist()


@dataclass
class Note:
    """A Note says what a mask that layers get stands for: causal or not, the keys in a window, and which tokens count.

    With `padding` some tokens may only fill up the batch. With a `packing` rows may hold several sequences. A mask that only
    SDPA computes has a note too, without `for_kernels`: it keeps no packed sequences apart, and `counted` (batch, seq_q) is
    False for queries of padding.
    """

    causal: bool
    window: int | None = None
    padding: Padding | None = None
    packing: Packing | None = None
    for_kernels: bool = True
    counted: Tensor | None = None

    def put(self, mask: Tensor) -> Tensor:
        """Puts the note on a mask, and returns the mask."""
        setattr(mask, NOTE, self)
        return mask

    def visible(self, seen: Tensor) -> Tensor:
        """Returns, of a mask (seq_q, seq_kv) that is True where a query sees a key, what is left of it for each sequence.

        It is (1 or batch, 1, seq_q, seq_kv).
        """
        seen = seen[None, None]
        if self.padding is not None:
            seen = seen & self.padding.mask[:, None, None]
        if self.packing is not None:
            ids = self.packing.ids
            seen = seen & (ids[:, None, :, None] == ids[:, None, None])
        return seen


def note_of(mask: Tensor) -> Note | None:
    """Returns a mask's Note, if it has one."""
    return getattr(mask, NOTE, None)
