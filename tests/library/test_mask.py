"""A mask's answers are compared with every query and key; the sizes that verify kernels show all its edges."""

import itertools
import random
from collections.abc import Callable

import pytest
import tilelang.language as T
import torch
from tvm import arith

from tl_attention.lab.measure.candidate import VerifiedProblem, ends_of, verified_on
from tl_attention.problem.lengths import edges
from tl_attention.problem.mask import CAUSAL, FULL, TENSORS, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import INTEGERS, ceildiv, kv_blocks, row_tiles
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

WINDOWS = [Mask(left, right) for left, right in itertools.product((None, 0, 1, 7, 8, 9, 30), repeat=2)]
LENGTHS = [(1, 1), (1, 40), (8, 8), (17, 17), (9, 33), (32, 64), (33, 9), (40, 1)]


def sees(mask: Mask, query: int, key: int, past_len: int) -> bool:
    """Says by definition whether a query sees a key: so many keys before the query's own, and so many after it."""
    after = key - (query + past_len)
    return (mask.left is None or after >= -mask.left) and (mask.right is None or after <= mask.right)


@pytest.mark.parametrize("mask", WINDOWS, ids=str)
def test_pairs_are_those_that_are_seen(mask):
    for seq_q, seq_kv in LENGTHS:
        expected = sum(sees(mask, i, j, seq_kv - seq_q) for i in range(seq_q) for j in range(seq_kv))
        assert mask.pairs(seq_q, seq_kv) == expected, (seq_q, seq_kv)


@pytest.mark.parametrize("mask", WINDOWS, ids=str)
def test_hidden_is_what_is_not_seen_or_is_no_key(mask):
    for seq_q, seq_kv in LENGTHS:
        keys = range(seq_kv + 10)
        expected = [[j >= seq_kv or not sees(mask, i, j, seq_kv - seq_q) for j in keys] for i in range(seq_q)]
        found = [[mask.hidden(j, i + seq_kv - seq_q, seq_kv, INTEGERS) for j in keys] for i in range(seq_q)]
        assert found == expected
        own_keys = torch.arange(seq_q)[:, None] + seq_kv - seq_q
        hidden = mask.hidden(torch.arange(-7, len(keys) - 7)[None, :], own_keys, seq_kv, TENSORS, first=7)
        assert torch.equal(hidden.expand(seq_q, len(keys)), torch.tensor(expected))


@pytest.mark.parametrize("mask", WINDOWS, ids=str)
@pytest.mark.parametrize("block_M,block_N", [(8, 8), (16, 4), (4, 12)])
def test_a_tile_visits_the_blocks_with_keys_that_it_sees_and_masks_those_with_hidden_ones(mask, block_M, block_N):
    for seq_q, seq_kv in LENGTHS:
        if mask.right is not None and seq_q > seq_kv + mask.right:
            continue
        shape, past_len = AttentionShape(1, 1, seq_q, seq_kv, 64, mask=mask), seq_kv - seq_q
        all_blocks = ceildiv(seq_kv, block_N)
        for tile in range(row_tiles(shape, block_M)):
            # A tile's last rows may lie after the last query: they count, for a kernel computes them.
            rows = range(tile * block_M, (tile + 1) * block_M)
            seen = {
                block: [
                    key < seq_kv and sees(mask, row, key, past_len)
                    for row in rows
                    for key in range(block * block_N, (block + 1) * block_N)
                ]
                for block in range(all_blocks)
            }
            first_key, end_key = rows.start + past_len, rows.stop + past_len
            needed = range(
                mask.first_block(first_key, block_N, INTEGERS), mask.end_block(all_blocks, end_key, block_N, INTEGERS)
            )
            whole = range(
                mask.first_whole(end_key, block_N, INTEGERS),
                mask.end_whole(seq_kv // block_N, first_key, block_N, INTEGERS),
            )
            assert [block for block, keys in seen.items() if any(keys)] == list(needed)
            assert [block for block, keys in seen.items() if all(keys)] == list(whole)
            for at_least in (1, 3):
                visited = kv_blocks(shape, block_M, block_N, tile, at_least)
                assert visited == range(needed.start, max(needed.stop, needed.start + at_least))


def test_tilelangs_expressions_have_the_values_of_pythons_integers():
    rng = random.Random(0)
    simplify = arith.Analyzer().simplify
    for mask in WINDOWS:
        for _ in range(20):
            key, own_key, seq_kv, first = (rng.randint(low, 60) for low in (0, -20, 1, 0))
            blocks, block_N = rng.randint(1, 10), rng.choice((8, 12))
            answers = (
                lambda number, ops: mask.hidden(number(key), number(own_key), number(seq_kv), ops, number(first)),
                lambda number, ops: mask.first_block(number(own_key), block_N, ops),
                lambda number, ops: mask.end_block(number(blocks), number(own_key), block_N, ops),
                lambda number, ops: mask.first_whole(number(own_key), block_N, ops),
                lambda number, ops: mask.end_whole(number(blocks), number(own_key), block_N, ops),
            )
            for answer in answers:
                assert int(simplify(answer(T.int32, T))) == int(answer(int, INTEGERS))


def test_full_and_causal_are_masks_like_others():
    assert FULL.pairs(3, 5) == 15 and CAUSAL.pairs(3, 5) == 3 + 4 + 5
    assert [mask for mask in (FULL, CAUSAL, Mask(left=4), Mask(4, 0), Mask(right=2)) if mask.grows] == [
        CAUSAL,
        Mask(right=2),
    ]
    assert [mask.suffix for mask in (FULL, CAUSAL, Mask(4, 0))] == ["", " causal", " window (4, 0)"]


SHAPE = AttentionShape(1, 4, 512, 512, 128)


@pytest.mark.parametrize("name", ["best", "prefetch", "seed", "ws_three_stages", "inferred"])
def test_each_number_of_blocks_ends_whole_ragged_and_with_one_key(name: str) -> None:
    schedule = resolve(name).schedule
    keys = [sizes.seq_kv for sizes in ends_of(Planned(schedule), SHAPE)]
    for blocks in range(1, max(keys) // schedule.block_N + 1):
        of_last = {seq_kv - (blocks - 1) * schedule.block_N for seq_kv in keys} & {*range(1, schedule.block_N + 1)}
        assert {1, schedule.block_N} < of_last
    assert max(keys) // schedule.block_N > schedule.num_stages + 2


def test_where_a_mask_ends_the_loop_every_query_sees_a_key_and_tiles_of_one_problem_end_apart() -> None:
    shape = AttentionShape(1, 4, 512, 512, 128, mask=CAUSAL)
    sizes = [*ends_of(Planned(resolve("fa3_pipelined").schedule), shape)]
    assert all(found.seq_q <= found.seq_kv for found in sizes)
    assert any(found.seq_q == found.seq_kv >= 5 * 128 for found in sizes)


def test_a_kernel_for_fixed_sizes_is_verified_at_these_alone() -> None:
    assert verified_on(SHAPE, fixed=True, planned=Planned(resolve("seed").schedule)) == [VerifiedProblem(SHAPE)]


@pytest.mark.parametrize("block_N", [64, 80, 128, 176])
@pytest.mark.parametrize("mask", [CAUSAL, Mask(5, 0), Mask(127, 128), Mask(left=70), Mask(right=33)], ids=str)
@pytest.mark.parametrize("off", [-3, -2, -1, 1, 2, 3])
def test_an_edge_that_is_off_by_a_key_or_three_shows_at_some_lengths(mask: Mask, block_N: int, off: int) -> None:
    """The edges are those of the blocks that a warpgroup's rows see, and of the blocks that they see in full."""
    found = dict.fromkeys(("begins", "ends", "first whole", "last whole"), 0)
    for seq_q, seq_kv in edges(mask, block_N):
        for row in range(0, seq_q, 64):
            first, blocks = row + seq_kv - seq_q, -(-seq_kv // block_N)
            found["begins"] += differs(mask.first_block, first, off, block_N)
            found["ends"] += differs(lambda *of: mask.end_block(blocks, *of), first + 64, off, block_N)
            found["first whole"] += differs(mask.first_whole, first + 64, off, block_N)
            found["last whole"] += differs(lambda *of: mask.end_whole(seq_kv // block_N, *of), first, off, block_N)
    assert bool(found["begins"]) == bool(found["first whole"]) == (mask.left is not None), found
    assert bool(found["ends"]) == bool(found["last whole"]) == (mask.right is not None), found


def differs(block: Callable[..., int], key: int, off: int, block_N: int) -> bool:
    """Says whether the block is another one for a key so far off."""
    return block(key, block_N, INTEGERS) != block(key + off, block_N, INTEGERS)


def test_a_full_mask_has_no_edges() -> None:
    assert not [*edges(FULL, 128)]


def test_many_batches_and_many_heads_are_verified() -> None:
    for text in ("4,40/8,1000,128", "2,6,64,64"):
        shapes = [problem.shape for problem in verified_on(AttentionShape.parse(text), fixed=False)]
        assert max(shape.batch for shape in shapes) > 2048 and max(shape.heads for shape in shapes) > 2000
