"""This module proves the generated kernels of gradients: threads run their roles' events, on the right tiles.

Tiles, products and results are those of the loop's Table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tl_attention.codeproof.tiles.tiles import Product, Tile
from tl_attention.codeproof.warp_specialized.code_proof import RolesProof
from tl_attention.kernels.backward.roles import GradientRoles
from tl_attention.problem.warpgroup import ROWS
from tl_attention.schedule.loop.table import symbol, whole


class GradientProof(RolesProof):
    """A GradientProof proves that the threads of one generated kernel of gradients run the events of their roles."""

    @cached_property
    def roles(self) -> GradientRoles:
        variant = self.code.variant
        return GradientRoles.of(self.schedule, self.program, variant.packed, variant.some_group)

    def check_code(self) -> None:
        super().check_code()
        # The lowering has proved tiles of one head and of two.
        if self.roles.members > 2 and not self.roles.packed:
            self.roles.prove()

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        sizes = {"head_dim": self.code.variant.tile_dim, "head_dim_v": self.code.variant.tile_dim_v}
        return {
            buffer.symbol: Tile(
                buffer.symbol,
                ROWS if buffer.place == "resident" else self.schedule.block_N,
                sizes[str(buffer.columns)],
                self.roles.slots(buffer.symbol),
            )
            for buffer in self.roles.table.buffers
            if buffer.place != "fragment" and buffer.columns != 1
        } | {
            vector: Tile(
                vector,
                1,
                self.schedule.block_N,
                self.roles.slots(ring),
                False,
                bytes=4,
                ring=ring,
                tensor=f"Row{vector}",
            )
            for ring, vector in self.roles.vectors.items()
        }

    @cached_property
    def products(self) -> dict[str, Product]:
        """Returns the loop's products by the names of their accumulators; those that add multiply registers."""
        found = {}
        for name in self.roles.table.products:
            statement = self.roles.table.by_name[name]
            a, b, *adds = statement.reads
            tile, accumulators = self.tiles[symbol(b)], whole(statement.writes[0])
            columns, depth = (tile.columns, tile.rows) if adds else (tile.rows, tile.columns)
            operand = whole(a) if adds else self.tiles[symbol(a)]
            found[accumulators] = Product(accumulators, operand, tile, columns, depth, bool(adds))
        return found

    @property
    def rows_are_queries(self) -> bool:
        return self.roles.table.rows == "queries"

    def sizes(self) -> Iterator[Any]:
        for sizes in super().sizes():
            yield sizes if self.rows_are_queries else sizes.exchanged

    @property
    def results(self) -> dict[str, str]:
        return dict(self.roles.table.stored)

    @property
    def rows(self) -> int:
        return self.schedule.block_M
