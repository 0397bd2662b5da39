"""The tokens of a batch of Transformers make sequences: all of a row, or what padding leaves, or packed ones.

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
    """Sequences says where those of a batch lie, as `attention_varlen` takes it."""

    cu_seqlens: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    rows: Tensor | None = None  # numbers of the tokens that count among all queries of the batch; None stands for all
    keys: Tensor | None = None  # likewise among all keys
    # So many of each sequence's queries and keys count, and keys are read where they lie in memory.
    used: tuple[Tensor, Tensor] | None = None

    def attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Computes attention of tensors (batch, heads, seq, head_dim), with `options` of `attention_varlen`.

        Returns (batch, seq_q, heads, head_dim_v), 0 for queries that do not count.
        """
        batch, _, seq_q, _ = query.shape
        q = _chosen(query, self.rows)
        if self.used is None:
            k, v = _chosen(key, self.keys), _chosen(value, self.keys)
        else:
            k, v = _in_place(key), _in_place(value)
            options |= {"seqused_q": self.used[0], "seqused_k": self.used[1], "zero_unused": True}
        output = attention_varlen(q, k, v, *self.cu_seqlens, *self.longest, **options)
        if self.rows is not None:
            output = output.new_zeros((batch * seq_q, *output.shape[1:])).index_copy(0, self.rows, output)
        return output.unflatten(0, (batch, seq_q))


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

    The last `seq_q` keys are the queries' own, which only count where those do; None stands for other queries, which
    all count. What the host needs to know is on its way to it from the beginning; whoever asks first waits.
    """

    def __init__(self, mask: Tensor, seq_q: int | None) -> None:
        self.mask, self._has_other_queries = mask, seq_q is None
        self.of_queries = mask if seq_q is None else mask[:, mask.shape[1] - seq_q :]
        runs = mask & ~pad(mask, (1, -1))
        counts = torch.stack([of.sum(1) for of in (self.of_queries, mask, runs)])
        self._numbers = _Numbers(torch.stack([counts.sum(1), counts.max(1).values]))
        self._found: dict[tuple[int, int | None], Sequences] = {}

    @property
    def is_none(self) -> bool:
        """Returns True if all tokens count."""
        return self._numbers.read[0][1] == self.mask.numel()

    @property
    def has_gaps(self) -> bool:
        """Returns True if a sequence has padding between its tokens."""
        return self._numbers.read[1][2] > 1

    def sequences(self, query: Tensor, key: Tensor, value: Tensor) -> Sequences:
        """Returns where the sequences of tensors (batch, heads, seq, head_dim) lie, found once for all layers.

        Tokens that follow each other are read where they lie, which only the forward pass can. Others are gathered.
        """
        between = _between(key)
        if self.has_gaps or requires_gradient(query, key, value) or _between(value) != between:
            between = None
        known = query.shape[2], between
        if known not in self._found:
            self._found[known] = self._sequences(*known)
        return self._found[known]

    def _sequences(self, seq_q: int, between: int | None) -> Sequences:
        """Returns the sequences for `seq_q` queries a row; keys are read in place if `between`, else gathered."""
        queries, keys, batch = self.of_queries, self.mask, len(self.mask)
        (count_q, count_k, _), (longest_q, longest_k, _) = self._numbers.read
        if self._has_other_queries:
            queries, count_q, longest_q = keys.new_ones((batch, seq_q)), batch * seq_q, seq_q
        if between is None:
            row = torch.arange(batch, device=keys.device)
            cu_q, of_queries = _taken_out(queries, row * seq_q, count_q)
            cu_k, of_keys = _taken_out(keys, row * keys.shape[1], count_k)
            return Sequences((cu_q, cu_k), (longest_q, longest_k), of_queries, of_keys)
        cu_seqlens = _lying(queries, seq_q), _lying(keys, between)
        used = queries.sum(1, dtype=torch.int32), keys.sum(1, dtype=torch.int32)
        return Sequences(cu_seqlens, (longest_q, longest_k), used=used)


class Packing:
    """A Packing says where sequences begin that lie behind each other in the rows of a batch.

    Each token has one of `numbers` (batch, tokens). A sequence begins with each row, and where `begins(before, here)`
    holds for the number of the token before and its own. Tokens count where `mask` (batch, tokens) is True; None stands
    for all, and others are as if they were not there. What the host needs to know is on its way to it from the
    beginning; whoever asks first waits.
    """

    def __init__(self, numbers: Tensor, mask: Tensor | None, begins: Callable[[Tensor, Tensor], Tensor]) -> None:
        here = numbers[:, 1:]
        if mask is None:
            mask, anew = torch.ones_like(numbers, dtype=torch.bool), begins(numbers[:, :-1], here)
        else:
            places = torch.arange(mask.shape[1], device=mask.device)
            before = torch.where(mask, places, -1).cummax(1).values[:, :-1]
            anew = begins(numbers.gather(1, before.clamp(min=0)), here) & (before >= 0) & mask[:, 1:]
        self._mask, self._first = mask, pad(anew, (1, 0), value=True)
        self._numbers = _Numbers(torch.stack([anew.sum(), numbers[:, 0].min(), mask.sum()]))

    @property
    def is_none(self) -> bool:
        """Returns True if no row holds more than one sequence."""
        return not self._numbers.read[0]

    @property
    def lowest(self) -> int:
        """Returns the lowest sequence number with which a row of the batch begins."""
        return self._numbers.read[1]

    @cached_property
    def sequences(self) -> Sequences:
        """Returns where the sequences lie. A row without a token that counts has an empty one."""
        anew, _, count = self._numbers.read
        begins = torch.argsort(~self._first.flatten(), stable=True)[: anew + len(self._first)]
        cu_seqlens, tokens = _taken_out(self._mask, begins, count)
        longest = self._mask.shape[1]
        return Sequences((cu_seqlens, cu_seqlens), (longest, longest), tokens, tokens)

    @cached_property
    def ids(self) -> Tensor:
        """Returns the number of each token's sequence, (batch, tokens)."""
        return self._first.flatten().cumsum(0).view_as(self._first)


def _taken_out(mask: Tensor, begins: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
    """Returns (int32 offsets of the sequences among the `count` tokens that count, the numbers of these or None)."""
    counts = mask.flatten()
    before = counts.cumsum(0) - counts.int()
    tokens = torch.argsort(~counts, stable=True)[:count] if count < len(counts) else None
    return pad(before[begins], (0, 1), value=count).to(torch.int32), tokens


def _lying(mask: Tensor, between: int) -> Tensor:
    """Returns, int32, the row of memory in which each sequence's first token lies, and the number of all rows."""
    batch, tokens = mask.shape
    first = torch.arange(batch, device=mask.device) * between + mask.int().argmax(1)
    return pad(first, (0, 1), value=(batch - 1) * between + tokens).to(torch.int32)


def _between(x: Tensor) -> int | None:
    """Returns how many rows of memory it is from one row of the batch to the next; None if that is no number."""
    # In a cache the tokens of a head lie one behind the other, so a row is a token of any head, and the next head
    # begins `seq` rows later: rows overlap then.
    batch, _, seq, _ = x.shape
    # The stride of one token alone says nothing.
    if seq == 1 or not x.stride(2) or not x.numel():
        return None
    between, rest = divmod(x.stride(0), x.stride(2)) if batch > 1 else (seq, 0)
    return None if rest or between < seq else between


def _in_place(x: Tensor) -> Tensor:
    """Returns the same memory as (rows, heads, head_dim)."""
    batch, heads, seq, head_dim = x.shape
    rows = (batch - 1) * x.stride(0) // x.stride(2) + seq
    return x.as_strided((rows, heads, head_dim), (x.stride(2), x.stride(1), x.stride(3)))


class _Numbers:
    """These numbers of a GPU are on their way to the host, beside its other work, from the beginning."""

    def __init__(self, numbers: Tensor) -> None:
        # Pinned memory, which no copy waits for.
        self._here = numbers.to("cpu", non_blocking=True)
        self._event = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    @cached_property
    def read(self) -> list[Any]:
        """Returns the numbers, and waits for them."""
        if self._event is not None:
            self._event.synchronize()
        return self._here.tolist()


@dataclass
class Note:
    """A Note says what a mask that layers get stands for."""

    causal: bool
    window: int | None = None  # the keys in it
    padding: Padding | None = None  # some tokens may only fill up the batch
    packing: Packing | None = None  # rows may hold several sequences
    for_kernels: bool = True  # False: only SDPA computes the mask, which keeps no packed sequences apart
    counted: Tensor | None = None  # for such a mask (batch, seq_q), False for queries of padding

    @property
    def padded(self) -> Padding | None:
        """Returns the Padding if at least one token is padding, else None."""
        return self.padding if self.padding and not self.padding.is_none else None

    def put(self, mask: Tensor) -> Tensor:
        """Puts the note on a mask, and returns the mask."""
        setattr(mask, NOTE, self)
        return mask


def note_of(mask: Tensor | None) -> Note | None:
    """Returns a mask's Note, if it has one."""
    return getattr(mask, NOTE, None)
