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
    for M, N in product(ROWS, KEYS):
        for fragments in product((WHOLE, STEP), repeat=3):
            for buffer, opt_softmax in product(OFF_ON, repeat=2):
                if not buffer or STEP in fragments:
                    yield Configuration(HEAD_DIM, M, N, WARPS, True, True, *fragments, buffer, opt_softmax)
