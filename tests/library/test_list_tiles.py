"""The kernel before the main one lists packed sequences' row tiles, or their parts, once each; the host runs it."""

from __future__ import annotations

import itertools
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
from tl_attention.kernels.backward.packed import LIST_SEQUENCES
from tl_attention.kernels.shared.device_code import DeviceCode
from tl_attention.kernels.warp_specialized.device_code import LIST_TILES, TIME_OF_TILES
from tl_attention.problem.mask import INTEGERS, Mask, ceildiv, sides
from tl_attention.problem.packed import (
    FEW,
    LEAST_BLOCKS,
    MERGE_LISTED,
    MOST_TILES,
    QUERY_WORDS,
    SEQUENCE,
    TILE_WORDS,
    TURNS_FROM,
    UNEVEN,
    places_of_parts,
    words_of_list,
)
from tl_attention.problem.tiling import TILE


class Kernel(NamedTuple):
    """A Kernel is what the kernel that lists tiles is compiled for, and how many blocks or clusters work at once."""

    rows: int
    cluster: int
    block_N: int
    block_M: int
    taper: int
    workers: int
    splits: bool = False

    @property
    def template(self) -> str:
        times = (round(32 * time) for time in (TILE, MERGE_LISTED, UNEVEN))
        split = (LEAST_BLOCKS, MOST_TILES, *times) if self.splits else (0,) * 5
        return f"tl_attention_list_tiles<{', '.join(map(str, (*self[:5], *split)))}>"


KERNELS = (
    Kernel(256, 2, 176, 128, 4, 66), Kernel(128, 1, 128, 128, 4, 5), Kernel(192, 1, 96, 192, 1, 1),
    Kernel(32, 1, 80, 128, 4, 132), Kernel(128, 1, 128, 128, 4, 132, True), Kernel(16, 1, 128, 128, 4, 132, True),
    Kernel(21, 1, 64, 64, 2, 264, True), Kernel(9, 1, 128, 64, 1, 20, True),
)  # fmt: skip
SPLITTING = [number for number, kernel in enumerate(KERNELS) if kernel.splits]
# The list is sorted by as many buckets.
BUCKETS = 32
UNTOUCHED = [0x55555555] * 8
NO_END = 2**31 - 1
# 100 batches of 100 problems.
BATCH = 100
SEEDS = range(100)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("listing"), LIST_TILES)


def compiled(folder: Path, listing: DeviceCode) -> Path:
    """Compiles the kernels for the host, with this device code."""
    (folder / "list_tiles.h").write_text(TIME_OF_TILES.text + listing.text)
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

    def of_few(self, rows: int) -> bool:
        """Says whether the sequence has one row tile, or is split."""
        return self.entry[7] > 0 or self.entry[2] <= rows


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
        return places_of_parts(self.kernel.workers, self.kv_heads) if self.kernel.splits else 0

    @property
    def words(self) -> int:
        return words_of_list(self.queries, len(self.begins_q) - 1, self.kernel.rows, self.room_for_parts)

    @property
    def room(self) -> int:
        """Returns for how many entries there is room. Sequences that overlap by wrong offsets may have more."""
        return self.queries // self.kernel.rows + len(self.begins_q) - 1 + self.room_for_parts

    @property
    def room_for_queries(self) -> int:
        return min(self.queries, self.room_for_parts // 2 * self.kernel.rows)

    def numbers(self) -> list[int]:
        """Returns what the program reads of the problem; offsets stand where used lengths are not given."""
        used = self.used_q or self.begins_q, self.used_k or self.begins_k
        results = self.room_for_parts * self.kv_heads * self.kernel.block_M
        room = self.kernel.workers, self.kv_heads, results, self.words
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
        """Returns each sequence's row tiles, and the fewest and most KV blocks of its first and its last tile."""
        found = []
        for place in self.places:
            tiles = ceildiv(place.queries, self.kernel.rows)
            ends = sorted(max(0, self.count(place, tile)) for tile in (0, tiles - 1)) if tiles else (0, 0)
            found.append((tiles, *ends))
        return found

    @cached_property
    def tried(self) -> list[int]:
        """Returns the most KV blocks of a part, of 32 lengths, which are shares of all work for each worker."""
        blocks = self.kv_heads * sum(tiles * (least + most) for tiles, least, most in self.work) / 2
        shares = (2 * blocks / self.kernel.workers * 2 ** (-n / 8) for n in range(32))
        return [max(LEAST_BLOCKS, math.ceil(share)) for share in shares]

    def parts(self, tiles: int, least: int, longest: int, most: int) -> int:
        """Returns how many parts a sequence's tiles have, of which the first and the last have so many KV blocks."""
        return ceildiv(longest, most) if tiles <= MOST_TILES and longest > most and 2 * least > longest else 1

    def time(self, most: int) -> float:
        """Returns how long all tiles take if parts have so many KV blocks at most, in times of a block."""
        # (Items, KV blocks of the shortest and the longest, parts) of a sequence.
        items = [
            (tiles * parts, least / parts, longest / parts, parts)
            for tiles, least, longest in self.work
            for parts in (self.parts(tiles, least, longest, most),)
            if tiles
        ]
        places = sum(count for count, _, _, parts in items if parts > 1)
        if places > self.room_for_parts:
            return math.inf
        longest, tile = max((math.ceil(high) for _, _, high, _ in items), default=0), round(32 * TILE) / 32
        workers = self.kernel.workers
        long, of_long = 0.0, 0.0
        for count, low, high, _ in items:
            begin = max(low, longest / 2)
            if high >= begin:
                own = count * ((high - begin) / (high - low) if high > low else 1)
                long, of_long = long + own, of_long + own * (begin + high) / 2
        all_items = self.kv_heads * sum(count for count, *_ in items)
        all_blocks = self.kv_heads * sum(tiles * (least + longest) for tiles, least, longest in self.work) / 2
        in_rounds = math.ceil(self.kv_heads * long / workers - 0.001) * (of_long / long + tile) if long else 0
        in_shares = (all_blocks + tile * all_items) / workers + (all_items > workers) * round(
            32 * UNEVEN
        ) / 32 * longest
        merging = (round(32 * MERGE_LISTED) + max(parts for *_, parts in items)) / 32 if places else 0
        return max(in_rounds, in_shares, longest + tile) + merging

    def items(self, most: int) -> tuple[list[Item], list[tuple[int, ...]], int]:
        """Returns the items of all tiles, the queries to be merged, and the longest item's KV blocks.

        Parts have `most` KV blocks at most, except those of tiles between the first and the last. Sequences are in
        their order.
        """
        rows, cluster = self.kernel[:2]
        base, longest = 0, 0
        items: list[Item] = []
        merged: list[tuple[int, ...]] = []
        for place, work in zip(self.places, self.work):
            tiles, number = range(ceildiv(place.queries, rows)), self.parts(*work, most)
            longest = max(longest, ceildiv(work[2], number))
            # Rows of a causal mask need the more keys the later they are.
            for tile in reversed(tiles) if self.mask.grows else tiles:
                if number == 1:
                    items.append(Item((tile * cluster, *place, 0, NO_END, 0), self.count(place, tile)))
                    continue
                blocks, own = self.blocks(place, tile), base + tile * number
                ends = [*accumulate(len(blocks) // number + (n < len(blocks) % number) for n in range(number))]
                parts = [blocks[first:end] for first, end in pairwise([0, *ends])]
                entries = ((tile * cluster, *place, part.start, part.stop, own + n) for n, part in enumerate(parts, 1))
                items += [Item(entry, entry[6] - entry[5]) for entry in entries]
            if number > 1:
                queries = range(place.queries)
                merged += [(place.q_begin + n, base + n // rows * number, number, n % rows) for n in queries]
                base += number * len(tiles)
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


def test_a_list_for_gradients_also_names_the_sequence_of_each_tile(program: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    of_gradients, named = compiled(tmp_path, LIST_SEQUENCES), 0
    for problem in (problem for problem in (drawn(rng) for _ in range(150)) if not problem.kernel.splits):
        given = np.array(problem.numbers(), dtype=np.int32).tobytes()
        runs = (subprocess.run([run], input=given, check=True, capture_output=True) for run in (program, of_gradients))
        plain, found = (np.frombuffer(run.stdout, dtype=np.int32) for run in runs)
        count = plain[0] + (plain[0] - plain[FEW]) * (plain[TURNS_FROM] > 0)
        assert found[:TILE_WORDS].tolist() == plain[:TILE_WORDS].tolist()
        entries, others = (x[TILE_WORDS : TILE_WORDS * (count + 1)].reshape(-1, TILE_WORDS) for x in (found, plain))
        assert entries[:, :SEQUENCE].tolist() == others[:, :SEQUENCE].tolist()
        for entry in entries.tolist():
            assert problem.places[entry[SEQUENCE]] == Place(*entry[1:5])
            named += entry[SEQUENCE] > 0
    assert named > 100


def check(problem: Packing, own: np.ndarray) -> bool:
    """Compares what the kernel left in the list, and behind it, with the model; returns whether a sequence is split."""
    most = int(own[4]) if problem.kernel.splits else NO_END
    if problem.kernel.splits:
        # The kernel reckons in fewer bits.
        assert min(abs(most - other) for other in problem.tried) <= 1
        assert problem.time(most) <= 1.001 * min(map(problem.time, problem.tried))
    items, merged, longest = problem.items(most)
    items, merged = items[: problem.room], merged[: problem.room_for_queries]
    assert own[0] == len(items) and own[problem.words :].tolist() == UNTOUCHED
    many = [item for item in items if not item.of_few(problem.kernel.rows)]
    # They have a second order where heads come one after the other, the last of which take turns.
    in_turns = min(problem.kv_heads, ceildiv(problem.kernel.taper * problem.kernel.workers, max(len(many), 1)))
    assert own[TURNS_FROM] == problem.kv_heads - in_turns and own[FEW] == len(items) - len(many)
    count = len(items) + len(many) * (in_turns < problem.kv_heads)
    entries = own[TILE_WORDS : TILE_WORDS * (count + 1)].reshape(-1, TILE_WORDS)
    buckets = [min(max(longest - item.blocks, 0) * BUCKETS // (longest + 1), BUCKETS - 1) for item in items]
    # Tiles of a bucket stay in their order.
    order = sorted(range(len(items)), key=lambda n: (not items[n].of_few(problem.kernel.rows), buckets[n]))
    wanted = [*(items[n].entry for n in order), *(item.entry for item in many)]
    assert [*map(tuple, entries.tolist())] == wanted[:count]
    if not problem.kernel.splits:
        return False
    begin = TILE_WORDS * (2 * problem.room + 1)
    assert own[1:4].tolist() == [len(merged), max((n for _, _, n, _ in merged), default=1), begin]
    queries = own[begin : begin + QUERY_WORDS * len(merged)].reshape(-1, QUERY_WORDS)
    assert [*map(tuple, queries.tolist())] == merged
    return bool(merged)


@pytest.mark.parametrize("seed", range(20))
def test_parts_have_places_and_all_that_their_sequence_sees(seed: int) -> None:
    """The model's parts, which are the kernel's, cover each block once and have distinct places that exist."""
    rng = random.Random(seed)
    for problem in (drawn(rng) for _ in range(300)):
        most = min(problem.tried, key=problem.time) if problem.kernel.splits else NO_END
        items, merged, _ = problem.items(most)
        parts = [item.entry for item in items if item.entry[7]]
        assert sorted(entry[7] for entry in parts) == [*range(1, len(parts) + 1)]
        assert len(parts) <= problem.room_for_parts
        for place in problem.places:
            own = [entry for entry in parts if entry[1:5] == place]
            queries = [query for query in merged if place.q_begin <= query[0] < place.q_begin + place.queries]
            if own and problem.places.count(place) == 1:
                for tile, of_tile in itertools.groupby(own, key=lambda entry: entry[0] // problem.kernel.cluster):
                    ranges = [range(*entry[5:7]) for entry in of_tile]
                    assert [block for part in ranges for block in part] == [*problem.blocks(place, tile)]
                    assert all(part for part in ranges) and len(ranges) > 1
                assert len(queries) >= place.queries
