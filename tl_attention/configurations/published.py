"""What "flash attention from scratch" (part 6) found in its space on an RTX 3090: the best configuration of each tile."""

from __future__ import annotations

from dataclasses import dataclass

from tl_attention.configurations.configuration import Configuration, parse
from tl_attention.hardware.card import CARDS, KIB

CARD = CARDS["sm_86"]


@dataclass(frozen=True)
class Published:
    """A line of its tables: at 4096 keys so many TFLOPS; of a thread registers and bytes spilled, of a block shared memory."""

    configuration: Configuration
    tflops: float
    registers: int
    stack_bytes: int
    shared_bytes: int
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
