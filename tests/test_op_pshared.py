"""`attention(q, k, v)` with P in shared memory, on a Hopper GPU: right at every length, and the same to the bit."""

from __future__ import annotations

import pytest
import torch
from faults.others import CHUNKED
from test_op import check, fresh
from test_op_lse import RAGGED

from tl_attention import attention
from tl_attention.files.named import resolve

pytestmark = pytest.mark.gpu

# Three warpgroups; panels of 16 columns; chunks, turns and an output that goes the same way.
SCHEDULES = {
    "three warpgroups": resolve("experiments/p_shared/block_N_192").schedule,
    "narrow panels": resolve("experiments/p_shared/block_N_176").schedule,
    "chunks": CHUNKED,
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_it_is_right_at_every_length(name, causal):
    dtype = "float16" if name == "chunks" else "bfloat16"
    for sizes in RAGGED:
        q, k, v = fresh(*sizes, 64, dtype=dtype)
        check(attention(q, k, v, causal=causal, schedule=SCHEDULES[name]), q, k, v, causal=causal)


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_is_the_same_to_the_bit(name):
    q, k, v = fresh(2, 16, 1000, 1777, 64, dtype="bfloat16")
    first = attention(q, k, v, schedule=SCHEDULES[name])
    assert all(torch.equal(attention(q, k, v, schedule=SCHEDULES[name]), first) for _ in range(200))
