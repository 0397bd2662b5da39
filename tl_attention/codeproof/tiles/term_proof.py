"""This module holds what the proofs by terms of all lowerings share: launch, places, numbers of a tile's head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tl_attention.codeproof.frame import check_descriptors
from tl_attention.codeproof.read.nodes import COUNTS, PER_HEAD
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.comparison import Nested
from tl_attention.codeproof.terms.term import Term, as_number, term
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.unknowns import Unknowns
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.features import features_of
from tl_attention.program.events import Event


class TermProof(Unknowns):
    """A TermProof shows of one generated kernel what holds at all sizes."""

    def check_launch(self, *blocks: Any, cluster: int = 1) -> None:
        """Raises Unsafe unless the descriptors are those of the tensors and tiles, and the grid has these blocks."""
        plan = self.proof.plan
        check_descriptors(plan, self.proof.tiles, self.tensors, self.shapes, self.names, self.variant.dtype)
        for found, expected in zip(plan.grid, blocks, strict=True):
            self.facts.show_equal("the number of blocks", term(found.at(self.names)), expected)
        if plan.cluster != (cluster, 1, 1):
            raise Unsafe(f"clusters of {plan.cluster}, expected {cluster}")

    def check_heads(self, who: str, found: list[Event | Nested], tile: RowTile) -> None:
        """Raises Unsafe unless each number of a head is read once, before what needs it, and counts in whole tiles."""
        for feature in features_of(self.variant.acting):
            needing = {"product", "store", "output"} if feature.changes_scores else {"store", "output"}
            order = [one for one in flat(found) if one.name == feature.name or one.kind in needing]
            read = [one for one in order if (one.kind, one.name) == (PER_HEAD, feature.name)]
            if feature.per_head and (len(read) != 1 or order[0] is not read[0]):
                first = f", first where it does {order[0].kind}" if read and order else ""
                raise Unsafe(f"{who} reads {feature.name} {len(read)} times{first}")
            for one in read:
                self.facts.show_equal(f"line {one.step}: the head of {feature.name} of {who}", one.value, tile.head)
            if feature.counts_once and self.packed and self.variant.parts:
                self._check_counted(who, found, feature.name, tile.split)

    def _check_counted(self, who: str, found: list[Event | Nested], name: str, split: Value) -> None:
        sides: list[tuple[Term, list[Event | Nested]]] = []
        for one in found:
            if isinstance(one, Nested):
                sides += [(term(one.value), one.inside), (1 - term(one.value), one.otherwise)]
            else:
                sides.append((term(1), [one]))
        counts = [counted for counted, side in sides if any((e.kind, e.name) == (COUNTS, name) for e in flat(side))]
        if isinstance(as_number(split), int):
            # Of numbers the condition is known, too.
            counts = [term(int(bool(counts)))]
        if len(counts) != 1:
            raise Unsafe(f"{who}: {name} count {len(counts)} times")
        self.facts.show_equal(f"where {name} count for {who}", counts[0], 1 - term(split))


def flat(found: Iterable[Event | Nested]) -> Iterator[Event]:
    """Yields events, and those inside of blocks."""
    for one in found:
        if isinstance(one, Nested):
            yield from (*flat(one.inside), *flat(one.otherwise))
        else:
            yield one


def without_heads(found: list[Event | Nested]) -> list[Event | Nested]:
    """Returns what a process does but for reads of numbers of heads, and arithmetic with these."""
    kept: list[Event | Nested] = []
    for one in found:
        if isinstance(one, Nested):
            kept.append(replace(one, inside=without_heads(one.inside), otherwise=without_heads(one.otherwise)))
        elif one.kind not in (PER_HEAD, COUNTS):
            kept.append(one)
    return kept
