"""The unknowns of a kernel's proof: sizes, strides and the window's sides, with tensors and tiles that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from types import SimpleNamespace
from typing import Any, Self

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.arithmetic import TermOperators
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.term import term
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.tensors import ALIGNED, Tensor, contiguous, packed_tensors
from tl_attention.problem.bounds import GRID_YZ, LARGEST, MOST_WORKERS, ROOM, SIZES, TOTALS
from tl_attention.problem.mask import WINDOW, Mask, sides
from tl_attention.problem.packed import some_page_shift
from tl_attention.problem.variant import Sizes

# In a problem with numbers: the least stride, in 16 bytes, and the keys of a window's sides that are read at run time.
OTHERS, FAR = 2**14, 100_003
# There each key has a page of its own, so that a look-up of any other key shows.
PAGES_OF_A_KEY = {"page_size": 1, "page_rows": 7, "pages": LARGEST}


class Unknowns:
    """Unknowns are the symbols of one generated kernel's proof, with what follows from them: tensors, and tiles.

    Where numbers are `given`, by name, they stand for the symbols: all of them in a run with numbers.
    """

    def __init__(self, proof: Proof, keys: int = 0, *, given: Mapping[str, int] | None = None):
        self.proof, self.facts, self.given = proof, Facts(), given or {}
        self.variant, self.schedule = proof.code.variant, proof.schedule
        self.packed = self.variant.packed
        symbol, fixed = self.symbol, self.variant.sizes
        bounds = {
            "batch": (1, GRID_YZ),
            "heads": (1, GRID_YZ),
            "seq_q": (1, LARGEST - ROOM),
            "seq_kv": (keys, LARGEST - ROOM),
        }
        if fixed:
            bounds = {name: (size, size) for name, size in fixed._asdict().items()}
        self.sizes = SimpleNamespace(**{name: symbol(name, *ends) for name, ends in bounds.items()})
        group = self.sizes.group = self.variant.group or symbol("group", 1, GRID_YZ)
        # A list of tiles names their heads: what is done there is right for any number of those of K and V.
        if group != 1 and not fixed and not given and (self.variant.group or not self.packed):
            self.sizes.heads = group * symbol("heads_kv", 1, GRID_YZ // (self.variant.group or 1))
        self.sizes.heads_kv = self.sizes.heads // group
        self.sizes.past_len = self.sizes.seq_kv - self.sizes.seq_q
        of = SimpleNamespace(**vars(self.sizes))
        turned = {"seq_q": of.seq_kv, "seq_kv": of.seq_q, "past_len": of.seq_q - of.seq_kv, "heads": of.heads_kv}
        # A tile's rows, and the columns of its blocks, are queries and keys, or keys and queries.
        self.of_tiles = of if proof.rows_are_queries else SimpleNamespace(**vars(of) | turned)
        self.parts = symbol("parts", 1, 2**16) if self.variant.parts and not self.packed else term(1)
        self.ops = TermOperators(self.facts).ops
        of.sides = sum(symbol(name, 0, LARGEST - ROOM) for name in self.variant.mask.names)
        for bound in TOTALS if self.packed else SIZES:
            self.bound(bound.most - bound.size(of))

    def bound(self, of: Any) -> None:
        """Assumes that a term is not negative, for the checks that results fit their types."""
        self.facts.bound(term(of))

    @classmethod
    def from_numbers(cls, proof: Proof, sizes: Any, *more: Any, **given: int) -> Self:
        """Makes Unknowns that are numbers: these sizes, a wide window, strides that all differ, and `given`."""
        read = [name for p in proof.code.parameters for name in (*p.dims, *p.strides) if isinstance(name, str)]
        others = {name: OTHERS + 37 * number for number, name in enumerate(dict.fromkeys(read))}
        named = {name: getattr(sizes, name) for name in Sizes._fields}
        variant = proof.code.variant
        named |= {"group": variant.some_group, "workers": proof.workers, **PAGES_OF_A_KEY}
        return cls(proof, *more, given=others | dict.fromkeys(WINDOW, FAR) | named | given)

    def symbol(self, name: str, low: float, high: float = inf, below: Any = None) -> Any:
        """Returns the number that is given under this name, or else the symbol with these bounds."""
        return self.given[name] if name in self.given else self.facts.symbol(name, low, high, below)

    @cached_property
    def names(self) -> dict[str, Value]:
        """Returns, by name, the values that the kernel reads at run time."""
        values = {name: getattr(self.sizes, name) for name in (*Sizes._fields, "group", "heads_kv")}
        for name in self.variant.mask.names:
            values[name] = self.symbol(name, 0, LARGEST - ROOM)
        known = self.schedule.workers(self.variant.sms) if self.variant.sms else None
        values["workers"] = self.symbol("workers", known or 1, known or MOST_WORKERS)
        if self.variant.parts and not self.packed:
            part_blocks = self.symbol("part_blocks", 1, 2**26)
            values |= {"results": self.sizes.batch * self.parts, "part_blocks": part_blocks}
        elif self.variant.parts:
            values["results"] = self.symbol("results", 1, LARGEST)
        for parameter in self.proof.code.parameters:
            for dim in parameter.dims:
                if isinstance(dim, str) and dim not in (*values, "head_dim", "head_dim_v"):
                    values[dim] = self.symbol(dim, 1, LARGEST)
        if self.variant.key_box:
            values |= {name: self.symbol(name, 1, LARGEST) for name in ("page_size", "page_rows", "pages")}
        for parameter in self.proof.code.parameters if self.variant.strided else ():
            for stride in parameter.strides or ():
                values[stride] = ALIGNED * self.symbol(stride, 1, LARGEST)
        return values

    @cached_property
    def mask(self) -> Mask:
        given = dict(zip(WINDOW, sides(self.variant.mask)))
        read = {name: self.names[name] for name in self.variant.mask.names}
        left, right = ({**given, **read}[name] for name in WINDOW)
        own = self.variant.mask
        found = Mask(left if own.left is not None else None, right if own.right is not None else None)
        return found if self.proof.rows_are_queries else found.transposed

    @cached_property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Returns the shapes of the kernel's tensors, by name."""
        known = self.variant.dims(Sizes(*(self.names[name] for name in Sizes._fields))) | self.names
        return {p.name: tuple(known.get(dim, dim) for dim in p.dims) for p in self.proof.code.parameters if p.dims}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Returns the kernel's tensors of rows, by name, each with its shape and its strides."""
        rows = {"seq_q", "seq_kv", "results", "rows"}
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

    def page_shift(self, key: Any) -> Any:
        """Returns by how many rows a key in pages is behind where it were if pages lay in the block table's order.

        Of a key that is unknown it is unknown too, as the table may be any: all that is known is that the row is there.
        """
        if term(key).constant is not None:
            return some_page_shift(key, self.names["page_size"], self.names["page_rows"])
        key = self.facts.simpler(key)
        shift = self.facts.symbol(f"page shift of {key}", -LARGEST, LARGEST)
        self.facts.between[f"page shift of {key}"] = -key, LARGEST // 2 - key
        return shift

    def tile_at(self, row: Any, head: Any, batch: Any, rank: int, **fields: Any) -> RowTile:
        """Returns the tile at (row, head, batch) with this rank among those that share KV blocks."""
        cut = replace(self.proof.cut, variant=replace(self.variant, mask=self.mask))
        sizes = fields.pop("sizes", self.of_tiles)
        if self.variant.key_box:
            fields["page_shift"] = self.page_shift
        return RowTile(cut, sizes, row, head, batch, rank, self.tensors, self.facts, self.ops, **fields)
