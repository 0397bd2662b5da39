"""`attention(q, k, v)` of every head size, on a Hopper GPU: right, and with no eye or hand beyond its tensors."""

from __future__ import annotations

import random

import pytest
import torch
from test_op import check

from tl_attention import attention
from tl_attention.files.defaults import default_schedule
from tl_attention.files.named import resolve
from tl_attention.op.kernels import kernel_of
from tl_attention.oracle.reference import make_inputs
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import DTYPES, AttentionShape

pytestmark = pytest.mark.gpu

SIZES = ((1, 1, 1, 1), (2, 3, 1, 300), (1, 2, 129, 129), (3, 1, 200, 333), (1, 2, 1000, 1777), (3, 50, 290, 333))
# One of each tile, narrow and not, and of two tiles.
SOME: tuple[HeadSize, ...] = (8, 64, 72, 96, 104, 136, 192, 200, 256, "192/128", "136/104", "64/128")


def fresh(shape: AttentionShape):
    return make_inputs(shape, seed=random.SystemRandom().randrange(2**31), device="cuda")


def right(size: HeadSize, dtype: str, causal: bool, schedule: str | None = None) -> None:
    head_dim, head_dim_v = sizes_of(size)
    for sizes in SIZES:
        q, k, v = fresh(AttentionShape(*sizes, head_dim, dtype, head_dim_v=head_dim_v))
        output = attention(q, k, v, causal=causal, schedule=schedule)
        assert output.shape == (*q.shape[:3], head_dim_v) and output.is_contiguous()
        check(output, q, k, v, causal=causal)


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_every_head_dim_by_its_default(head_dim):
    # Each dtype and mask with each tile, and not all four of every size, which takes a minute to compile.
    right(head_dim, DTYPES[head_dim // 8 % 2], head_dim // 16 % 2 == 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [96, 192, 256, "192/128"])
def test_each_tile_in_both_dtypes_and_masks(size, dtype, causal):
    right(size, dtype, causal)


# A tile of ws_fa3_64x128 fits the SM up to 128 columns.
OTHERS = [
    *(("seed_64x64", size) for size in SOME),
    *(("ws_fa3_64x128", size) for size in SOME if max(sizes_of(size)) <= 128),
]


@pytest.mark.parametrize("name, size", OTHERS)
def test_other_schedules(name, size):
    number = SOME.index(size)
    right(size, DTYPES[number % 2], number // 2 % 2 == 1, name)


@pytest.mark.parametrize("name", ["experiments/output_direct", "experiments/output_tma", "experiments/q_registers"])
@pytest.mark.parametrize("head_dim", [40, 104])
def test_every_way_to_store_and_to_read_q(name, head_dim):
    right(head_dim, "bfloat16", False, name)


@pytest.mark.parametrize("schedule", [None, "seed_64x64"])
@pytest.mark.parametrize("size", SOME, ids=str)
def test_nothing_is_read_or_written_beyond_the_tensors(size, schedule):
    """Each tensor stands among NaN, which no product forgets, and the output among numbers that must stay."""
    head_dim, head_dim_v = sizes_of(size)
    causal = SOME.index(size) % 2 == 1
    mask = CAUSAL if causal else FULL
    shape = AttentionShape(2, 3, 201, 333, head_dim, "float16", mask, head_dim_v)
    inputs = {name: among(x, float("nan")) for name, x in zip("QKV", fresh(shape))}
    output = among(torch.zeros(2, 3, 201, head_dim_v, dtype=torch.float16, device="cuda"), 7.0)
    resolved = resolve(schedule or default_schedule(shape)).schedule
    kernel_of(resolved, shape.variant())(**inputs, Output=output, softmax_scale=head_dim**-0.5)
    check(output, *inputs.values(), causal=causal)
    around = torch.empty(0, dtype=torch.float16, device="cuda").set_(output.untyped_storage())
    assert (around[:BORDER] == 7).all() and (around[-BORDER:] == 7).all()


BORDER = 4096


def among(x: torch.Tensor, value: float) -> torch.Tensor:
    """The tensor, in memory that holds the value before and behind it."""
    memory = torch.full((x.numel() + 2 * BORDER,), value, dtype=x.dtype, device=x.device)
    memory[BORDER:-BORDER] = x.flatten()
    return memory[BORDER:-BORDER].view(x.shape)
