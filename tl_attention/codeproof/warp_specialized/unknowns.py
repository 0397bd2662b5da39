"""The unknowns of the proof of roles: a tile's place among all tiles, loads and tiles before it, and what is told of it."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.terms.term import Term, holds
from tl_attention.codeproof.tiles.term_proof import TermProof
from tl_attention.codeproof.tiles.unknowns import TermTile
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.kernels.warp_specialized.tile_order import placed, workers
from tl_attention.problem.bounds import GRID_YZ, LARGEST, ROOM
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import TOLD_WORDS


class UnknownTiles(TermProof):
    """UnknownTiles know any tile of a kernel whose blocks work on tile after tile."""

    def __init__(self, proof: Proof, roles: Roles):
        # A section of heads is as long as its keys let it be: there are some.
        super().__init__(proof, int(proof.schedule.kernel.tile_order == "sections"))
        self.roles, of_tiles = roles, self.variant.heads_of_tiles(self.sizes.heads)
        symbol = self.facts.symbol
        self.row_tiles = symbol("row_tiles", 0, 2**26) if self.packed else ceildiv(self.sizes.seq_q, proof.rows)
        self.of_results = of_tiles if self.packed else of_tiles * self.sizes.batch * self.parts
        self.turn, self.base = symbol("turn", 0, LARGEST - ROOM), symbol("base", 0, LARGEST - 2**20)
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

    def tile(self, rank: int) -> TermTile:
        """Returns the tile of this number, or the told one, that of one block of its cluster."""
        return self._told_tile(rank) if self.packed else self._tile_of_number(rank)

    def _told_tile(self, rank: int) -> TermTile:
        row, q_begin, seq_q, k_begin, seq_kv, first, end, place, of_heads = (
            self.word("told", n) for n in range(TOLD_WORDS)
        )
        sizes = SimpleNamespace(seq_q=seq_q, seq_kv=seq_kv, past_len=seq_kv - seq_q, heads=self.sizes.heads)
        heads = self.variant.heads_of_tiles(self.sizes.heads)
        result = ((place - 1) * heads + of_heads) * self.schedule.block_M
        own: Any = {"part": (first, end), "result": result} if self.variant.parts else {}
        head, row = self.variant.first_head(of_heads, self.ops), (row + rank) * self.proof.cut.block_M
        return self.tile_at(row, head, 0, rank, sizes=sizes, there=holds(place - 1), begins=(q_begin, k_begin), **own)

    def _tile_of_number(self, rank: int) -> TermTile:
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
        row = named((tile * self.roles.cluster + rank) * self.proof.cut.block_M)
        head = self.variant.first_head(head, self.ops)
        return self.tile_at(row, head, batch, rank, **own)
