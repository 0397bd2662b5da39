"""Cases are problems, each with a block that works on one of its tiles, drawn in a mutant's range and at its ends.

All of them run at once. Sizes are within the bounds of `problem/bounds.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from code_mutants.packed_cases import MOST_RESULTS, packed_tiles
from code_mutants.ranges import BLOCKS, KEYS, Range, log_drawn
from code_mutants.watched_run import Change, WatchedRun, Widths, integers_of_arithmetic
from tl_attention.codeproof.proof import Proof
from tl_attention.codeproof.read.nodes import Assign, all_nodes
from tl_attention.codeproof.run.threads import Threads
from tl_attention.codeproof.tiles.row_tile_proof import RowTileProof
from tl_attention.errors import InputError
from tl_attention.problem.bounds import GRID_YZ, LARGEST, check_sizes
from tl_attention.problem.lengths import Problems, windows
from tl_attention.problem.mask import WINDOW, Mask, ceildiv
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.problem.warpgroup import WARP, WARPS

# A block's tiles that run one after another; of packed sequences a tile shows whether there is one behind it.
TILES, PACKED_TILES = 2, 3
MOST_PARTS = 6
# So many blocks find no tile.
WITHOUT_TILE = 0.1
# More than any problem's tiles.
NO_TILE = 1 << 40
Array = np.ndarray
Named = dict[str, int]


@dataclass(frozen=True)
class Cases:
    """Cases have the sizes of each problem, the blocks of a cluster for each, and what the kernel reads at run time.

    A block is one of the launch; how much `later` the number of its tile is than that of its first, it is told.
    """

    proof: Proof
    sizes: Problems
    blocks: Array
    names: dict[str, Any]
    later: Array
    entries: Any = None
    # The lines on which a block takes its own number, or its cluster's, for that of its first tile.
    starts: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.sizes.heads)

    def words(self, thread: int, run: WatchedRun) -> str:
        """Says of which problem, and of which block, a thread is."""
        place = int(run.threads.place[thread])
        sizes = ", ".join(str(int(size[place // (len(self.blocks) // len(self))])) for size in self.sizes)
        given = {name: value[place] for name, value in self.names.items() if isinstance(value, np.ndarray)}
        more = {name: int(value) for name, value in given.items() if name not in Sizes._fields}
        more |= {"later by": int(self.later[place])} if self.later.any() else {}
        told = "".join(f", {name} {value}" for name, value in more.items())
        return f"(batch, heads, seq_q, seq_kv) {sizes}, block {int(self.blocks[place])}{told}"

    def run(self, change: Change | None, lanes: int, start: int) -> WatchedRun:
        """Runs the kernel of the cases' proof on all of them, for `lanes` lanes of each warp.

        It runs as if `start` loads of each ring, and as many tiles, had been before.
        """
        proof, code = self.proof, self.proof.code
        kernel, how = proof.kernel, {}
        if isinstance(proof, RowTileProof):
            threads = Threads(0 * self.blocks, 1, tuple(range(kernel.signature.threads // WARP)), lanes)
        else:
            cluster = proof.schedule.kernel.cluster
            threads = Threads(self.blocks, kernel.signature.threads // (WARP * WARPS), tuple(range(WARPS)), lanes)
            how = {
                "cluster": cluster,
                "counter": {"TileCounter": (0, _workers(proof) * cluster - 1)},
                "entries": self.entries,
            }
            how |= {"starts": self.starts, "later": self.later[threads.place]}
        names = {n: v[threads.place] if isinstance(v, np.ndarray) else v for n, v in self.names.items()}
        run = WatchedRun(
            kernel, threads, names, TILES, whole=False, start=start, **how,
            widths=Widths(frozenset(kernel.signature.of("int64_t"))), change=change,
            integers=integers_of_arithmetic(kernel, code.source),
        )  # fmt: skip
        run.go()
        return run

    def of(self, proof: Proof) -> Cases:
        """Returns the same cases for another text of the kernel."""
        return replace(self, proof=proof)


def drawn_cases(proof: Proof, of: Range | None, count: int, seed: str) -> Cases:
    """Draws so many problems of a kernel, fewer where bounds refuse them; a range's subject is in it, or at its ends.

    Where bounds refuse all of these, the range is left alone. Equal arguments give equal cases.
    """
    draw, variant = random.Random(seed), proof.code.variant
    proof.code = replace(proof.code, variant=replace(variant, mask=next(iter(windows(variant.mask, 1, 1)))))
    if variant.packed:
        return _packed(proof, of, count, draw)
    every = [*_problems(proof, variant, of, count, draw)] or [*_problems(proof, variant, None, count, draw)]
    sizes = Problems(*(np.array([named[name] for named in every]) for name in Sizes._fields))
    read = {name: np.array([named[name] for named in every]) for name in (*WINDOW, "part_blocks") if name in every[0]}
    read |= {"results": sizes.batch * np.array([named["parts"] for named in every])} if variant.parts else {}
    tiles = ceildiv(sizes.seq_q, proof.rows)
    heads = variant.heads_of_tiles(sizes.heads)
    total = tiles * heads * read.get("results", sizes.batch)
    specialized = not isinstance(proof, RowTileProof)
    beyond = _workers(proof) if specialized and _workers(proof) < LARGEST else 0
    number = np.array([_number(int(each), beyond, draw) for each in total])
    values = np.array([named.get("block", -1) for named in every])
    if not specialized:
        place = [
            number % np.maximum(tiles, 1),
            number // np.maximum(tiles, 1) % heads,
            number // np.maximum(tiles, 1) // heads,
        ]
        if of and of.subject in BLOCKS:
            own = BLOCKS.index(of.subject)
            # A kernel of fixed sizes has no such blocks, however large the range is.
            there = (values >= 0) & (values < (tiles, heads, read.get("results", sizes.batch))[own])
            place[own] = np.where(there, values, place[own])
        names = dict(zip(("blockIdx_x", "blockIdx_y", "blockIdx_z"), place))
        return Cases(proof, sizes, np.arange(len(number)), {**_names(proof, sizes), **read, **names}, 0 * number)
    of_blocks = number - number % _workers(proof) + values // proof.schedule.kernel.cluster
    number = np.where(values >= 0, of_blocks, number)
    return _of_clusters(proof, sizes, number, read)


def _of_clusters(proof: Proof, sizes: Problems, number: Array, read: dict[str, Any], entries: Any = None) -> Cases:
    cluster = proof.schedule.kernel.cluster
    if _workers(proof) == 1:
        # A single worker's code has no cluster number: it begins with the first tile.
        number = np.zeros_like(number)
    own = number % _workers(proof)
    blocks = np.repeat(own, cluster) * cluster + np.arange(len(number) * cluster) % cluster
    names = _names(proof, Problems(*(np.repeat(size, cluster) for size in sizes)))
    names |= {name: np.repeat(value, cluster) for name, value in read.items()}
    taken = [node for node in all_nodes(proof.kernel.body) if isinstance(node, Assign)]
    starts = frozenset(node.line for node in taken if "blockIdx_x" in node.expression.names)
    return Cases(proof, sizes, blocks, names, np.repeat(number - own, cluster), entries, starts)


def _names(proof: Proof, sizes: Problems) -> dict[str, Any]:
    """Returns, by name, the sizes of many problems, and what is the same in all: strides, each unlike the others."""
    variant = proof.code.variant
    strides = [stride for parameter in proof.code.parameters for stride in parameter.strides]
    others: dict[str, Any] = {"group": variant.some_group, "heads_kv": sizes.heads // variant.some_group}
    others["workers"] = proof.schedule.workers(variant.card.sms)
    # Pages of any table: their rows stay within 32 bits.
    others |= {"page_size": 2 * variant.key_box, "page_rows": variant.key_box, "pages": 9} if variant.key_box else {}
    others |= {"results": MOST_RESULTS} if variant.packed and variant.parts else {}
    return {**sizes._asdict(), **{name: 2**20 + 40 * n for n, name in enumerate(strides)}, **others}


def _workers(proof: Proof) -> int:
    """Returns how many clusters a launch has: one for each tile, or at most as many as run at once."""
    one_tile = proof.schedule.kernel.tile_scheduler == "one_tile"
    return LARGEST if one_tile else proof.schedule.workers(proof.code.variant.card.sms)


def _packed(proof: Proof, of: Range | None, count: int, draw: random.Random) -> Cases:
    given = packed_tiles(proof, of, PACKED_TILES, count, draw)
    tiles, step = given.tiles, _workers(proof)
    number, counted = tiles.number, 0
    # Which tiles come next is asked for in turn, as the run does.
    for _ in range(PACKED_TILES):
        there = number < tiles.row_tiles * tiles.heads
        tiles.found(tiles.entry(np.where(there, number, 0)), there)
        if proof.schedule.kernel.tile_scheduler == "dynamic":
            # A block without a tile draws no other one.
            number = np.where(there, counted + np.cumsum(there) - 1 + step, NO_TILE)
            counted += int(there.sum())
        else:
            number = number + step
    return _of_clusters(proof, tiles.sizes, tiles.number, given.read, tiles)


def _number(total: int, beyond: int, draw: random.Random) -> int:
    """Draws the number of a tile: anywhere, or near an end, or `beyond` the last one at most, where there is none."""
    near = draw.randrange(40)
    if beyond and draw.random() < WITHOUT_TILE:
        return total + draw.choice([0, draw.randrange(beyond)])
    number = draw.choice([near, total - 1 - near, int(draw.random() * total)])
    return min(max(number, 0), max(total - 1, 0))


def _problems(proof: Proof, variant: Variant, of: Range | None, count: int, draw: random.Random) -> Iterator[Named]:
    """Yields the sizes of problems, and what else the kernel reads, by name; `block` is a value of blockIdx."""
    for _ in range(count):
        if variant.sizes:
            of_block = of is not None and of.subject in BLOCKS
            yield variant.sizes._asdict() | ({"block": of.value(variant.some_group, draw)} if of and of_block else {})
            continue
        fixed = _fixed(proof, of, of.value(variant.some_group, draw), draw) if of else _end(variant, draw)
        found = _drawn_sizes(proof, variant, draw) | fixed
        if proof.schedule.kernel.tile_order == "sections":
            found["seq_kv"] = max(found["seq_kv"], 1)
        if _shrink(found, {*fixed}, variant):
            yield found


def _fixed(proof: Proof, of: Range, value: int, draw: random.Random) -> Named:
    """Returns the sizes that follow from a value of a range's subject."""
    group = proof.code.variant.some_group
    if of.subject == "results":
        parts = draw.choice([n for n in range(1, MOST_PARTS) if value % n == 0])
        return {"batch": value // parts, "parts": parts}
    if of.subject == BLOCKS[0] and isinstance(proof, RowTileProof):
        tiles = value + 1 + log_drawn(draw, 0, value + 8)
        return {"seq_q": tiles * proof.rows - draw.randrange(proof.rows), "block": value}
    if of.subject == BLOCKS[0]:
        return {"block": value}
    if of.subject == BLOCKS[1]:
        groups = value // group + 1 + log_drawn(draw, 0, (GRID_YZ - value) // group)
        return {"heads": min(groups, GRID_YZ // group) * group, "block": value}
    if of.subject == BLOCKS[2]:
        return {"batch": min(value + 1 + log_drawn(draw, 0, GRID_YZ - value), GRID_YZ), "block": value}
    return {of.subject: value} if of.subject.isidentifier() else {}


def _end(variant: Variant, draw: random.Random) -> Named:
    """Returns, sometimes, a size that is as large or as small as it may be."""
    ends = {"batch": (1, GRID_YZ), "heads": (variant.some_group, GRID_YZ // variant.some_group * variant.some_group)}
    ends |= {"seq_q": (0, KEYS), "seq_kv": (0, KEYS)}
    name = draw.choice([*ends])
    return {name: draw.choice(ends[name])} if draw.random() < 0.25 else {}


def _drawn_sizes(proof: Proof, variant: Variant, draw: random.Random) -> Named:
    rows, block_N, group = proof.rows, proof.schedule.block_N, variant.some_group
    small = draw.random() < 0.5
    most = 9 * max(rows, block_N) if small else KEYS
    lengths = [_near(log_drawn(draw, 1, most), tile, draw) for tile in (rows, block_N)]
    if draw.random() < 0.4:
        # Queries and keys of about one number, as they have in training.
        lengths[1] = max(0, lengths[0] + draw.choice([0, 0, 1, draw.randrange(-block_N, block_N), 3 * block_N]))
    found = {
        "batch": log_drawn(draw, 1, 6 if small else GRID_YZ),
        "heads": group * log_drawn(draw, 1, 9 if small else GRID_YZ // group),
        "seq_q": lengths[0], "seq_kv": lengths[1],
    }  # fmt: skip
    sides = [side for side in WINDOW if side in {name for _, name in proof.kernel.signature.parameters}]
    found |= {side: _near(log_drawn(draw, 0, 6 * block_N if small else KEYS), block_N, draw) for side in sides}
    if variant.parts:
        found |= {"parts": draw.randrange(1, MOST_PARTS), "part_blocks": log_drawn(draw, 1, 9 if small else KEYS >> 7)}
    return found


def _near(length: int, tile: int, draw: random.Random) -> int:
    """Returns the length, or the whole tiles in it, or 1 more or less, or a number smaller than a tile."""
    whole = max(length // tile, 1) * tile
    return draw.choice([length, whole, whole - 1, whole + 1, min(length, draw.randrange(1, tile))])


def _shrink(found: Named, fixed: set[str], variant: Variant) -> bool:
    """Halves sizes that are not fixed until bounds allow the problem; returns False where they never do."""
    least = {"batch": 1, "heads": variant.some_group, "seq_q": 1, "seq_kv": 1, **dict.fromkeys(WINDOW, 0)}
    while not _allowed(found, variant):
        open_ones = [name for name in least if name in found and name not in fixed and found[name] > least[name]]
        if not open_ones:
            return False
        name = max(open_ones, key=lambda name: found[name] / max(least[name], 1))
        found[name] = max(found[name] // 2 // max(least[name], 1) * max(least[name], 1), least[name])
    return True


def _allowed(found: Named, variant: Variant) -> bool:
    mask = variant.mask
    sides = [found.get(name, side) for name, side in zip(WINDOW, (mask.left, mask.right))]
    every = found["batch"] * found.get("parts", 1)
    heads = found["heads"]
    try:
        check_sizes(every, heads, heads // variant.some_group, found["seq_q"], found["seq_kv"], Mask(*sides))
    except InputError:
        return False
    return True
