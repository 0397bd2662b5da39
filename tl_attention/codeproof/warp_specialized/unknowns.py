"""The unknowns of the proof of roles: a tile's place among all, loads and tiles before it, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.terms.term import Term, is_not_negative, term
from tl_attention.codeproof.tiles.row_tiles import RowTile
from tl_attention.codeproof.tiles.term_proof import TermProof
from tl_attention.kernels.backward.dialect import PADDED_ROWS, TMA_NUMBERS
from tl_attention.kernels.warp_specialized.roles import Roles
from tl_attention.kernels.warp_specialized.tile_order import entry_and_head, placed
from tl_attention.problem.bounds import GRID_YZ, LARGEST, MOST_WORKERS, ROOM
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.packed import SEQUENCE, TOLD_WORDS


class UnknownTiles(TermProof):
    """UnknownTiles know any tile of a kernel whose blocks work on tile after tile."""

    def __init__(self, proof: Proof, roles: Roles, *, given: Mapping[str, int] | None = None):
        # A section of heads is as long as its keys let it be: there are some.
        super().__init__(proof, int(proof.schedule.kernel.tile_order == "sections"), given=given)
        self.roles, of_tiles = roles, self.variant.heads_of_tiles(self.of_tiles.heads)
        symbol = self.symbol
        if self.packed:
            # The list says how many tiles are of sequences of few queries, how many of sequences of many, and how many
            # of the last heads take turns.
            self.few, self.many = symbol("few", 0, 2**26), symbol("many", 0, 2**26)
            self.turns_from = of_tiles - symbol("in_turns", 1, GRID_YZ, below=of_tiles + 1)
        self.row_tiles = self.few + self.many if self.packed else ceildiv(self.of_tiles.seq_q, proof.rows)
        self.of_results = of_tiles if self.packed else of_tiles * self.sizes.batch * self.parts
        self.turn, self.base = symbol("turn", 0, LARGEST - ROOM), symbol("base", 0, LARGEST - 2**28)
        self.total = self.row_tiles * self.of_results
        self.number = symbol("number", 0, LARGEST - ROOM // 2, below=self.total)
        # Tiles have 64 rows or more, or they are so few that calls share them among heads.
        self.bound(LARGEST - ROOM - self.total)
        if self.packed:
            # The list names heads, sequences and parts that are there.
            self.bound(self.turns_from)
            self.bound(self.of_results * self.many - self.turns_from * self.many)
            q_begin, seq_q, k_begin, seq_kv, first = (self.word("told", word) for word in range(1, 6))
            self.bound(self.of_tiles.seq_q - q_begin - seq_q)
            self.bound(self.of_tiles.seq_kv - k_begin - seq_kv)
            self.bound(seq_kv - first * self.schedule.block_N)
            if "rows" in self.names:
                begin, count = (q_begin, seq_q) if proof.rows_are_queries else (k_begin, seq_kv)
                self.bound(self.names["rows"] - self._further(self.word("told", SEQUENCE), begin) - begin - count)
        # Which of those that work at once a cluster is, or of all.
        self.workers = self.names["workers"]
        self.one_tile = self.schedule.kernel.tile_scheduler == "one_tile"
        self.cluster = symbol("cluster", 0, (LARGEST if self.one_tile else MOST_WORKERS) - 1, below=self.workers)

    @cached_property
    def exists_if(self) -> list[Term]:
        """Returns terms that are >= 0 where the tile exists, as for each entry in a list of packed sequences' tiles."""
        if self.packed:
            row, seq_q, first, end = (self.word("told", word) for word in (0, 2, 5, 6))
            return [row, seq_q - 1 - row * self.proof.cut.block_M, end - 1 - first]
        last = self.total - 1
        with self.facts.assuming(last - self.number):
            return [last - self.number, self.facts.quotient_bound(self.number, last, self.row_tiles)]

    def word(self, which: str, number: int) -> Term:
        """Returns the symbol of a word of the entry received for the first tile, for this one or for the next."""
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
        return self.symbol(f"{which}.{number}", *bounds[number])

    def tile(self, rank: int) -> RowTile:
        """Returns the tile of this number, or the received one, for the block of this rank in its cluster."""
        if self.packed:
            return self.tile_of_words([self.word("told", word) for word in range(TOLD_WORDS)], rank)
        return self.tile_of_number(self.number, rank)

    def first_tiles(self, entries: np.ndarray | None, most: int, rank: int) -> list[RowTile]:
        """Returns the first tiles, `most` at most, of a block of the first cluster, by number or the list's entries."""
        tiles: list[RowTile] = []
        number = 0
        while len(tiles) < most and number < int(self.total):
            if entries is None:
                tiles.append(self.tile_of_number(number, rank))
            else:
                entry, head = self.entry_and_head(number)
                tiles.append(self.tile_of_words([*entries[int(entry)].tolist(), head], rank))
            # No other block takes a number of the counter.
            number = len(tiles) - 1 + self.workers if self.roles.dynamic else number + self.workers
            if self.one_tile:
                break
        return tiles

    def entry_and_head(self, number: Value) -> tuple[Value, Value]:
        """Returns (number of the list's entry, head) of the tile of this number."""
        return entry_and_head(number, self.few, self.many, self.of_results, self.turns_from, self.ops)

    def tile_of_words(self, words: Sequence[Value], rank: int) -> RowTile:
        """Returns the tile that these words of a list's entry describe, for the block of this rank in a cluster."""
        row, q_begin, seq_q, k_begin, seq_kv, first, end, place, of_heads = words
        sizes = SimpleNamespace(seq_q=seq_q, seq_kv=seq_kv, past_len=seq_kv - seq_q, group=self.sizes.group)
        heads = self.variant.heads_of_tiles(self.sizes.heads)
        result = ((place - 1) * heads + of_heads) * self.schedule.block_M
        fields: Any = {"part": (first, end), "result": result} if self.variant.parts else {}
        if "rows" in self.names:
            fields["further"] = self._further(place, q_begin if self.proof.rows_are_queries else k_begin)
        head, row = self.variant.first_head(of_heads, self.ops), (row + rank) * self.proof.cut.block_M
        split = is_not_negative(term(place) - 1)
        return self.tile_at(row, head, 0, rank, sizes=sizes, split=split, begins=(q_begin, k_begin), **fields)

    def _further(self, sequence: Value, begin: Value) -> Value:
        """Returns by how many rows the numbers of a sequence's rows lie behind where they would without padding."""
        return PADDED_ROWS * sequence - begin % TMA_NUMBERS

    def tile_of_number(self, number: Value, rank: int) -> RowTile:
        """Returns the tile of this number, for the block of this rank in a cluster."""
        named, heads = self.facts.named, self.variant.heads_of_tiles(self.of_tiles.heads)
        variant = replace(self.variant, mask=self.mask)
        of = self.of_tiles, self.of_results, self.proof.rows, self.schedule, variant, self.workers, self.ops
        order = placed(number, *of)
        tile, head = map(named, order)
        # An order of tiles numbers each tile of each head once, as tests of the orders show. Some count from the end.
        for within, count in (
            (named(self.row_tiles - 1 - tile), self.row_tiles),
            (tile, self.row_tiles),
            (head, self.of_results),
        ):
            self.bound(within)
            self.bound(count - 1 - within)
        result, head = map(named, divmod(head, heads))
        fields: Any = {}
        batch = result
        if self.variant.parts:
            part, batch = map(named, divmod(result, self.sizes.batch))
            each = self.names["part_blocks"]
            # The last part begins within the keys, and this one is not behind it.
            self.bound(self.sizes.seq_kv // self.schedule.block_N - part * each)
            fields = {"part": (part * each, (part + 1) * each), "result": result}
        row = named((tile * self.roles.cluster + rank) * self.proof.cut.block_M)
        head = self.variant.first_head(head, self.ops)
        return self.tile_at(row, head, batch, rank, **fields)
