"""A statement of generated CUDA is a line, or a loop, branch or block with all that it holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A span has the lines from `start` up to, and without, `stop`."""

    start: int
    stop: int


def blocks(lines: Sequence[str], start: int) -> list[list[Span]]:
    """Returns the statements of every block from line `start` on, a block where it ends: the function's come last."""
    found: list[list[Span]] = []
    open_blocks: list[tuple[list[Span], int]] = []
    statements: list[Span] = []
    first = -1
    for number in range(start, len(lines)):
        text = lines[number].strip()
        if not text:
            continue
        if text.startswith("}"):
            found.append(statements)
            statements, first = open_blocks.pop()
            if text.endswith("{"):
                # The other half of a branch is the same statement.
                open_blocks.append((statements, first))
                statements, first = [], -1
                continue
            statements.append(Span(first, number + 1))
            first = -1
            if not open_blocks:
                break
            continue
        first = number if first < 0 else first
        if text.endswith("{"):
            open_blocks.append((statements, first))
            statements, first = [], -1
        elif not text.startswith("#pragma"):
            statements.append(Span(first, number + 1))
            first = -1
    assert not open_blocks, "a block is not closed"
    return found


def neighbours(lines: Sequence[str], marked: Sequence[int]) -> Iterator[tuple[Span, Span]]:
    """Yields pairs of statements of one block that hold a marked line, with no other such statement between them."""
    if not marked:
        return
    function = max(number for number, line in enumerate(lines) if "__launch_bounds__" in line)
    held = set(marked)
    for statements in blocks(lines, function):
        holding = [span for span in statements if not held.isdisjoint(range(span.start, span.stop))]
        yield from itertools.pairwise(holding)
