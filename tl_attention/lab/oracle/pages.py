"""Keys of packed sequences are put into pages, in any order, as the cache of a serving engine has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tl_attention.problem.mask import ceildiv

# Pages that hold no key of any sequence.
SPARE = 3


def in_pages(
    packed: Sequence[Tensor],
    lengths: Sequence[int],
    size: int,
    seed: int,
    pool: Callable[[tuple[int, ...], Tensor], Tensor] = lambda shape, like: like.new_empty(shape),
) -> tuple[list[Tensor], Tensor]:
    """Returns (packed rows in pages, the block table that says which pages hold those of each sequence).

    The rows of each tensor, (rows, heads, columns), are those of sequences of these lengths, one behind the other; its
    pages are (pages, size, heads, columns), made by `pool` for such a shape. Pages lie in an order that the seed draws.
    What no sequence uses is NaN, and behind a sequence's last page the table, int32 (sequences, pages), names any page.
    """
    device, used = packed[0].device, torch.tensor([ceildiv(keys, size) for keys in lengths])
    number, width = int(used.sum()) + SPARE, max(1, int(used.max()))
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(number, (len(lengths), width), generator=generator, dtype=torch.int32)
    named = torch.arange(width) < used[:, None]
    table[named] = torch.randperm(number, generator=generator, dtype=torch.int32)[: number - SPARE]
    keys = torch.cat([torch.arange(n) for n in lengths])
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    page, place = table[sequence, keys // size].long().to(device), (keys % size).to(device)
    pools = []
    for rows in packed:
        pages = pool((number, size, *rows.shape[1:]), rows).fill_(torch.nan)
        pages[page, place] = rows
        pools.append(pages)
    return pools, table.to(device)
