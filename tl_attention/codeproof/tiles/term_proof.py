"""What the proofs by terms of all lowerings share: the launch, places of results, and numbers of a tile's head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tl_attention.codeproof.comparison import COUNTS, OF_HEADS
from tl_attention.codeproof.launch import check_descriptors
from tl_attention.codeproof.read.nodes import PER_HEAD
from tl_attention.codeproof.terms.comparison import Block
from tl_attention.codeproof.terms.term import Term, term
from tl_attention.codeproof.tiles.unknowns import TermTile, Unknowns
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.features import features_of
from tl_attention.program.events import Event


class TermProof(Unknowns):
    """A TermProof shows of one generated kernel what holds at all sizes."""

    def check_launch(self, *blocks: Any, cluster: int = 1) -> None:
        """Raises Unsafe unless the host's descriptors are those of the tensors and tiles, and the grid has these blocks."""
        plan = self.proof.plan
        check_descriptors(plan, self.proof.tiles, self.tensors, self.shapes, self.names, self.variant.dtype)
        for found, expected in zip(plan.grid, blocks, strict=True):
            self.facts.show_equal("the number of blocks", term(found.at(self.names)), expected)
        if plan.cluster != (cluster, 1, 1):
            raise Unsafe(f"clusters of {plan.cluster}, expected {cluster}")

    def check_heads(self, who: str, found: list[Event | Block], tile: TermTile) -> None:
        """Raises Unsafe unless each number of a tile's head is read once, and what counts once counts in whole tiles."""
        for feature in features_of(self.variant.acting):
            read = [one for one in found if isinstance(one, Event) and (one.kind, one.name) == (PER_HEAD, feature.name)]
            if feature.per_head and len(read) != 1:
                raise Unsafe(f"{who} reads {feature.name} {len(read)} times")
            for one in read:
                self.facts.show_equal(f"line {one.step}: the head of {feature.name} of {who}", one.value, tile.head)
            if feature.counts_once and self.packed and self.variant.parts:
                self._check_counted(who, found, feature.name, tile.there)

    def _check_counted(self, who: str, found: list[Event | Block], name: str, split: Term) -> None:
        counted = [
            (term(block.value), side is block.otherwise)
            for block in found
            if isinstance(block, Block)
            for side in (block.inside, block.otherwise)
            if any(isinstance(one, Event) and (one.kind, one.name) == (COUNTS, name) for one in side)
        ]
        if len(counted) != 1:
            raise Unsafe(f"{who}: {name} count {len(counted)} times")
        for condition, otherwise in counted:
            here = 1 - condition if otherwise else condition
            self.facts.show_equal(f"where {name} count for {who}", here, 1 - split)

    def placed(self, event: Event, tile: TermTile | None = None) -> tuple[Any, ...]:
        if tile is None or event.kind not in ("output", "lse"):
            return event.place
        row, head, batch = event.place
        whole = self.packed and self.variant.parts and not event.name
        names = {"output": ("Output", "Merged"), "lse": ("LSE", "MergedLSE")}
        tensor = self.tensors[names[event.kind][whole]]
        if event.name:
            element, left = row * tensor.row_stride, tile.sizes.seq_q - tile.row - head
        else:
            element = tensor.element(0 if self.packed else batch, head, row)
            left = tile.sizes.seq_q + tile.queries[0] - row
        return element, left, tensor.row_stride, tensor.head_stride if self.variant.tile_heads > 1 else 0


def without_heads(found: list[Event | Block]) -> list[Event | Block]:
    """Returns what a process does but for reads of numbers of heads, and arithmetic with these."""
    kept: list[Event | Block] = []
    for one in found:
        if isinstance(one, Block):
            kept.append(replace(one, inside=without_heads(one.inside), otherwise=without_heads(one.otherwise)))
        elif one.kind not in OF_HEADS:
            kept.append(one)
    return kept
