"""This module says where a role's time goes: the parts of its whole tiles, and how long the tensor pipe is busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tl_attention.lab.trace.timeline import Line, Timeline, What

# The waits for products.
PRODUCTS = frozenset({What("wait", "mma0"), What("wait", "mma1")})


@dataclass(frozen=True)
class Shares:
    """Shares are the cycles of one role in whole tiles, from the first mark of a tile to that of the last."""

    tiles: int
    cycles: int
    parts: Mapping[What, int]
    boundary: Mapping[What, int]  # of `parts`, between a tile's last wait for a product and the next one's first issue
    issues: Mapping[str, int]  # the products that the role issued meanwhile, by name

    @property
    def kv_blocks(self) -> int:
        """Returns for how many KV blocks the role issued products: the product that is not issued in parts counts."""
        return min(self.issues.values(), default=0)

    def share(self, kind: str) -> float:
        """Returns the share of the role's time, 0 to 1, that things of this kind take."""
        return sum(cycles for what, cycles in self.parts.items() if what.kind == kind) / self.cycles


def shares_of(timeline: Timeline, line: Line) -> Shares | None:
    """Returns the Shares of a role, None where its marks do not show a whole tile."""
    ends = tile_ends(timeline, line)
    if len(ends) < 2 or ends[-1] == ends[0]:
        return None
    parts, boundary, issues = Counter[What](), Counter[What](), Counter[str]()
    spans = [span for span in timeline.spans(line) if ends[0] <= span.start < ends[-1]]
    for _, of_tile in groupby(spans, lambda span: span.tile):
        tile = [*of_tile]
        loop = [n for n, span in enumerate(tile) if span.what.kind == "issue" or span.what in PRODUCTS]
        for n, span in enumerate(tile):
            parts[span.what] += span.end - span.start
            issues[span.what.name] += span.what.kind == "issue"
            if loop and not loop[0] <= n <= loop[-1]:
                boundary[span.what] += span.end - span.start
    return Shares(len(ends) - 1, ends[-1] - ends[0], parts, boundary, +issues)


def tile_ends(timeline: Timeline, line: Line) -> list[int]:
    """Returns the cycles at which a role begins each of its tiles, and those at which it ends the last."""
    kinds = [timeline.whats[mark].kind for mark in line.marks]
    return [time for time, kind in zip(line.times, kinds) if kind in ("tile", "end")]


def shares_of_block(timeline: Timeline, block: int) -> dict[str, Shares]:
    """Returns the Shares of a thread block's roles that show a whole tile, by the role's name."""
    found = {timeline.roles[line.role]: shares_of(timeline, line) for line in timeline.lines if line.block == block}
    return {role: shares for role, shares in found.items() if shares}


def tensor_pipe(timeline: Timeline, shares: Sequence[Shares]) -> float | None:
    """Returns the part of the time, 0 to 1, in which an SM's tensor pipe works, from the roles of one of its blocks.

    `about` has the cycles of a KV block's products, and how many such blocks the SM holds. It is None where these are
    not known, or the marks do not count KV blocks: without issues, or where each fragment of mma.sync is marked.
    """
    about, kinds = timeline.about, {what.kind for what in timeline.whats}
    if "issue" not in kinds or "fragments" in kinds or not about.product_cycles:
        return None
    of_a_block = sum(about.product_cycles.values())
    return about.blocks_of_sm * sum(one.kv_blocks * of_a_block / one.cycles for one in shares)
