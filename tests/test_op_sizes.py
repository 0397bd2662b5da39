"""`attention(q, k, v)` of sizes that the matrix test has not, on a Hopper GPU: head sizes, lengths, and 2^31 elements."""

from __future__ import annotations

import math

import pytest
import torch
from faults.others import CHUNKED
from matrix_kernels import AXES
from on_gpu import check, fresh
from test_op_lse import RAGGED

from tl_attention import attention
from tl_attention.files.named import resolve
from tl_attention.problem.shape import DTYPES

pytestmark = pytest.mark.gpu

SIZES = ((1, 1, 1, 1), (2, 3, 1, 300), (1, 2, 129, 129), (3, 1, 200, 333), (1, 2, 1000, 1777), (3, 50, 290, 333))


def right(head_dim: int, dtype: str, causal: bool, schedule: str | None = None) -> None:
    for sizes in SIZES:
        q, k, v = fresh(*sizes, head_dim, dtype=dtype)
        output = attention(q, k, v, causal=causal, schedule=schedule)
        assert output.shape == q.shape and output.is_contiguous()
        check(output, q, k, v, causal=causal)


@pytest.mark.parametrize("head_dim", [size for size in range(8, 257, 8) if size not in AXES["size"]])
def test_every_other_head_dim_by_its_default(head_dim):
    # Each dtype and mask with each tile, and not all four of every size, which takes a minute to compile.
    right(head_dim, DTYPES[head_dim // 8 % 2], head_dim // 16 % 2 == 1)


@pytest.mark.parametrize(
    "name,size,causal", [("d96_2k", 96, False), ("d96_causal_2k", 80, True), ("d64_causal", 48, True)]
)
def test_the_defaults_of_other_lengths(name, size, causal):
    right(size, "bfloat16", causal, name)


@pytest.mark.parametrize(
    "name,head_dim",
    [("experiments/output_direct", 40), ("experiments/output_tma", 104), ("experiments/q_registers", 40)],
)
def test_every_way_to_store_and_to_read_q(name, head_dim):
    right(head_dim, "bfloat16", False, name)


# --- tensors of more than 2^31 elements ------------------------------------------------------------------------------

# On a GPU with 40 GB free: of the last of 2 x 64 heads a kernel reads, or writes, what lies behind the first 2^31.
LONG, SHORT = 2**17 + 4096, 300


@pytest.mark.parametrize("schedule", [None, "seed", "mma_sync"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("seq_q, seq_kv", [(LONG, SHORT), (SHORT, LONG)], ids=["queries", "keys"])
def test_what_lies_behind_2_to_the_31_elements_is_read_and_written(seq_q, seq_kv, layout, schedule):
    generator = torch.Generator("cuda").manual_seed(seq_q)
    places = {"bhsd": lambda seq: (2, 64, seq, 128), "bshd": lambda seq: (2, seq, 64, 128)}[layout]
    sizes = [places(seq) for seq in (seq_q, seq_kv, seq_kv)]
    assert max(map(math.prod, sizes)) > 2**31
    q, k, v = (torch.randn(*size, dtype=torch.float16, device="cuda", generator=generator) for size in sizes)
    output = attention(q, k, v, layout=layout, schedule=schedule)
    heads = [x if layout == "bhsd" else x.transpose(1, 2) for x in (output, q, k, v)]
    for batch, head in ((0, 0), (1, 63)):
        check(*(x[batch : batch + 1, head : head + 1] for x in heads))


# --- P in shared memory ----------------------------------------------------------------------------------------------

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
