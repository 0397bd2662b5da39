"""The sizes at which a kernel is verified show each way in which its loop over KV blocks begins and ends."""

from __future__ import annotations

import pytest

from tl_attention.files.named import resolve
from tl_attention.measure.candidate import Verified, ends_of, verified_on
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape

SHAPE = AttentionShape(1, 4, 512, 512, 128)


@pytest.mark.parametrize("name", ["best", "prefetch", "seed", "ws_three_stages", "inferred"])
def test_each_number_of_blocks_ends_whole_ragged_and_with_one_key(name: str) -> None:
    schedule = resolve(name).schedule
    keys = [sizes.seq_kv for sizes in ends_of(schedule, SHAPE)]
    for blocks in range(1, max(keys) // schedule.block_N + 1):
        of_last = {seq_kv - (blocks - 1) * schedule.block_N for seq_kv in keys} & {*range(1, schedule.block_N + 1)}
        assert {1, schedule.block_N} < of_last
    assert max(keys) // schedule.block_N > schedule.num_stages + 2


def test_where_a_mask_ends_the_loop_every_query_sees_a_key_and_tiles_of_one_problem_end_apart() -> None:
    shape = AttentionShape(1, 4, 512, 512, 128, mask=CAUSAL)
    sizes = [*ends_of(resolve("fa3_pipelined").schedule, shape)]
    assert all(found.seq_q <= found.seq_kv for found in sizes)
    assert any(found.seq_q == found.seq_kv >= 5 * 128 for found in sizes)


def test_a_kernel_for_fixed_sizes_is_verified_at_these_alone() -> None:
    assert verified_on(SHAPE, fixed=True, schedule=resolve("seed").schedule) == [Verified(SHAPE)]
