"""Kernels are proved, verified and interpreted at lengths that show each way in which a tile's rows and KV blocks end.

A fault in rounding shows at the edges of rounding: at a whole number of tiles, and at one more. A fault in what is
rounded down to nothing shows at a length of 1. A mask's edges move with seq_kv - seq_q, so each residue of that
difference modulo block_N is another case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tl_attention.problem.mask import Mask, ceildiv

if TYPE_CHECKING:
    import numpy as np


# Rows that are masked together, at least.
ROWS = 64
# Beside an edge: a fault that moves it by up to three keys shows.
NEAR = range(-2, 3)
# The most keys after a query's own that an interpreter's problem allows for.
MOST_AFTER = 2048


class Lengths(NamedTuple):
    """Lengths holds how many queries and how many keys one sequence has."""

    seq_q: int
    seq_kv: int

    @property
    def past_len(self) -> int:
        """Returns how many keys precede the first query."""
        return self.seq_kv - self.seq_q

    def __str__(self) -> str:
        return str(self.seq_q) if self.seq_q == self.seq_kv else f"{self.seq_q}/{self.seq_kv}"


# How the lengths of packed sequences are written, as `parse_lengths` reads them.
LENGTHS_TEXT = (
    "lengths joined by +, 8x4096 for eight of them, 100/300 for 100 queries on 300 keys, @64 behind them all for keys in "
    "pages of 64"
)
MOST_SEQUENCES = 1 << 20


def parse_lengths(text: str) -> tuple[tuple[Lengths, ...], int]:
    """Returns (the lengths that a text such as `8x4096+100/300@64` names, the keys of a page, 0 without pages).

    Raises ValueError for any other text.
    """
    lengths: list[Lengths] = []
    text, in_pages, size = text.partition("@")
    for part in text.split("+"):
        count, times, one = part.rpartition("x")
        seq_q, on, seq_kv = one.partition("/")
        each = Lengths(int(seq_q), int(seq_kv if on else seq_q))
        number = int(count) if times else 1
        if min(*each, number - 1) < 0 or len(lengths) + number > MOST_SEQUENCES:
            raise ValueError(part)
        lengths += [each] * number
    if in_pages and int(size) < 1:
        raise ValueError(size)
    return tuple(lengths), int(size or 0)


def lengths_text(lengths: Iterable[Lengths], page_size: int = 0) -> str:
    """Returns lengths, and the keys of a page, as `parse_lengths` reads them, equal neighbours together."""
    together = [(of_one, len([*same])) for of_one, same in groupby(lengths)]
    each = (f"{count}x{of_one}" if count > 1 or len(together) == 1 else str(of_one) for of_one, count in together)
    return "+".join(each) + (f"@{page_size}" if page_size else "")


def ends(most: int, rows: int, block_N: int) -> Iterator[Lengths]:
    """Yields Lengths with 1 to `most` KV blocks, the last ragged, whole or with one key, and at most `rows` queries.

    No query is before the first key.
    """
    for blocks in range(1, most + 1):
        whole = blocks * block_N
        for seq_q, seq_kv in ((max(1, rows - 3), whole - block_N // 3), (rows, whole), (1, whole - block_N + 1)):
            yield Lengths(min(seq_q, seq_kv), seq_kv)


def edges(mask: Mask, block_N: int) -> Iterator[Lengths]:
    """Yields lengths at which a mask's edges stand at, and near, the edges of KV blocks, for some of the rows.

    It yields none for a full mask. There are so many rows that groups of ROWS rows lie to the KV blocks in every
    possible way, and keys behind all of these.
    """
    rows, right = math.lcm(ROWS, block_N) + ROWS, mask.right or 0
    before = ceildiv(mask.left or 0, block_N) * block_N + block_N
    # Keys before query 0 where a row's first key begins a block, and where its last key ends one.
    at = [*([] if mask.left is None else [mask.left]), *([] if mask.right is None else [-1 - right])]
    for past in dict.fromkeys((edge + near) % block_N for edge in at for near in NEAR):
        yield Lengths(rows + right, before + past + rows + right)


def windows(mask: Mask, rows: int, block_N: int) -> Iterator[Mask]:
    """Yields windows that a kernel may be called with if it reads its window's sides, else the mask itself.

    A long window leaves some blocks of a tile of `rows` rows whole, a short one none. A third has only later keys.
    """
    if not mask.names:
        yield mask
        return
    long = rows + 3 * block_N
    for left, right in ((long + 17, 2 * block_N + 5), (3, 1), (0, long + 2)):
        yield Mask(None if mask.left is None else left, None if mask.right is None else right)


def ragged(mask: Mask, block_M: int, block_N: int) -> tuple[Lengths, ...]:
    """Returns lengths of four sequences for the interpreter: ordinary, no queries, no keys, fewer keys than queries.

    The first sequence has more than a row tile and three KV blocks, at both ends of which a window cuts, unless the
    window is so long on the right that this would take too long. Rows of the last see no key where the mask is closed
    on the right.
    """
    seq_q = block_M + 37 + min(mask.right or 0, MOST_AFTER)
    first = Lengths(seq_q, seq_q + 3 * block_N + 5 + (mask.left or 0))
    return first, Lengths(0, 5), Lengths(3, 0), Lengths(block_N + 20, block_N // 2 + 7)


class Problems(NamedTuple):
    """Problems holds the batch, heads, seq_q and seq_kv of many problems, each as an array with one entry a problem."""

    batch: np.ndarray
    heads: np.ndarray
    seq_q: np.ndarray
    seq_kv: np.ndarray

    @property
    def past_len(self) -> np.ndarray:
        """Returns how many keys precede the first query of each problem."""
        return self.seq_kv - self.seq_q
