"""The small kernel before the main one lists each row tile of packed sequences once, in two orders; here the host runs it."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from tiers import sampled

from tl_attention.compiler.toolchain import host_compiler
from tl_attention.kernels.warp_specialized.device_code import GATHER_ROWS, LIST_TILES
from tl_attention.kernels.warp_specialized.launches import gathering_blocks
from tl_attention.problem.mask import INTEGERS, Mask, ceildiv, sides
from tl_attention.problem.packed import TILE_WORDS, words_of_list
from tl_attention.problem.variant import Variant

# block_M, thread blocks of a cluster, block_N, and the heads whose rows lie behind each other for a query.
TILES = ((128, 2, 176, 1), (128, 1, 128, 1), (192, 1, 96, 1), (64, 1, 128, 8), (64, 2, 64, 3), (128, 1, 80, 4))
# Columns, and such heads.
GATHERED = ((64, 1), (128, 8), (72, 3))
# The second list is sorted by as many buckets.
BUCKETS = 32
UNTOUCHED = [0x55555555] * 8
# 100 batches of 100 problems.
BATCH = 100
SEEDS = range(100)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the kernels for the host."""
    folder = tmp_path_factory.mktemp("listing")
    (folder / "list_tiles.h").write_text(LIST_TILES.text)
    (folder / "gather_rows.h").write_text(GATHER_ROWS.text)
    lists = ", ".join(f"tl_attention_list_tiles<{', '.join(map(str, tile))}>" for tile in TILES)
    gathers = ", ".join(f"tl_attention_gather_rows<{columns}, {heads}>" for columns, heads in GATHERED)
    defined = [f"-DLIST_KERNELS={lists}", f"-DGATHER_KERNELS={gathers}"]
    compiler = [host_compiler() or "c++", "-std=c++20", "-O1", f"-I{folder}", *defined]
    subprocess.run([*compiler, Path(__file__).with_name("list_on_host.cpp"), "-o", folder / "run"], check=True)
    return folder / "run"


@dataclass(frozen=True)
class Packing:
    """A Packing is a problem of packed sequences, as a kernel that lists its tiles is told of it."""

    tile: int
    mask: Mask
    begins_q: list[int]
    begins_k: list[int]
    used_q: list[int] | None
    used_k: list[int] | None
    queries: int
    keys: int
    parts: int

    @property
    def row_heads(self) -> int:
        return TILES[self.tile][3]

    @property
    def rows(self) -> int:
        """Returns how many rows a tile has."""
        block_M, cluster, _, _ = TILES[self.tile]
        return block_M * cluster

    @property
    def words(self) -> int:
        return words_of_list(self.queries * self.row_heads, len(self.begins_q) - 1, self.rows)

    def numbers(self) -> list[int]:
        """Returns what the program reads of the problem, with the offsets in the place of used lengths that are not there."""
        used = self.used_q or self.begins_q, self.used_k or self.begins_k
        counts = len(self.begins_q), *map(len, used), self.queries * self.row_heads, self.keys, self.parts, self.words
        return [0, self.tile, *sides(self.mask), *counts, *self.begins_q, *self.begins_k, *used[0], *used[1]]

    @property
    def places(self) -> list[tuple[int, int, int, int]]:
        """Returns where each sequence's queries and keys begin, and how many it has; wrong offsets are cut to the tensors."""
        of_q = cut(self.begins_q, self.used_q, self.queries)
        return [(*q, *k) for q, k in zip(of_q, cut(self.begins_k, self.used_k, self.keys))]


def cut(begins: Sequence[int], used: Sequence[int] | None, total: int) -> list[tuple[int, int]]:
    """Returns (first row, rows) of each sequence, none of which leaves a tensor of so many rows."""
    found = []
    for n in range(len(begins) - 1):
        begin = min(max(begins[n], 0), total)
        length = min(max(begins[n + 1], begin), total) - begin
        found.append((begin, length if used is None else min(max(used[n], 0), length)))
    return found


def drawn(rng: random.Random) -> Packing:
    """Draws a problem of a few sequences, seldom of many; seldom with wrong offsets."""
    many, wrong = rng.random() < 0.01, rng.random() < 0.1
    sequences = rng.randint(1000, 2500) if many else rng.choice((1, 2, 3, 8, 40))
    most_q, most_k = rng.choice((1, 5, 130) if many else (1, 5, 300, 3000)), rng.choice((1, 200, 5000))
    left, right = rng.choice((None, 0, 5, 200, 3000)), rng.choice((None, 0, 0, 3, 500))

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
    number, parts = rng.randrange(len(TILES)), rng.choice((1, 1, 2, 7, 40))
    return Packing(number, Mask(left, right), begins_q, begins_k, used_q, used_k, queries, keys, parts)


def listed(problem: Packing) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns the entries of all row tiles, sequence by sequence, and the bucket that each is sorted into, the longest first."""
    _, cluster, block_N, row_heads = TILES[problem.tile]
    found, lengths, mask = [], [], problem.mask
    longest = max((ceildiv(keys, block_N) for _, rows, _, keys in problem.places if rows), default=0)
    for q_begin, queries, k_begin, keys in problem.places:
        tiles = range(ceildiv(queries * row_heads, problem.rows))
        # Rows of a causal mask need the more keys the later they are.
        for tile in reversed(tiles) if mask.grows else tiles:
            first_query, last_query = tile * problem.rows // row_heads, ((tile + 1) * problem.rows - 1) // row_heads
            first_key, end_key = first_query + keys - queries, last_query + keys - queries + 1
            end = mask.end_block(ceildiv(keys, block_N), end_key, block_N, INTEGERS)
            lengths.append(max(end, 0) - mask.first_block(first_key, block_N, INTEGERS))
            place = q_begin * row_heads, queries * row_heads, k_begin, keys
            found.append((tile * cluster, *place, 0, 0, max(1, ceildiv(longest, problem.parts))))
    buckets = [min(max(longest - length, 0) * BUCKETS // (longest + 1), BUCKETS - 1) for length in lengths]
    return found[: room(problem)], buckets[: room(problem)]


def room(problem: Packing) -> int:
    """Returns for how many tiles there is room. Sequences that overlap, as wrong offsets say it, may have more."""
    return ((problem.words - len(problem.begins_q)) // TILE_WORDS - 1) // 2


def rows_of_tiles(problem: Packing, entries: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns for each row of the results whether a tile has it."""
    found = np.zeros(problem.queries * problem.row_heads, dtype=bool)
    for first, begin, length, *_ in entries:
        first_row = first * TILES[problem.tile][0]
        found[begin + first_row : begin + min(first_row + problem.rows, length)] = True
    return found


def rows_of_sequences(problem: Packing) -> np.ndarray:
    """Returns for each row of the results whether it is a sequence's."""
    found = np.zeros((problem.queries, problem.row_heads), dtype=bool)
    for begin, queries, _, _ in problem.places:
        found[begin : begin + queries] = True
    return found.ravel()


@pytest.mark.parametrize("seed", sampled(SEEDS, [0]))
def test_each_row_tile_is_listed_once_in_both_orders(seed: int, program: Path) -> None:
    rng = random.Random(seed)
    problems = [drawn(rng) for _ in range(BATCH)]
    given = np.concatenate([np.array(problem.numbers(), dtype=np.int32) for problem in problems])
    output = subprocess.run([program], input=given.tobytes(), check=True, capture_output=True, timeout=500).stdout
    found = np.frombuffer(output, dtype=np.int32)
    for problem in problems:
        own, found = found[: problem.words + len(UNTOUCHED)], found[problem.words + len(UNTOUCHED) :]
        check(problem, own)
    assert not found.size


def check(problem: Packing, own: np.ndarray) -> None:
    """Compares what the kernel left in the list, and behind it, with the model."""
    tiles, buckets = listed(problem)
    assert own[0] == len(tiles) and own[problem.words :].tolist() == UNTOUCHED
    entries = own[TILE_WORDS : TILE_WORDS * (2 * len(tiles) + 1)].reshape(-1, TILE_WORDS)
    by_sequence, longest_first = ([tuple(row) for row in half.tolist()] for half in np.split(entries, 2))
    assert by_sequence == tiles
    # Where keys are in parts, rows that no tile has stay marked.
    assert np.array_equal(rows_of_tiles(problem, by_sequence), rows_of_sequences(problem)) or len(tiles) == room(
        problem
    )
    # Tiles of a bucket stay in their order.
    assert longest_first == [tiles[n] for n in sorted(range(len(tiles)), key=lambda n: buckets[n])]


@pytest.mark.parametrize("kernel", range(len(GATHERED)))
def test_queries_are_copied_and_rows_marked_as_no_sequences(kernel: int, program: Path) -> None:
    """A kernel writes the LSE of its tiles' rows. What is still marked then is no sequence's."""
    (columns, row_heads), rng = GATHERED[kernel], random.Random(kernel)
    for queries in (1, 7, 500):
        heads, gap = rng.choice((1, 3)), rng.choice((0, 8))
        head_stride = columns + gap
        row_stride = heads * row_heads * head_stride + gap
        count = queries * row_heads
        blocks = gathering_blocks(count, heads, Variant(columns, "float16"), INTEGERS)
        given = [1, kernel, count, heads, row_stride, head_stride, columns, blocks, queries * row_stride]
        output = subprocess.run(
            [program], input=np.array(given, dtype=np.int32).tobytes(), check=True, capture_output=True
        )
        numbers = (np.arange(queries * row_stride, dtype=np.uint64) * 2654435761 % 2**32 >> 16).astype(np.uint16)
        of_heads = numbers.reshape(queries, row_stride)[:, : heads * row_heads * head_stride]
        wanted = of_heads.reshape(queries, heads, row_heads, head_stride)[..., :columns].swapaxes(1, 2)
        size = 2 * count * heads * columns
        assert np.array_equal(np.frombuffer(output.stdout[:size], dtype=np.uint16), wanted.ravel())
        marks = np.frombuffer(output.stdout[size:], dtype=np.int32)
        assert len(marks) == count * heads and (marks == -1).all()
