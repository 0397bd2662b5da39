"""Guarded tensors lie in memory in a given way, with numbers around them that nobody may read or write."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tl_attention.op.in_memory import as_bhsd

# Elements before and behind, and of each row where it is sliced: 16 bytes, so that what lies behind them is aligned.
BORDER = 4096
PAD = 8
OTHER = {"bhsd": "bshd", "bshd": "bhsd"}


@dataclass(frozen=True)
class Guarded:
    """A guarded tensor is (batch, heads, seq, head_dim), and has all the memory that it is a part of."""

    tensor: Tensor
    memory: Tensor

    def around(self) -> Tensor:
        """Returns the memory's bits with zeros for the tensor's elements: a write to the tensor may not change them."""
        inside = torch.zeros_like(self.memory, dtype=torch.bool)
        strides, offset = self.tensor.stride(), self.tensor.storage_offset()
        inside.as_strided(self.tensor.shape, strides, offset).fill_(True)
        return bits(self.memory).masked_fill(inside, 0)


def bits(x: Tensor) -> Tensor:
    """Returns a tensor's 16-bit numbers as integers, among which NaN is like any other."""
    return x.view(torch.int16)


def guarded(sizes: tuple[int, ...], like: Tensor, memory: str, layout: str, fill: float) -> Guarded:
    """Makes a tensor (batch, heads, seq, head_dim) with the dtype and device of `like`; all its memory is `fill`.

    `memory` says how the tensor lies: contiguous in the layout, transposed from the other layout, or sliced from wider
    rows.
    """
    batch, heads, seq, columns = sizes
    order = OTHER[layout] if memory == "transposed" else layout
    pad = PAD if memory == "sliced" else 0
    outer = (heads, seq) if order == "bhsd" else (seq, heads)
    whole = torch.full(
        (batch * heads * seq * (columns + pad) + 2 * BORDER,), fill, dtype=like.dtype, device=like.device
    )
    tensor = whole[BORDER : len(whole) - BORDER].view(batch, *outer, columns + pad)[..., pad:]
    return Guarded(as_bhsd(tensor, order), whole)


def packed(sizes: list[tuple[int, ...]], like: Tensor, fill: float) -> list[Guarded]:
    """Makes tensors of one batch and seq with heads that lie side by side in each row."""
    batch, _, seq, _ = sizes[0]
    columns = [heads * head_dim for _, heads, _, head_dim in sizes]
    whole = torch.full((batch * seq * sum(columns) + 2 * BORDER,), fill, dtype=like.dtype, device=like.device)
    parts = whole[BORDER : len(whole) - BORDER].view(batch, seq, sum(columns)).split(columns, dim=-1)
    tensors = [part.unflatten(-1, size[1::2]).transpose(1, 2) for part, size in zip(parts, sizes)]
    return [Guarded(tensor, whole) for tensor in tensors]


def repeated(sizes: tuple[int, ...], like: Tensor, layout: str, fill: float) -> Guarded:
    """Makes a tensor in which every batch is the first, by a stride of 0."""
    one = guarded((1, *sizes[1:]), like, "contiguous", layout, fill)
    return Guarded(one.tensor.expand(sizes), one.memory)
