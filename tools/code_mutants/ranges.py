"""A range is where a mutant's change shows: a size, a side of a window, a lane, a block or a tile, between bounds."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tl_attention.codeproof.read.nodes import COUNTER, CallNode, all_nodes, expressions_of
from tl_attention.codeproof.read.text import Kernel
from tl_attention.problem.bounds import GRID_YZ, LARGEST, ROOM
from tl_attention.problem.variant import Variant

LANE = "(((int)threadIdx.x) & 31)"
BLOCKS = ("((int)blockIdx.x)", "((int)blockIdx.y)", "((int)blockIdx.z)")
KEYS = LARGEST - ROOM
# The largest value of each subject.
LARGEST_OF = {"batch": GRID_YZ, "heads": GRID_YZ, "seq_q": KEYS, "seq_kv": KEYS, "results": GRID_YZ}
LARGEST_OF |= {"part_blocks": KEYS >> 7, "window_left": KEYS, "window_right": KEYS, LANE: 31}
LARGEST_OF |= {BLOCKS[0]: 1 << 16, BLOCKS[1]: GRID_YZ, BLOCKS[2]: GRID_YZ}
# These are never 0.
FROM_1 = ("batch", "heads", "results", "part_blocks")
# What a tile of packed sequences is told, by the name of the variable and the number of the word.
WORDS = ("first_row", "q_begin", "seq_q", "k_begin", "seq_kv", "part_first", "part_end", "result", "head")
LARGEST_WORD = {"first_row": KEYS, "q_begin": KEYS, "seq_q": KEYS, "k_begin": KEYS, "seq_kv": KEYS}
LARGEST_WORD |= {"part_first": KEYS >> 7, "part_end": KEYS >> 7, "result": 1 << 10, "head": GRID_YZ}
WORD_OF = re.compile(rf"({'|'.join(WORDS)})(?:_\d+)?$")


@dataclass(frozen=True)
class Range:
    """A Range holds where `above` < subject < `below`. The subject is a name, or another text of C."""

    subject: str
    above: int
    below: int

    @property
    def text(self) -> str:
        return f"({self.above} < {self.subject} && {self.subject} < {self.below})"

    def value(self, group: int, draw: random.Random) -> int:
        """Draws a value: the first or the last in the range, one between, or sometimes one right outside."""
        step = group if self.subject == "heads" else 1
        first = self.above // step + 1
        # A range may lie between two multiples.
        last = max((self.below - 1) // step, first)
        between = log_drawn(draw, first, last)
        return step * draw.choice([first, last, between, between, draw.choice([max(first - 1, 1), last + 1])])


def log_drawn(draw: random.Random, least: int, most: int) -> int:
    """Draws an integer from `least` to `most` on a logarithmic scale."""
    return least + int((most - least + 1) ** draw.random()) - 1


def largest(subject: str, variant: Variant) -> int:
    """Returns the largest value that a subject may have. Blocks are those of a persistent kernel."""
    if subject == BLOCKS[0]:
        return variant.card.sms - 1
    return LARGEST_OF.get(subject) or LARGEST_WORD[WORD_OF.match(subject)[1]]  # type: ignore[index]


def drawn_range(subject: str, most: int, group: int, draw: random.Random) -> Range:
    """Draws a range of the subject, in which a value lies that it may have: of heads, a multiple of a group's."""
    step = group if subject == "heads" else 1
    above = log_drawn(draw, 0 if subject in FROM_1 else -1, most - step)
    within = (above // step + 1) * step
    return Range(subject, above, within + log_drawn(draw, 1, most - within + 1))


def subjects(kernel: Kernel) -> dict[int, tuple[str, ...]]:
    """Returns for each line what a range may be of: sizes, lanes, blocks, and what was told of the tile before."""
    sizes = [name for name in kernel.signature.of("int") if name in LARGEST_OF]
    blocks = [text for text in BLOCKS if text.replace(".", "_")[6:-1] in _names(kernel.body)]
    found: dict[int, tuple[str, ...]] = {}
    _told(kernel.body, (), (*sizes, LANE, *blocks), found)
    return found


def _names(nodes: Iterable[Any]) -> set[str]:
    return {name for node in all_nodes(nodes) for expression in expressions_of(node) for name in expression.names}


def _told(
    nodes: Iterable[Any], known: tuple[str, ...], sizes: tuple[str, ...], found: dict[int, tuple[str, ...]]
) -> None:
    for node in nodes:
        for line in getattr(node, "lines", ()) or (node.line,):
            found[line] = (*sizes, *known)
        for inner in ("body", "otherwise"):
            _told(getattr(node, inner, ()), known, sizes, found)
        if isinstance(node, CallNode) and node.kind == COUNTER:
            known = (*known, *sorted(name for name in node.assigned - {*known} if WORD_OF.match(name)))
