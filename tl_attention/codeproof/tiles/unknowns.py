"""The unknowns of a kernel's proof: sizes, strides and sides of the window, with tensors and tiles that follow from them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.arithmetic import Arithmetic
from tl_attention.codeproof.terms.comparison import Unless
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.term import term
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor, contiguous, packed_tensors
from tl_attention.problem.bounds import GRID_YZ, LARGEST, ROOM
from tl_attention.problem.mask import WINDOW, Mask, sides
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import ROWS
from tl_attention.program.events import OF_PARTS, Event, Maybe, Where

# TMA reads tensors whose strides are multiples of 16 bytes.
ALIGNED = 16 // DTYPE_BYTES


class TermTile(RowTiles):
    """A TermTile is a row tile, any, whose place and sizes are terms."""

    facts: Facts
    ops: Any

    @property
    def _arithmetic(self) -> Any:
        return self.ops

    @cached_property
    def blocks(self) -> tuple[Value, Value]:
        first, end = super().blocks
        first, count = self.facts.named(first), self.facts.named(end - first)
        return first, first + count

    def copied(self, tensor: str, block: Any = None) -> Any:
        row, head, batch = (self.row, self.head, self.batch) if block is None else self.place_of_kv(block)
        left = self.left(0) if block is None else self.sizes.seq_kv - row
        return self.tensors[tensor].element(batch, head, row), left

    def kv(self, block: Any) -> Any:
        first, end = self.blocks
        return end - 1 - block if self.cut.kv_order == "descending" else first + block

    def mask(self, block: Any, offset: int, rows: int) -> Any:
        """Returns the mask of a KV block as an Unless: it may be left out where all keys are seen, or no row is there."""
        kv, (first, end) = self.kv(block), self.whole(offset, rows)
        shown = ("an unmasked KV block has hidden keys behind", end - 1 - kv), ("or before", kv - first)
        return Unless(Event("mask"), shown, (self.left(offset) - 1,))

    def rows_from(self, offset: int, rows: int) -> Any:
        return self.left(offset)

    def left(self, offset: int) -> Any:
        """Returns how many rows the problem has from the tile's `offset` on, which may be none."""
        return self.sizes.seq_q - self.row - offset

    @property
    def split(self) -> None:
        """Says nothing: `of_rows` tells where a tile has a part."""

    def place_of_results(self, offset: int = 0) -> tuple[Value, Value, Value]:
        row, head, batch = self.place(offset)
        return row, head, batch if self.result is None or self.begins else self.result

    def of_rows(self, event: Event, offset: int) -> Any:
        """Returns the event of a warpgroup's rows, which are all stored, or of parts of packed sequences at their place."""
        if self.begins is None or self.result is None:
            return Maybe(event) if self.facts.sign(term(-self.left(offset))) > 0 else event
        own = self.result + offset // self.box * ROWS
        of_part = replace(event, name=OF_PARTS, place=(own, offset, 0))
        return Where(self.there, (of_part,), (event,))


class Unknowns:
    """Unknowns are the symbols of one generated kernel's proof, with what follows from them: tensors, and tiles."""

    def __init__(self, proof: Proof, keys: int = 0):
        self.proof, self.facts, self.coverage = proof, Facts(), Coverage()
        self.variant, self.schedule = proof.code.variant, proof.schedule
        symbol = self.facts.symbol
        fixed = self.variant.sizes
        bounds = {
            "batch": (1, GRID_YZ),
            "heads": (1, GRID_YZ),
            "seq_q": (1, LARGEST - ROOM),
            "seq_kv": (keys, LARGEST - ROOM),
        }
        if fixed:
            bounds = {name: (size, size) for name, size in fixed._asdict().items()}
        self.sizes = SimpleNamespace(**{name: symbol(name, *ends) for name, ends in bounds.items()})
        if self.variant.group > 1 and not fixed:
            self.sizes.heads = self.variant.group * symbol("heads_kv", 1, GRID_YZ // self.variant.group)
        self.sizes.past_len = self.sizes.seq_kv - self.sizes.seq_q
        self.packed = self.variant.packed
        self.parts = symbol("parts", 1, 2**16) if self.variant.parts and not self.packed else term(1)
        self.ops = Arithmetic(self.facts).ops

    @cached_property
    def names(self) -> dict[str, Value]:
        """Returns, by name, the values that the kernel reads at run time."""
        found = {name: getattr(self.sizes, name) for name in ("batch", "heads", "seq_q", "seq_kv")}
        for name in self.variant.mask.names:
            found[name] = self.facts.symbol(name, 0, LARGEST - ROOM)
        if self.variant.parts and not self.packed:
            part_blocks = self.facts.symbol("part_blocks", 1, 2**26)
            found |= {"results": self.sizes.batch * self.parts, "part_blocks": part_blocks}
        elif self.variant.parts:
            found["results"] = self.facts.symbol("results", 1, LARGEST)
        for parameter in self.proof.code.parameters:
            for dim in parameter.dims:
                if isinstance(dim, str) and dim not in (*found, "heads_kv", "head_dim", "head_dim_v"):
                    found[dim] = self.facts.symbol(dim, 1, LARGEST)
        for parameter in self.proof.code.parameters if self.variant.strided else ():
            for stride in parameter.strides or ():
                found[stride] = ALIGNED * self.facts.symbol(stride, 1, LARGEST)
        return found

    @cached_property
    def mask(self) -> Mask:
        given = dict(zip(WINDOW, sides(self.variant.mask)))
        read = {name: self.names[name] for name in self.variant.mask.names}
        left, right = ({**given, **read}[name] for name in WINDOW)
        own = self.variant.mask
        return Mask(left if own.left is not None else None, right if own.right is not None else None)

    @cached_property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Returns the shapes of the kernel's tensors, by name."""
        known = self.variant.dims(Sizes(*(self.names[name] for name in Sizes._fields))) | self.names
        return {p.name: tuple(known.get(dim, dim) for dim in p.dims) for p in self.proof.code.parameters if p.dims}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Returns the kernel's tensors of rows, by name, each with its shape and its strides."""
        rows = {"seq_q", "seq_kv", "results"}
        parameters = [p for p in self.proof.code.parameters if not rows.isdisjoint(p.dims)]
        strides = {p.name: tuple(self.names[name] for name in p.strides) for p in parameters if self.variant.strided}
        if self.packed:
            apart = {name: (of[1], of[0]) for name, of in strides.items() if of}
            return packed_tensors(parameters, self.shapes, self.variant.box, apart)
        return {
            p.name: Tensor(
                self.shapes[p.name], (*strides[p.name], 1) if strides.get(p.name) else contiguous(self.shapes[p.name])
            )
            for p in parameters
        }

    def tile_at(self, row: Any, head: Any, batch: Any, rank: int, there: Any = True, **own: Any) -> TermTile:
        """Returns the tile at (row, head, batch) with this rank among those that share KV blocks."""
        cut = replace(self.proof.cut, variant=replace(self.variant, mask=self.mask))
        sizes = own.pop("sizes", self.sizes)
        found = TermTile(cut, sizes, row, head, batch, rank, there, self.tensors, **own)
        found.facts, found.ops = self.facts, self.ops
        return found
