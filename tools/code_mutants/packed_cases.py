"""Tiles of packed sequences are drawn as in the proof; the subject of a mutant's range is in it or at its ends."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from code_mutants.drawn_tiles import DrawnTiles
from code_mutants.ranges import BLOCKS, KEYS, WORD_OF, WORDS, Range, log_drawn
from tl_attention.codeproof.proof import Proof
from tl_attention.problem.mask import WINDOW, ceildiv

Array = np.ndarray
# Rows of tiles in which parts of sequences have their results.
MOST_RESULTS = 1 << 20
# How many of the tiles have a value of the range.
SHARE = 0.8
# So many blocks find no tile.
WITHOUT_TILE = 0.1


@dataclass(frozen=True)
class PackedTiles:
    """PackedTiles are drawn tiles, and what else the kernel reads at run time, by name."""

    tiles: DrawnTiles
    read: dict[str, Any]


def packed_tiles(proof: Proof, of: Range | None, turns: int, count: int, draw: random.Random) -> PackedTiles:
    """Draws at least `count` tiles, with the tiles that follow them."""
    tiles = DrawnTiles.of(proof.schedule, proof.code.variant, proof.rows, turns)
    some = np.array(sorted(draw.sample(range(len(tiles.number)), min(count, len(tiles.number)))))
    for name in ("row_tiles", "number", "many", "in_turns"):
        setattr(tiles, name, getattr(tiles, name)[some])
    tiles.sizes = type(tiles.sizes)(*(size[some] for size in tiles.sizes))
    tiles.fields = [fields[:, some] for fields in tiles.fields]
    block_N = proof.schedule.block_N
    sides = [side for side in WINDOW if side in {name for _, name in proof.kernel.signature.parameters}]
    read = {side: np.array([log_drawn(draw, 0, draw.choice([6 * block_N, KEYS])) for _ in some]) for side in sides}
    if of:
        of_range = np.flatnonzero([draw.random() < SHARE for _ in some])
        values = np.array([of.value(proof.code.variant.some_group, draw) for _ in of_range])
        _set(proof, tiles, read, of, of_range, values)
        if of.subject == "heads" or is_of_head(of):
            _number_again(tiles, of_range, values if is_of_head(of) else None, draw)
    _within_bounds(proof, tiles, read, of, draw)
    return PackedTiles(tiles, read)


def is_of_head(of: Range) -> bool:
    """Says whether a range is of the head that a tile is told."""
    word = WORD_OF.match(of.subject)
    return word is not None and word[1] == "head"


def _set(proof: Proof, tiles: DrawnTiles, read: dict[str, Any], of: Range, at: Array, values: Array) -> None:
    """Gives the tiles `at` these values of a range's subject, and other numbers that go with them."""
    variant, sizes, subject = proof.code.variant, tiles.sizes, of.subject
    word = WORD_OF.match(subject)
    if subject in WINDOW:
        read[subject][at] = values
    elif subject == "results":
        read["results"] = np.full(len(tiles.number), MOST_RESULTS)
        read["results"][at] = values
    elif subject == BLOCKS[0]:
        tiles.number[at] += values // tiles.cluster - tiles.number[at] % proof.schedule.workers(variant.card.sms)
        tiles.row_tiles[at] = np.maximum(tiles.row_tiles[at], values + 1)
    elif subject == "heads":
        sizes.heads[at] = values
    elif subject == "seq_q":
        sizes.seq_q[at] = values
        for fields in tiles.fields:
            fields[1, at] = np.minimum(fields[1, at], values // 2)
            fields[2, at] = np.clip(fields[2, at], 1, np.maximum(values - fields[1, at], 1))
    elif word and word[1] == "head":
        sizes.heads[at] = np.maximum(sizes.heads[at], (values // variant.subgroups + 1) * variant.some_group)
    elif word:
        for fields in tiles.fields:
            _set_word(fields, WORDS.index(word[1]), at, values, proof)


def _number_again(tiles: DrawnTiles, at: Array, of_heads: Array | None, draw: random.Random) -> None:
    """Draws the numbers of tiles `at` again: of these heads, or of any where None is given."""
    heads = tiles.heads[at]
    most = np.maximum(np.minimum(tiles.row_tiles[at], KEYS // heads), 1)
    own = np.array([draw.choice([0, int(each) - 1, draw.randrange(int(each))]) for each in heads])
    row_tile = np.array([log_drawn(draw, 0, int(each) - 1) for each in most])
    tiles.number[at] = tiles.number_of(row_tile, own if of_heads is None else of_heads, at)


def _within_bounds(
    proof: Proof, tiles: DrawnTiles, read: dict[str, Any], of: Range | None, draw: random.Random
) -> None:
    """Makes numbers and rows beyond bounds smaller, but for the range's subject; some blocks get no tile."""
    heads = tiles.heads
    tiles.row_tiles = np.maximum(np.minimum(tiles.row_tiles, KEYS // np.maximum(heads, 1)), 1)
    total = tiles.row_tiles * heads
    none = np.array([draw.random() < WITHOUT_TILE for _ in total])
    behind = np.array([draw.choice([0, draw.randrange(2 * int(each))]) for each in heads])
    tiles.number = np.where(none, total + behind, np.clip(tiles.number, 0, total - 1))
    sides = sum((read[side] for side in WINDOW if side in read), 0 * tiles.number)
    word = WORD_OF.match(of.subject) if of else None
    shorter = 4 if word and word[1] in ("first_row", "seq_q", "q_begin") else 2
    for fields in tiles.fields:
        most = np.maximum(KEYS - sides - fields[6 - shorter] - fields[1] - fields[3], 1)
        fields[shorter] = np.clip(fields[shorter], 0, most)
        fields[0] = np.minimum(fields[0], (ceildiv(np.maximum(fields[2], 1), proof.rows) - 1) * tiles.cluster)


def _set_word(fields: Array, word: int, at: Array, values: Array, proof: Proof) -> None:
    """Sets a word of tiles' entries: first row, rows of Q and K, part and place of results."""
    each, block_N = proof.code.variant.rows_of(proof.schedule.block_M), proof.schedule.block_N
    name = WORDS[word]
    fields[word, at] = values
    if name == "first_row":
        # Where it is asked for, it may be counted in rows already.
        fields[0, at] = np.where(np.arange(len(at)) % 2, values, values // each)
        fields[2, at] = np.maximum(fields[2, at], np.minimum((fields[0, at] + 1) * each, KEYS))
    elif name in ("part_first", "part_end"):
        # A part of one to eight KV blocks, which rows of a short sequence see.
        blocks = 1 + np.arange(len(at)) % 8
        fields[5, at] = values if name == "part_first" else np.maximum(values - blocks, 0)
        fields[6, at] = values + blocks if name == "part_first" else values
        fields[4, at] = np.clip(fields[4, at], np.minimum((values + blocks) * block_N, KEYS), KEYS)
        fields[2, at] = np.where(blocks % 2, fields[2, at] % block_N + 1, fields[2, at])
        fields[7, at] = np.maximum(fields[7, at], 1)
    elif name == "seq_kv":
        fields[5, at] = np.minimum(fields[5, at], values // block_N)
