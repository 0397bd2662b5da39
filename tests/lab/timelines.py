"""Tests of timelines share this one: two roles of two thread blocks, which note the same."""

from __future__ import annotations

import numpy as np

from tl_attention.codeproof.marks import HEAD, MOST_BLOCKS, OWN, RECORDS
from tl_attention.lab.trace.about import About
from tl_attention.lab.trace.timeline import Timeline, What, Window, decoded
from tl_attention.problem.variant import TRACE_WORDS

WHATS = (What("tile", ""), What("issue", "mma0"), What("wait", "mma0"), What("vector", "exp"), What("end", ""))
# Two tiles, of two KV blocks and of one, and the end: (cycles since the line's first, mark).
NOTED = [(0, 0), (10, 1), (30, 2), (70, 3), (90, 1), (95, 2), (99, 3), (120, 0), (125, 1), (150, 2), (190, 3), (200, 4)]
CLOCK = (5 << 32) - 50
WINDOW = Window((7, 2), 0, 16)
ABOUT = About(
    name="some",
    shape="(1, 2, 256, 128) float16",
    device="a GPU",
    marks=("end", "issue", "tile", "vector", "wait"),
    product_cycles={"mma0": 20.0},
    blocks_of_sm=1,
    tile_cycles=(80.0, 100.0),
    time_with_marks=(1.02, 1.0, 1.05),
    rounds=12,
    machine_code={"waits for products": ((0, 20), (0, 24)), "registers": (168, 168)},
)


def written(window: Window, roles: int = 2, start: int = CLOCK) -> np.ndarray:
    """Returns the buffer as a kernel leaves it in which every role notes the same; the clock turns over meanwhile.

    A role goes on to the next record with each tile, and with each KV block.
    """
    words = np.zeros(TRACE_WORDS, dtype=np.int64)
    head = window.head(roles, len(WHATS))
    words[: len(head)] = head
    slots = words.view(np.uint32)[RECORDS // 4 :]
    for number in range(len(window.blocks) * roles):
        words[HEAD + OWN * number :][:OWN] = 1000 * number + 500, start, 100 + number // roles + 1
        record = -window.skip
        for cycle, mark in NOTED:
            record += mark in (0, 1) and cycle > 0
            if record >= 0:
                slots[((record * MOST_BLOCKS * roles) + number) * len(WHATS) + mark] = (start + cycle) % (1 << 32)
    return words


def timeline() -> Timeline:
    lines = decoded(written(WINDOW), WINDOW, 2, len(WHATS))
    return Timeline(ABOUT, ("consumer 0", "producer"), 1000.0, WHATS, ((),) * len(WHATS), lines)
