"""The unknowns of the proof of roles: sizes, strides, sides of the window, and a tile's place among all tiles."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.arithmetic import Arithmetic
from tl_attention.codeproof.terms.comparison import Unless
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.terms.term import Term, holds, term
from tl_attention.codeproof.tiles.row_tiles import Cut, RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor, contiguous, packed_tensors
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.kernels.warp_specialized.tile_order import placed, workers
from tl_attention.problem.bounds import GRID_YZ, LARGEST, ROOM
from tl_attention.problem.mask import WINDOW, Mask, ceildiv, sides
from tl_attention.problem.packed import TOLD_WORDS
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

    def kv(self, block: Any) -> Any:
        first, end = self.blocks
        return end - 1 - block if self.cut.kv_order == "descending" else first + block

    def mask(self, block: Any, offset: int, rows: int) -> Any:
        """Returns the mask of a KV block as an Unless: it may be left out where all keys are seen, or no row is there."""
        kv, (first, end) = self.kv(block), self.whole(offset, rows)
        shown = ("an unmasked KV block has hidden keys behind", end - 1 - kv), ("or before", kv - first)
        return Unless(Event("mask"), shown, (self.left(offset) - 1,))

    def rows_from(self, offset: int, rows: int) -> Any:
        return self._arithmetic.min(self.left(offset), rows)

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
    """Unknowns are the symbols of one generated kernel's proof, with what follows from them: tensors, and any tile."""

    def __init__(self, proof: Proof, roles: Roles):
        self.proof, self.roles, self.facts = proof, roles, Facts()
        self.variant, self.schedule = proof.code.variant, proof.schedule
        symbol = self.facts.symbol
        fixed = self.variant.sizes
        keys = int(self.schedule.kernel.tile_order == "sections")
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
        self.packed, of_tiles = roles.packed, self.variant.heads_of_tiles(self.sizes.heads)
        self.parts = symbol("parts", 1, 2**16) if self.variant.parts and not self.packed else term(1)
        self.row_tiles = symbol("row_tiles", 0, 2**26) if self.packed else ceildiv(self.sizes.seq_q, proof.rows)
        self.of_results = of_tiles if self.packed else of_tiles * self.sizes.batch * self.parts
        self.turn, self.base = symbol("turn", 0, LARGEST - ROOM), symbol("base", 0, LARGEST - 2**20)
        self.ops = Arithmetic(self.facts).ops
        self.total = self.row_tiles * self.of_results
        self.number = symbol("number", 0, LARGEST, below=self.total)
        # Which of those that work at once a cluster is, or of all.
        self.workers = workers(self.schedule, self.variant)
        self.one_tile = self.schedule.kernel.tile_scheduler == "one_tile"
        self.cluster = symbol("cluster", 0, (LARGEST if self.one_tile else self.workers) - 1)

    @cached_property
    def there(self) -> list[Term]:
        """Returns what is not negative where the tile is there; of packed sequences the list of tiles has such entries."""
        if self.packed:
            row, seq_q, first, end = (self.word("told", word) for word in (0, 2, 5, 6))
            return [row, seq_q - 1 - row * self.proof.cut.block_M, end - 1 - first]
        last = self.total - 1
        with self.facts.assuming(last - self.number):
            return [last - self.number, self.facts.at_most(self.number, last, self.row_tiles)]

    def word(self, which: str, number: int) -> Term:
        """Returns a word of what is told of the first tile, of this one or of the next."""
        rows = LARGEST // 2
        bounds = (
            (-1, rows),
            (0, rows),
            (1, rows),
            (0, rows),
            (0, rows),
            (0, LARGEST),
            (1, LARGEST),
            (0, 2**26),
            (0, GRID_YZ),
        )
        return self.facts.symbol(f"{which}.{number}", *bounds[number])

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

    def tile(self, rank: int) -> TermTile:
        """Returns the tile of this number, or the told one, that of one block of its cluster."""
        cut = replace(self.proof.cut, variant=replace(self.variant, mask=self.mask))
        found = self._told_tile(cut, rank) if self.packed else self._tile_of_number(cut, rank)
        found.facts, found.ops = self.facts, self.ops
        return found

    def _told_tile(self, cut: Cut, rank: int) -> TermTile:
        row, q_begin, seq_q, k_begin, seq_kv, first, end, place, of_heads = (
            self.word("told", n) for n in range(TOLD_WORDS)
        )
        sizes = SimpleNamespace(seq_q=seq_q, seq_kv=seq_kv, past_len=seq_kv - seq_q, heads=self.sizes.heads)
        heads = self.variant.heads_of_tiles(self.sizes.heads)
        result = ((place - 1) * heads + of_heads) * self.schedule.block_M
        own: Any = {"part": (first, end), "result": result} if self.variant.parts else {}
        head, begins = self.variant.first_head(of_heads, self.ops), (q_begin, k_begin)
        first_row = (row + rank) * cut.block_M
        return TermTile(cut, sizes, first_row, head, 0, rank, holds(place - 1), self.tensors, begins=begins, **own)

    def _tile_of_number(self, cut: Cut, rank: int) -> TermTile:
        named, heads = self.facts.named, self.variant.heads_of_tiles(self.sizes.heads)
        order = placed(self.number, self.sizes, self.of_results, self.proof.rows, self.schedule, self.variant, self.ops)
        tile, head = map(named, order)
        result, head = map(named, divmod(head, heads))
        own: Any = {}
        batch = result
        if self.variant.parts:
            part, batch = map(named, divmod(result, self.sizes.batch))
            each = self.names["part_blocks"]
            own = {"part": (part * each, (part + 1) * each), "result": result}
        row = named((tile * self.roles.cluster + rank) * cut.block_M)
        head = self.variant.first_head(head, self.ops)
        return TermTile(cut, self.sizes, row, head, batch, rank, True, self.tensors, **own)
