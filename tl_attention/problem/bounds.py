"""Kernels compute with integers of 32 bits, and no problem within these bounds overflows one.

Offsets of elements have 64 bits. These numbers have 32 bits in all lowerings:

- Rows and keys: a query's own key, the ends of blocks, the sides of a window. Each is a sum of at most seq_q, seq_kv
  and both sides, rounded up to tiles.
- Heads times length, which the host multiplies for TMA's strides.
- Tiles of all heads, of 64 rows or more. A cluster of two rounds them up by one a head; the counter goes beyond them.
- The heads of a section (`tile_order: sections`). Keys times bytes may overflow there: any number from 1 to all heads
  is right, and the result is cut to that range.
- The KV blocks that a persistent block has loaded in a launch, of 64 rows and 16 keys or more. 8 blocks or more take an
  equal share of the tiles, nearly: then each loads fewer than 2^31 blocks.

The proof of generated code shows from these bounds that each result of 32 bits fits. It takes for granted what follows
from them for blocks and tiles: a launch has at most 2^31 - 2^16 tiles, a block loads fewer than 2^31 KV blocks, and
parts of keys begin within the keys.

Every schedule has the same bounds, so a few problems are refused that some schedules could run.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from tl_attention.errors import InputError, shown
from tl_attention.problem.mask import Mask

LARGEST = 2**31 - 1
# Room for what is rounded up to tiles, for short loops that are padded to the pipeline's depth, and for the tile that
# each block asks for when there are none left: thousands at most.
ROOM = 2**16
# The most blocks, or clusters, of a persistent kernel that work at once: a tile's number and so many have 32 bits.
MOST_WORKERS = ROOM // 2
# CUDA's limit for a grid's y (heads) and z (batch), which the lowerings but warp_specialized have.
GRID_YZ = 65_535
# Pairs that take an H200 100 seconds at head_dim 128. In tiles of 64 x 16 they are 2^37 blocks, in those that ship
# 2^33 or so.
PAIRS = 2**47


class Bound(NamedTuple):
    """A Bound is the largest value that a size of a problem may have, with its words."""

    words: str
    size: Callable[[Any], Any]  # computes it from sizes by name: integers here, unknown in the proof of kernels
    most: int


# `sides` are both sides of the window together.
SIZES = (
    Bound("batch", lambda of: of.batch, GRID_YZ),
    Bound("heads", lambda of: of.heads, GRID_YZ),
    Bound("seq_q + seq_kv", lambda of: of.seq_q + of.seq_kv, LARGEST - ROOM),
    Bound("seq_q + seq_kv + both sides of the window", lambda of: of.seq_q + of.seq_kv + of.sides, LARGEST - ROOM),
    Bound("heads * seq_q", lambda of: of.heads * of.seq_q, LARGEST),
    Bound("heads_kv * seq_kv", lambda of: of.heads_kv * of.seq_kv, LARGEST),
    Bound("batch * heads * (seq_q // 64 + 2)", lambda of: of.batch * of.heads * (of.seq_q // 64 + 2), LARGEST - ROOM),
)
# Of packed sequences `seq_q` and `seq_kv` are totals, as kernels have them.
TOTALS = (
    Bound("heads", lambda of: of.heads, GRID_YZ),
    Bound("total_k", lambda of: of.seq_kv, LARGEST // 2),
    Bound("total_q + total_k + both sides of the window", lambda of: of.seq_q + of.seq_kv + of.sides, LARGEST - ROOM),
    # In the list of tiles 16 numbers for each, and one for each sequence.
    Bound("total_q + 64 * sequences", lambda of: of.seq_q + 64 * of.batch, LARGEST // 2),
    Bound("heads * (total_q // 64 + sequences)", lambda of: of.heads * (of.seq_q // 64 + of.batch), LARGEST - ROOM),
)


def check_totals(sequences: int, heads: int, total_q: int, total_k: int, longest: int, mask: Mask) -> None:
    """Raises InputError if packed sequences are too many for 32-bit integers, or for the run time.

    `longest` is the most keys of a sequence. The message names the size and the bound.
    """
    pairs = Bound("heads * total_q * max_seqlen_k", lambda of: of.heads * of.seq_q * longest, PAIRS)
    _check((*TOTALS, pairs), mask, batch=sequences, heads=heads, seq_q=total_q, seq_kv=total_k)


def check_sizes(batch: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int, mask: Mask) -> None:
    """Raises InputError if a problem is too large for 32-bit integers, for CUDA's grid or for the run time.

    The message names the size and the bound.
    """
    words = "batch * heads * pairs of a query and a key that it sees"
    pairs = Bound(words, lambda of: of.batch * of.heads * mask.pairs(of.seq_q, of.seq_kv), PAIRS)
    sizes = {"batch": batch, "heads": heads, "heads_kv": heads_kv, "seq_q": seq_q, "seq_kv": seq_kv}
    _check((*SIZES, pairs), mask, **sizes)


def _check(bounds: tuple[Bound, ...], mask: Mask, **sizes: int) -> None:
    """Raises InputError for the first size that is beyond its bound."""
    values = SimpleNamespace(sides=(mask.left or 0) + (mask.right or 0), **sizes)
    for words, size, most in bounds:
        if size(values) > most:
            raise InputError(f"{words} is {shown(size(values))}, expected at most {most}")
