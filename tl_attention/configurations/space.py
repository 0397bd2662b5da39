"""The space from which "flash attention from scratch" chooses its fastest kernel (part 6, kernel 7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tl_attention.configurations.configuration import STEP, WHOLE, Configuration

HEAD_DIM, WARPS = 128, 4
ROWS, KEYS = (64, 128), (32, 64)
OFF_ON = (False, True)


def space() -> Iterator[Configuration]:
    """Every configuration of it, all of them eager and swizzled, tile by tile: rows, keys, fragments, buffer, softmax.

    A buffer where no fragments are loaded in steps is no configuration: of 2 x 2 x 2^3 x 2 x 2 = 128 there are 120.
    """
    at_once = WHOLE, STEP
    for M, N, q, k, v in product(ROWS, KEYS, at_once, at_once, at_once):
        for buffer, opt_softmax in product(OFF_ON, OFF_ON):
            if not buffer or STEP in (q, k, v):
                yield Configuration(HEAD_DIM, M, N, WARPS, True, True, q, k, v, buffer, opt_softmax)
