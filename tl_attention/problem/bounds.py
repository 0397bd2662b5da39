"""Kernels compute with integers of 32 bits, and no problem within these bounds overflows one.

Offsets of elements have 64 bits. These numbers have 32 bits in all lowerings:

- Rows and keys: a query's own key, the ends of blocks, the sides of a window. Each is a sum of at most seq_q, seq_kv and
  both sides, rounded up to tiles.
- Heads times length, which the host multiplies for TMA's strides.
- Tiles of all heads, of 64 rows or more. A cluster of two rounds them up by one a head; the counter goes beyond them.
- The heads of a section (`tile_order: sections`). Keys times bytes may overflow there: 1 to all heads are right, and what
  comes out is cut to that.
- The KV blocks that a persistent block has loaded in a launch, of 64 rows and 16 keys or more. 8 blocks or more take an
  equal share of the tiles, nearly: then each loads fewer than 2^31 blocks.

Every schedule has the same bounds, so a few problems are refused that some schedules could run.
"""

from __future__ import annotations

from tl_attention.errors import InputError, shown
from tl_attention.problem.mask import Mask

LARGEST = 2**31 - 1
# Room for what is rounded up to tiles, for short loops that are padded to the pipeline's depth, and for the tile that
# each block asks for when there are none left: thousands at most.
ROOM = 2**16
# CUDA's limit for a grid's y (heads) and z (batch), which the lowerings but warp_specialized have.
GRID_YZ = 65_535
# Pairs that take an H200 100 seconds at head_dim 128. In tiles of 64 x 16 they are 2^37 blocks, in those that ship
# 2^33 or so.
PAIRS = 2**47


def check_totals(sequences: int, heads: int, total_q: int, total_k: int, longest: int, mask: Mask) -> None:
    """Raises InputError if packed sequences are too many for 32-bit integers, or for the run time.

    `longest` is the most keys of a sequence. The message names the size and the bound.
    """
    sides = (mask.left or 0) + (mask.right or 0)
    _check(
        ("heads", heads, GRID_YZ),
        ("total_q + total_k + both sides of the window", total_q + total_k + sides, LARGEST - ROOM),
        # In the list of tiles 16 numbers for each, and one for each sequence.
        ("total_q + 64 * sequences", total_q + 64 * sequences, LARGEST // 2),
        ("heads * (total_q // 64 + sequences)", heads * (total_q // 64 + sequences), LARGEST - ROOM),
        ("heads * total_q * max_seqlen_k", heads * total_q * longest, PAIRS),
    )


def check_sizes(batch: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int, mask: Mask) -> None:
    """Raises InputError if a problem is too large for 32-bit integers, for CUDA's grid or for the run time.

    The message names the size and the bound.
    """
    sides, every = (mask.left or 0) + (mask.right or 0), batch * heads
    _check(
        ("batch", batch, GRID_YZ),
        ("heads", heads, GRID_YZ),
        ("seq_q + seq_kv", seq_q + seq_kv, LARGEST - ROOM),
        ("seq_q + seq_kv + both sides of the window", seq_q + seq_kv + sides, LARGEST - ROOM),
        ("heads * seq_q", heads * seq_q, LARGEST),
        ("heads_kv * seq_kv", heads_kv * seq_kv, LARGEST),
        ("batch * heads * (seq_q // 64 + 2)", every * (seq_q // 64 + 2), LARGEST - ROOM),
        ("batch * heads * pairs of a query and a key that it sees", every * mask.pairs(seq_q, seq_kv), PAIRS),
    )


def _check(*bounds: tuple[str, int, int]) -> None:
    """Raises InputError for the first size that is beyond its bound; each is (name, value, largest allowed value)."""
    for what, value, most in bounds:
        if value > most:
            raise InputError(f"{what} is {shown(value)}, expected at most {most}")
