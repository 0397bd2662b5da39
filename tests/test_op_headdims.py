"""`attention(q, k, v)` of the head sizes that the matrix test has not, on a Hopper GPU."""

from __future__ import annotations

import random

import pytest
from matrix_kernels import AXES
from test_op import check

from tl_attention import attention
from tl_attention.oracle.reference import make_inputs
from tl_attention.problem.shape import DTYPES, AttentionShape

pytestmark = pytest.mark.gpu

SIZES = ((1, 1, 1, 1), (2, 3, 1, 300), (1, 2, 129, 129), (3, 1, 200, 333), (1, 2, 1000, 1777), (3, 50, 290, 333))


def right(head_dim: int, dtype: str, causal: bool, schedule: str | None = None) -> None:
    for sizes in SIZES:
        shape = AttentionShape(*sizes, head_dim, dtype)
        q, k, v = make_inputs(shape, seed=random.SystemRandom().randrange(2**31), device="cuda")
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
