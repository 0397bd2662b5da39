"""The sizes at which a kernel is verified show all ways in which its loop over KV blocks begins and ends."""

from collections.abc import Callable

import pytest

from tl_attention.files.named import resolve
from tl_attention.measure.candidate import Verified, ends_of, verified_on
from tl_attention.problem.lengths import edges
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import INTEGERS
from tl_attention.program.planned import Planned

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
    assert verified_on(SHAPE, fixed=True, planned=Planned(resolve("seed").schedule)) == [Verified(SHAPE)]


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
