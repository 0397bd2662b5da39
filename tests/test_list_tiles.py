"""The small kernel before the main one lists each row tile of packed sequences once, or each of its parts; here the host runs it."""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tiers import sampled

from tl_attention.compiler.toolchain import host_compiler
from tl_attention.kernels.warp_specialized.device_code import LIST_TILES, TIME_OF_TILES
from tl_attention.problem.mask import INTEGERS, Mask, ceildiv, sides
from tl_attention.problem.packed import LEAST_BLOCKS, QUERY_WORDS, TILE_WORDS, places_of_parts, words_of_list
from tl_attention.problem.tiling import MERGE, TILE


class Kernel(NamedTuple):
    """A Kernel is what the one that lists tiles is compiled for; it splits sequences if `workers` blocks work at once."""

    rows: int
    cluster: int
    block_N: int
    block_M: int
    tile_heads: int = 1
    workers: int = 0

    @property
    def template(self) -> str:
        split = (LEAST_BLOCKS, self.workers, round(32 * TILE), round(32 * MERGE)) if self.workers else (0, 1, 0, 0)
        return f"tl_attention_list_tiles<{', '.join(map(str, (*self[:5], *split)))}>"


KERNELS = (
    Kernel(256, 2, 176, 128), Kernel(128, 1, 128, 128), Kernel(192, 1, 96, 192), Kernel(32, 1, 80, 128, 4),
    Kernel(128, 1, 128, 128, 1, 132), Kernel(16, 1, 128, 128, 8, 132), Kernel(21, 1, 64, 64, 3, 264), Kernel(9, 1, 128, 64, 7, 20),
)  # fmt: skip
SPLITTING = [number for number, kernel in enumerate(KERNELS) if kernel.workers]
# The list is sorted by as many buckets.
BUCKETS = 32
UNTOUCHED = [0x55555555] * 8
NO_END = 2**31 - 1
# 100 batches of 100 problems.
BATCH = 100
SEEDS = range(100)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the kernels for the host."""
    folder = tmp_path_factory.mktemp("listing")
    (folder / "list_tiles.h").write_text(TIME_OF_TILES.text + LIST_TILES.text)
    lists = ", ".join(kernel.template for kernel in KERNELS)
    compiler = [host_compiler() or "c++", "-std=c++20", "-O1", f"-I{folder}", f"-DLIST_KERNELS={lists}"]
    subprocess.run([*compiler, Path(__file__).with_name("list_on_host.cpp"), "-o", folder / "run"], check=True)
    return folder / "run"


class Place(NamedTuple):
    """A Place says where a sequence's queries and keys begin, and how many it has."""

    q_begin: int
    queries: int
    k_begin: int
    keys: int


class Item(NamedTuple):
    """An Item is what the list should have of a tile, or of a part of it, and how many KV blocks that visits."""

    entry: tuple[int, ...]
    blocks: int


@dataclass(frozen=True)
class Packing:
    """A Packing is a problem of packed sequences, as a kernel that lists its tiles is told of it."""

    number: int
    mask: Mask
    begins_q: list[int]
    begins_k: list[int]
    used_q: list[int] | None
    used_k: list[int] | None
    queries: int
    keys: int
    kv_heads: int

    @property
    def kernel(self) -> Kernel:
        return KERNELS[self.number]

    @property
    def room_for_parts(self) -> int:
        """Returns how many places each head has for results of parts."""
        return places_of_parts(self.kernel.workers, self.kv_heads)

    @property
    def words(self) -> int:
        return words_of_list(self.queries, len(self.begins_q) - 1, self.kernel.rows, self.room_for_parts)

    @property
    def room(self) -> int:
        """Returns for how many entries there is room. Sequences that overlap, as wrong offsets say it, may have more."""
        return self.queries // self.kernel.rows + len(self.begins_q) - 1 + self.room_for_parts

    @property
    def room_for_queries(self) -> int:
        return min(self.queries, self.room_for_parts // 2 * self.kernel.rows)

    def numbers(self) -> list[int]:
        """Returns what the program reads of the problem, with the offsets in the place of used lengths that are not there."""
        used = self.used_q or self.begins_q, self.used_k or self.begins_k
        results = self.room_for_parts * self.kv_heads * self.kernel.block_M
        room = self.kv_heads * self.kernel.tile_heads, results, self.words
        counts = len(self.begins_q), *map(len, used), self.queries, self.keys, *room
        return [self.number, *sides(self.mask), *counts, *self.begins_q, *self.begins_k, *used[0], *used[1]]

    @property
    def places(self) -> list[Place]:
        """Returns the Place of each sequence; wrong offsets are cut to the tensors."""
        of_q = cut(self.begins_q, self.used_q, self.queries)
        return [Place(*q, *k) for q, k in zip(of_q, cut(self.begins_k, self.used_k, self.keys))]

    def blocks(self, place: Place, tile: int) -> range:
        """Returns the KV blocks that a row tile visits."""
        rows, block_N, past = self.kernel.rows, self.kernel.block_N, place.keys - place.queries
        end = self.mask.end_block(ceildiv(place.keys, block_N), (tile + 1) * rows + past, block_N, INTEGERS)
        return range(self.mask.first_block(tile * rows + past, block_N, INTEGERS), max(end, 0))

    def count(self, place: Place, tile: int) -> int:
        blocks = self.blocks(place, tile)
        return blocks.stop - blocks.start

    @cached_property
    def work(self) -> list[tuple[int, int, int]]:
        """Returns each sequence's row tiles, and the KV blocks of the shortest and the longest of its first and its last."""
        found = []
        for place in self.places:
            tiles = ceildiv(place.queries, self.kernel.rows)
            ends = sorted(max(0, self.count(place, tile)) for tile in (0, tiles - 1)) if tiles else (0, 0)
            found.append((tiles, *ends))
        return found

    @cached_property
    def most(self) -> int:
        """Returns how many KV blocks a part has at most: of 32 numbers that with which all takes the least time."""
        if not self.kernel.workers:
            return NO_END
        twice = self.kv_heads * sum(tiles * (least + most) for tiles, least, most in self.work)
        shares = [round(512 * 2 ** (-n / 8)) >> m for m in range(4) for n in range(8)]
        tried = [max(LEAST_BLOCKS, ceildiv(twice * share, 512 * self.kernel.workers)) for share in shares]
        times = [self.time(most) for most in tried]
        return tried[times.index(min(times))]

    def time(self, most: int) -> float:
        """Returns how long all tiles take if parts have so many KV blocks at most, in 32nds of the time of a block."""
        tiles = [
            ((blocks, blocks // parts, parts) if parts > 1 else (count * (low + blocks) / 2, low, count), blocks, parts)
            for count, low, blocks in self.work
            for parts in (max(1, ceildiv(blocks, most)) if count == 1 else 1,)
        ]
        longest = max((ceildiv(blocks, parts) for _, blocks, parts in tiles), default=0)
        split = [parts for _, _, parts in tiles if parts > 1]
        long, of_long = 0, 0
        for (total, low, count), blocks, parts in tiles:
            high = ceildiv(blocks, parts)
            if 2 * low > longest:
                own, own_blocks = count, int(total)
            elif 2 * high > longest:
                own = blocks % parts if parts > 1 else max(1, count * (2 * high - longest) // (2 * (high - low)))
                own_blocks = own * high if parts > 1 else own * (2 * high + longest) // 4
            else:
                continue
            long, of_long = long + own * self.kv_heads, of_long + own_blocks * self.kv_heads
        tile, workers = round(32 * TILE), self.kernel.workers
        items = self.kv_heads * sum(count for (_, _, count), _, _ in tiles)
        all_blocks = sum(count * (low + blocks) for count, low, blocks in self.work) // 2 * self.kv_heads
        in_rounds = ceildiv(long, workers) * (32 * of_long // long + tile) if long else 0
        found = max(in_rounds, (32 * all_blocks + tile * items) // workers, 32 * longest + tile)
        if sum(split) > self.room_for_parts:
            return math.inf
        return found + (round(32 * MERGE) + max(split) if split else 0)

    def items(self) -> tuple[list[Item], list[tuple[int, ...]], int]:
        """Returns the items of all tiles, sequence by sequence, the queries to be merged, and the longest item's KV blocks."""
        rows, cluster, block_N = self.kernel[:3]
        most, base, longest = self.most, 0, 0
        items: list[Item] = []
        merged: list[tuple[int, ...]] = []
        for place in self.places:
            tiles = range(ceildiv(place.queries, rows))
            blocks = self.blocks(place, 0)
            if len(tiles) == 1 and len(blocks) > most:
                number = ceildiv(len(blocks), most)
                ends = [*accumulate(len(blocks) // number + (n < len(blocks) % number) for n in range(number))]
                parts = [blocks[first:end] for first, end in pairwise([0, *ends])]
                merged += [(place.q_begin + query, base, len(parts), query) for query in range(place.queries)]
                for part in parts:
                    base += 1
                    items.append(Item((0, *place, part.start, part.stop, base), len(part)))
                longest = max(longest, len(parts[0]))
                continue
            # Rows of a causal mask need the more keys the later they are.
            for tile in reversed(tiles) if self.mask.grows else tiles:
                items.append(Item((tile * cluster, *place, 0, NO_END, 0), self.count(place, tile)))
            alone = self.kernel.workers and len(tiles) == 1
            if tiles:
                longest = max(longest, self.count(place, 0) if alone else ceildiv(place.keys, block_N))
        return items, merged, longest


def cut(begins: Sequence[int], used: Sequence[int] | None, total: int) -> Iterator[tuple[int, int]]:
    """Yields (first row, rows) of each sequence, none of which leaves a tensor of so many rows."""
    for n in range(len(begins) - 1):
        begin = min(max(begins[n], 0), total)
        length = min(max(begins[n + 1], begin), total) - begin
        yield begin, length if used is None else min(max(used[n], 0), length)


def drawn(rng: random.Random) -> Packing:
    """Draws a problem of a few sequences, seldom of many; seldom with wrong offsets."""
    many, wrong = rng.random() < 0.01, rng.random() < 0.1
    sequences = rng.randint(1000, 2500) if many else rng.choice((1, 2, 3, 8, 40))
    most_q, most_k = (
        rng.choice((1, 5, 130) if many else (1, 1, 5, 300, 3000)),
        rng.choice((1, 200, 5000, 100_000, 100_000)),
    )
    left, right = rng.choice((None, None, None, 0, 5, 200, 3000)), rng.choice((None, 0, 0, 3, 500))

    def offsets(most: int) -> tuple[list[int], list[int] | None, int]:
        lengths = [rng.choice((0, 1, most, rng.randint(0, most), rng.randint(0, most))) for _ in range(sequences)]
        begins = [*accumulate(lengths, initial=rng.choice((0, 0, 7)))]
        used = [rng.randint(0, length) for length in lengths] if rng.random() < 0.4 else None
        total = begins[-1] + rng.choice((0, 0, 1, 100))
        if wrong:
            begins = [begin + rng.choice((0, 0, 0, -most, most)) for begin in begins]
            used = used and [length + rng.choice((0, -most, most)) for length in used]
        return begins, used, total

    (begins_q, used_q, queries), (begins_k, used_k, keys) = offsets(most_q), offsets(most_k)
    number, heads = rng.choice((*range(len(KERNELS)), *SPLITTING, *SPLITTING)), rng.choice((1, 1, 2, 8, 32))
    return Packing(number, Mask(left, right), begins_q, begins_k, used_q, used_k, queries, keys, heads)


@pytest.mark.parametrize("seed", sampled(SEEDS, [0]))
def test_each_row_tile_is_listed_once_or_its_parts(seed: int, program: Path) -> None:
    rng = random.Random(seed)
    problems = [drawn(rng) for _ in range(BATCH)]
    given = np.concatenate([np.array(problem.numbers(), dtype=np.int32) for problem in problems])
    output = subprocess.run([program], input=given.tobytes(), check=True, capture_output=True, timeout=500).stdout
    found, split = np.frombuffer(output, dtype=np.int32), 0
    for problem in problems:
        own, found = found[: problem.words + len(UNTOUCHED)], found[problem.words + len(UNTOUCHED) :]
        split += check(problem, own)
    assert not found.size and split > 2


def check(problem: Packing, own: np.ndarray) -> bool:
    """Compares what the kernel left in the list, and behind it, with the model; returns whether a sequence is split."""
    items, merged, longest = problem.items()
    items, merged = items[: problem.room], merged[: problem.room_for_queries]
    assert own[0] == len(items) and own[problem.words :].tolist() == UNTOUCHED
    entries = own[TILE_WORDS : TILE_WORDS * (len(items) + 1)].reshape(-1, TILE_WORDS)
    buckets = [min(max(longest - item.blocks, 0) * BUCKETS // (longest + 1), BUCKETS - 1) for item in items]
    # Tiles of a bucket stay in their order.
    wanted = [items[n].entry for n in sorted(range(len(items)), key=lambda n: buckets[n])]
    assert [*map(tuple, entries.tolist())] == wanted
    if not problem.kernel.workers:
        return False
    begin = TILE_WORDS * (problem.room + 1)
    assert own[1:4].tolist() == [len(merged), max((n for _, _, n, _ in merged), default=1), begin]
    queries = own[begin : begin + QUERY_WORDS * len(merged)].reshape(-1, QUERY_WORDS)
    assert [*map(tuple, queries.tolist())] == merged
    return bool(merged)


@pytest.mark.parametrize("seed", range(20))
def test_parts_have_places_and_all_that_their_sequence_sees(seed: int) -> None:
    """The model's parts, which the kernel's are, cover each block once, and have places of their own, of those there are."""
    rng = random.Random(seed)
    for problem in (drawn(rng) for _ in range(300)):
        items, merged, _ = problem.items()
        parts = [item.entry for item in items if item.entry[7]]
        assert [entry[7] for entry in parts] == [*range(1, len(parts) + 1)] and len(parts) <= problem.room_for_parts
        for place in problem.places:
            own = [range(*entry[5:7]) for entry in parts if entry[1:5] == place]
            queries = [query for query in merged if place.q_begin <= query[0] < place.q_begin + place.queries]
            if own and problem.places.count(place) == 1:
                assert [block for part in own for block in part] == [*problem.blocks(place, 0)]
                assert len(queries) >= place.queries and all(part for part in own) and len(own) > 1
