"""This module proves that code treats all tiles alike: it runs thousands of tiles, of as many problems, at once.

One lane of a warp runs for each block, and the first and the last iteration of each loop. Samples whose loops are
equally long must run the same lines with the same values, but for where their tiles lie: a row, a head, an address is
moved by exactly what the problem says. So neither a tile, nor a head, a sequence or a size decides anything else, and
what full runs show of some tiles holds for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tl_attention.codeproof.read.nodes import PER_HEAD, Arithmetic, For, Step, While, every
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.run.run import Run, Seen
from tl_attention.codeproof.run.threads import Value
from tl_attention.codeproof.tiles.row_tiles import RowTiles
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.lengths import Problems, drawn, results
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.variant import Variant
from tl_attention.program.program import Program

# A problem of fixed sizes gives so many of its first tiles, and so many between the first and the last.
FIRST, BETWEEN = 64, 1024
# So many tiles are first ones, or last ones.
EDGE = 50
NONE = -1
# Loops of at least so many iterations are alike if their lengths are equal modulo the period.
SHORT = 3
Array = np.ndarray
# Steps that multiply: every loop over KV blocks of threads that compute has one.
PRODUCTS = ("product", "multiply")


class Likeness:
    """A Likeness checks that the blocks of a run, each on tiles of its own problem, all treat their tiles alike.

    `turns` are the tiles that blocks work on in turn; `after` says which blocks have another one behind these, where that
    shows.
    """

    def __init__(self, run: Run, turns: Sequence[RowTiles], period: int, after: Array | None = None):
        self.run, self.turns = run, turns
        # Whether blocks have a tile behind each turn's, where they learn of it during the turn.
        self.after = None if after is None else [*(tiles.there for tiles in turns[1:]), after]
        self.blocks = [tiles.blocks for tiles in turns]
        # Lines that run for one tile after another; the others run once, whatever the turn was.
        tiles = [node for node in every(run.kernel.body) if isinstance(node, While)]
        inside = [node for loop in tiles for node in every(loop.body)]
        self.repeated = {line for node in inside for line in getattr(node, "lines", ()) or (node.line,)}
        threads = run.threads
        self.role = threads.y * (int(threads.x.max()) + 1) + threads.x
        self.roles = int(self.role.max()) + 1
        self.groups = [self._groups(turn, period) for turn in range(len(turns))]
        self.sizes = [np.bincount(group) for group in self.groups]

    def _groups(self, turn: int, period: int) -> Array:
        """Returns a group number for each block in a turn, equal where loop lengths and numbers of rows are alike.

        For the turns before, the number counts how many KV blocks they had, modulo the period.
        """
        tiles = self.turns[turn]
        rows_left = np.clip(tiles.sizes.seq_q - tiles.row, 0, tiles.cut.block_M)
        columns = [tiles.rank, tiles.there, np.where(tiles.there, rows_left, NONE)]
        columns += [] if self.after is None else [self.after[turn]]
        columns += [] if tiles.split is None else [tiles.split]
        before = zip(self.turns[:turn], self.blocks)
        columns += [np.where(earlier.there, end - start, 0) % period for earlier, (start, end) in before]
        for loop in (seen for seen in self.run.seen if seen.kind == "loop" and seen.turn == turn):
            trips = np.broadcast_to(loop.values["value"], loop.threads.shape)
            alike = np.where(trips < SHORT, np.maximum(trips, 0), SHORT + (trips - SHORT) % period)
            for y in range(self.run.threads.ys):
                mine = self.run.threads.y[loop.threads] == y
                column = np.full(len(columns[0]), NONE)
                column[self.run.threads.place[loop.threads[mine]]] = alike[mine]
                columns.append(column)
        return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)

    def check(self) -> None:
        """Raises Unsafe unless blocks with alike loops run the same lines with equal values, but for tiles' places."""
        for seen in self.run.seen:
            group, sizes = self.groups[seen.turn], self.sizes[seen.turn]
            place = self.run.threads.place[seen.threads]
            there = self.turns[seen.turn].there[place]
            if not there.all() and seen.line in self.repeated:
                other = int(place[np.argmin(there)])
                raise Unsafe(f"line {seen.line + 1} runs where there is no tile, after {self._words(other)}")
            kin = group[place] * self.roles + self.role[seen.threads]
            counts = np.bincount(kin, minlength=len(sizes) * self.roles)
            if (counts[kin] != sizes[group[place]]).any():
                other = int(np.argmax(counts[kin] != sizes[group[place]]))
                words = self._words(place[other], seen.turn)
                raise Unsafe(f"line {seen.line + 1} runs for some tiles alone, as for {words}")
            if seen.kind != "loop":
                self._check_values(seen, place, kin)

    def _check_values(self, seen: Seen, place: Array, kin: Array) -> None:
        moves = dict(self._moves(seen, place))
        alike = _leaders(kin)
        # What a tile's place alone decides is compared among all, whatever their loops are. But which rows are zeros, and
        # which KV blocks are loaded, depends on rows and loops too.
        of_group = not moves or seen.name in ("K", "V") or "source" in seen.values
        placed = alike if of_group else _leaders(self.role[seen.threads])
        for name, value in seen.values.items():
            if name not in moves and not isinstance(value, np.ndarray):
                continue
            value = np.broadcast_to(value, place.shape)
            order, leaders = placed if name in moves else alike
            wrong = None
            for base in moves.get(name, (0,)):
                # Zeros, instead of a row beyond the tensor, have no place.
                moved = value - base if name in moves else value
                if name == "source":
                    moved = np.where(value == NONE, NONE, moved)
                rest = moved[order]
                differs = rest != rest[leaders]
                if not differs.any():
                    break
                wrong = order[int(np.argmax(differs))]
            else:
                assert wrong is not None
                words = self._words(place[wrong], seen.turn)
                raise Unsafe(
                    f"line {seen.line + 1}: {name} is {value[wrong]} for {words}, which is not where that of other tiles is"
                    if name in moves
                    else f"line {seen.line + 1}: {name} depends on the tile, as for {words}"
                )

    def trips(self, loops: Collection[int], turn: int) -> Array:
        """Returns how many iterations the loops on these lines have in all, per block and threadIdx.y, in a turn.

        The result has the shape (blocks, ys).
        """
        found = np.zeros((len(self.turns[turn].row), self.run.threads.ys), dtype=np.int64)
        for seen in self.run.seen:
            if seen.kind == "loop" and seen.turn == turn and seen.line in loops:
                first = self.run.threads.x[seen.threads] == 0
                threads = seen.threads[first]
                trips = np.broadcast_to(seen.values["value"], seen.threads.shape)[first]
                found[self.run.threads.place[threads], self.run.threads.y[threads]] += np.maximum(trips, 0)
        return found

    def check_loops(self, loops: Sequence[For], ys: int, rows: int, program: Program) -> None:
        """Raises Unsafe unless loops' lengths follow their tiles' numbers of KV blocks, and hidden keys are masked.

        Loops without a mask run for no KV block that needs one: the last of all iterations would work on the block
        before the tile's first, so far ahead of it as the Program says. There are `ys` values of threadIdx.y, each with
        `rows` rows of its own.
        """
        lines = {loop.line for loop in loops}
        others = {seen.line for seen in self.run.seen if seen.kind == "loop"}.difference(lines)
        for turn in range(len(self.turns)):
            for together in (lines, *([line] for line in others)):
                self._check_length(together, turn)
            self._check_unmasked(lines, unmasked(loops), turn, ys, rows, program)

    def _check_length(self, loops: Collection[int], turn: int) -> None:
        """Raises Unsafe unless the number of iterations less that of KV blocks is the same for all tiles of a turn."""
        start, end = self.blocks[turn]
        there = np.flatnonzero(self.turns[turn].there)
        trips = self.trips(loops, turn)[there]
        extra = (trips - (end - start)[there, None])[:, trips.any(axis=0)]
        if (extra != extra[:1]).any():
            words = self._words(int(there[np.argwhere(extra != extra[:1])[0][0]]), turn)
            raise Unsafe(f"a loop over KV blocks is not as long as those of other tiles for {words}")

    def _check_unmasked(
        self, lines: Collection[int], plain: Collection[int], turn: int, ys: int, rows: int, program: Program
    ) -> None:
        tiles = self.turns[turn]
        # The mask of block n runs in iteration n + lag.
        lag = next(op.lag for op in program.phases.steady.operations if op.statement == "mask")
        trips = self.trips(plain, turn)
        behind = self.trips({line for line in lines if plain and line > max(plain)}, turn)
        for y in range(ys):
            row = tiles.row + rows * y
            begin = self.blocks[turn][0] - (program.phases.end - lag) + behind[:, y]
            first, end = tiles.whole(rows * y, rows)
            wrong = begin + trips[:, y] > end
            wrong |= begin < first
            wrong &= (row < tiles.sizes.seq_q) & (trips[:, y] > 0)
            if wrong.any():
                words = self._words(int(np.argmax(wrong)), turn)
                raise Unsafe(f"a KV block with hidden keys is not masked for {words}")

    def _moves(self, seen: Seen, place: Array) -> Iterator[tuple[str, tuple[Array, ...]]]:
        """Yields (name, possible bases) for each value of a Seen that moves with the place of the thread's tile.

        A base is subtracted before values of tiles are compared. One of the bases must fit all threads.
        """
        of, tiles = seen.values, self.turns[seen.turn]
        of_kv = (of.get("tensor") or seen.name) in ("K", "V")
        places = [tiles.place_of_block(end) for end in self.blocks[seen.turn]] if of_kv else [tiles.place()]
        bases = [self._of_threads(place, *of_tiles) for of_tiles in places]
        if seen.kind in ("tma load", "tma store"):
            yield from zip(("row", "head", "batch"), zip(*bases))
        elif of.get("tensor") and "source" in of:
            tensor = self._tensor(of["tensor"], place)
            sources = tuple(tensor.element(batch, head, row) for row, head, batch in bases)
            yield "source", sources
            if "inside" in of:
                rows = (row for row, _, _ in bases)
                yield (
                    "inside",
                    tuple(self._inside(of, source, tensor, row, of_kv, place) for source, row in zip(sources, rows)),
                )
        elif seen.kind in ("output", "rows of output", "rows of lse"):
            row, head, batch = self._of_threads(place, *tiles.place_of_results())
            tensor = self._tensor(seen.name, place)
            yield "element", (tensor.element(batch, head, row),)
            if "head_stride" in of:
                yield "head_stride", (np.asarray(tensor.head_stride),)
            yield "rows", self._of_threads(place, tiles.sizes.seq_q - tiles.row)
        elif seen.kind == PER_HEAD:
            yield "value", self._of_threads(place, tiles.head)

    def _of_threads(self, place: Array, *of_tiles: Value) -> tuple[Array, ...]:
        """Returns what each thread has of numbers, or arrays with an entry for each block."""
        blocks = self.turns[0].row.shape
        return tuple(np.broadcast_to(part, blocks)[place] for part in of_tiles)

    def _inside(
        self, of: Mapping[str, Any], base: Array, tensor: Tensor, row: Array, of_kv: bool, place: Array
    ) -> Array:
        """Returns, for each thread, 1 if the row that it copies is a row of the tensor, else 0."""
        own = row + (of["source"] - base) // tensor.row_stride
        sizes = self.turns[0].sizes
        return (own < (sizes.seq_kv if of_kv else sizes.seq_q)[place]).astype(int)

    def _tensor(self, name: str, place: Array) -> Tensor:
        """Returns the tensor of this name, with the strides that it has in each thread's own problem."""
        tensor = self.turns[0].tensors[name]
        strides = tuple(stride[place] if isinstance(stride, np.ndarray) else stride for stride in tensor.strides)
        return replace(tensor, strides=strides)

    def _words(self, place: int, turn: int = 0) -> str:
        tiles = self.turns[turn]
        sizes = ", ".join(str(int(size[place])) for size in tiles.sizes)
        tile = ", ".join(str(int(part[place])) for part in (tiles.row, tiles.head, tiles.batch))
        return f"(row, head, batch) {tile} of (batch, heads, seq_q, seq_kv) {sizes}"


def _leaders(kin: Array) -> tuple[Array, Array]:
    """Returns (the order that sorts an array, for each place in that order the place of the first equal number)."""
    order = np.argsort(kin, kind="stable")
    ranked = kin[order]
    return order, np.searchsorted(ranked, ranked)


def kv_loops(kernel: Kernel) -> list[For]:
    """Returns a kernel's loops that contain a product and are not unrolled.

    Threads that compute run these over KV blocks.
    """
    loops = [node for node in every(kernel.body) if isinstance(node, For) and not node.unrolled]
    return [
        loop for loop in loops if any(isinstance(node, Step) and node.kind in PRODUCTS for node in every(loop.body))
    ]


def unmasked(loops: Iterable[For]) -> set[int]:
    """Returns the line numbers of those of the loops in which no statement hides scores."""
    return {
        loop.line for loop in loops if not any(isinstance(node, Arithmetic) and node.mask for node in every(loop.body))
    }


def numbered(
    variant: Variant, rows: int, block_N: int, *, without_rows: bool = True, without_keys: bool = True
) -> tuple[Problems, Array]:
    """Returns sample problems, and for each problem the number of one of its tiles of `rows` rows.

    Problems without rows, which have no tile, and without keys are among them only if so said. Where sizes are fixed
    there is one problem, with many of its tiles.
    """
    if variant.sizes is None:
        sizes = drawn(variant.mask, rows, block_N, variant.group)
        kept = ((sizes.seq_q > 0) | without_rows) & ((sizes.seq_kv > 0) | without_keys)
        sizes = Problems(*(size[kept] for size in sizes))
        row_tiles = ceildiv(sizes.seq_q, rows)
        total = row_tiles * variant.heads_of_tiles(sizes.heads) * results(variant, sizes)
        return sizes, _drawn_numbers(row_tiles, total)
    fixed = variant.sizes
    total = ceildiv(fixed.seq_q, rows) * variant.heads_of_tiles(fixed.heads) * fixed.batch
    number = np.unique([*range(min(FIRST, total)), *np.linspace(0, total - 1, BETWEEN).astype(int)])
    sizes = Problems(*(np.full(len(number), size) for size in fixed))
    return sizes, number


def _drawn_numbers(row_tiles: Array, total: Array) -> Array:
    """Draws a tile's number for each problem, from all tiles, the first, the last, or the ends of a head's rows."""
    draw = np.random.default_rng(31)
    near = draw.integers(0, EDGE, len(total))
    anywhere = (draw.random(len(total)) * total).astype(int)
    at_an_end = anywhere // np.maximum(row_tiles, 1) * row_tiles + np.where(
        near % 2, near % 8 // 2, row_tiles - 1 - near % 8 // 2
    )
    found = np.stack([anywhere, near, total - 1 - near, at_an_end])[
        draw.integers(0, 4, len(total)), np.arange(len(total))
    ]
    return np.clip(found, 0, np.maximum(total - 1, 0))
