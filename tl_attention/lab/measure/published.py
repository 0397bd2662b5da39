"""These are the configurations that "flash attention from scratch" (part 6) chooses from, and the best that it found.

It found the best configuration of each tile on an RTX 3090.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tl_attention.problem.card import CARDS, KIB
from tl_attention.schedule.configuration import STEP, WHOLE, Configuration, parse

HEAD_DIM, WARPS = 128, 4
ROWS, KEYS = (64, 128), (32, 64)
OFF_ON = (False, True)
CARD = CARDS["sm_86"]


def space() -> Iterator[Configuration]:
    """Yields the 120 configurations among which "flash attention from scratch" chooses, all eager and swizzled.

    They come tile by tile: rows, keys, fragments, buffer, softmax. A buffer where no fragments are loaded in steps is
    no configuration: of 2 x 2 x 2^3 x 2 x 2 = 128 combinations, 120 are left.
    """
    at_once = WHOLE, STEP
    for M, N, q, k, v in product(ROWS, KEYS, at_once, at_once, at_once):
        for buffer, opt_softmax in product(OFF_ON, OFF_ON):
            if not buffer or STEP in (q, k, v):
                yield Configuration(HEAD_DIM, M, N, WARPS, True, True, q, k, v, buffer, opt_softmax)


@dataclass(frozen=True)
class Published:
    """A Published is a published result, a configuration with its speed and what it takes of an SM."""

    configuration: Configuration
    tflops: float  # at 4096 keys
    registers: int  # of a thread
    stack_bytes: int  # that a thread spills
    shared_bytes: int  # of a block
    warps_per_sm: int


_PREFIX = "async+eager+swizzled+"
# Fastest first.
BEST: tuple[Published, ...] = tuple(
    Published(parse(f"({tile}): {_PREFIX}{options}"), tflops, registers, stack_bytes, shared_kib * KIB, warps)
    for tile, options, tflops, registers, stack_bytes, shared_kib, warps in (
        ("128, 64, 64, 4", "load_0_2_0_fragments+buffer+opt_softmax", 68.31, 229, 0, 48, 8),
        ("128, 64, 32, 4", "load_2_2_0_fragments", 67.39, 168, 0, 32, 12),
        ("128, 128, 32, 4", "load_2_2_0_fragments+buffer+opt_softmax", 67.36, 255, 0, 48, 8),
        ("128, 128, 64, 4", "load_2_2_0_fragments+opt_softmax", 54.26, 255, 272, 64, 4),
    )
)
