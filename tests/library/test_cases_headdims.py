"""Tests check how head sizes are told, and which schedules run them. Their faults: proof/faults/sizes.py."""

import re

import pytest
import torch
from golden_kernels import KERNELS
from once import lowered

from tl_attention import InputError, attention
from tl_attention.kernels.preflight import check_limits
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.oracle.interpret import POLICIES, verify
from tl_attention.lab.oracle.reference import attention_fp64, make_inputs
from tl_attention.problem.head_dims import TILE_DIMS, HeadSize, is_meant, parse_head_size, sizes_of, tile_dim
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.defaults import default_schedule
from tl_attention.schedule.files.named import resolve

EVERY = range(8, 257, 8)

# --- what a head size is ---------------------------------------------------------------------------------------------


def test_each_size_has_the_next_larger_tile() -> None:
    assert {tile_dim(head_dim) for head_dim in EVERY} == {*TILE_DIMS}
    assert [tile_dim(n) for n in (8, 64, 72, 96, 104, 128, 136, 192, 200, 256)] == [
        *(64, 64, 96, 96, 128, 128, 192, 192, 256, 256)
    ]
    variant = Variant(104, "float16", head_dim_v=40)
    assert (variant.tile_dim, variant.tile_dim_v, variant.head_size, variant.narrow) == (128, 64, "104/40", True)
    assert not Variant(192, "float16", head_dim_v=128).narrow


def test_a_shape_says_both_sizes_and_is_read_as_it_is_written() -> None:
    shape = AttentionShape.parse("1,2,3,4,192/128")
    assert (shape.head_dim, shape.head_dim_v, str(shape)) == (192, 128, "(1, 2, 3/4, 192/128) float16")
    assert shape.flops == 2 * 1 * 2 * 3 * 4 * (192 + 128)
    assert AttentionShape.parse("1,2,3,64/64") == AttentionShape.parse("1,2,3,64")
    assert AttentionShape(**{k: v for k, v in problem_of(shape).items() if k != "causal"}) == shape
    assert "head_dim_v" not in problem_of(AttentionShape.parse("1,2,3,64"))
    for text in ("1,2,3,192/", "1,2,3,/128", "1,2,3,192/0", "1,2,3,1/2/3"):
        with pytest.raises(InputError, match="is not a shape"):
            AttentionShape.parse(text)
    with pytest.raises(
        InputError, match="^shape: head_dim_v 100 is not supported, expected a multiple of 8 up to 256$"
    ):
        AttentionShape.parse("1,2,3,64/100")


def half(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.float16)


@pytest.mark.parametrize(
    "columns, words",
    [
        ((100, 100, 100), "^attention: head_dim 100 is not supported, expected a multiple of 8 up to 256$"),
        ((260, 260, 260), "^attention: head_dim 260 is not supported, expected a multiple of 8 up to 256$"),
        ((264, 264, 264), "^attention: head_dim 264 is not supported"),
        ((64, 64, 100), "^attention: head_dim_v 100 is not supported, expected a multiple of 8 up to 256$"),
        ((128, 64, 64), "do not match, expected q .*, where v's head_dim may be another$"),
        ((0, 0, 0), "^attention: head_dim 0 is not supported"),
        ((192, 192, 128), "the tensors are on cpu"),
        ((40, 40, 40), r"are on cpu, .*; torch.nn.functional.scaled_dot_product_attention computes it there, .* run`"),
    ],
    ids=str,
)
def test_what_no_kernel_takes_is_refused_in_one_line(columns, words) -> None:
    with pytest.raises(InputError, match=words) as error:
        attention(*(half(1, 1, 4, n) for n in columns))
    assert "\n" not in str(error.value)


# --- the schedules that run them --------------------------------------------------------------------------------------


def default_of(size: HeadSize, mask: Mask) -> str:
    head_dim, head_dim_v = sizes_of(size)
    return default_schedule(AttentionShape(1, 1, 4096, 4096, head_dim, mask=mask, head_dim_v=head_dim_v))


def test_every_size_has_a_default_that_is_meant_for_it_and_fits() -> None:
    for size in (*EVERY, "192/128", "64/128", "256/40"):
        for mask in (FULL, CAUSAL):
            named = resolve(default_of(size, mask))
            assert is_meant(size, named.head_dims), (size, named)
            check_limits(Planned(named.schedule), size)


# --- the oracle -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["8", "104", "192/128", "64/128", "256/40"])
@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=["", "causal"])
def test_the_interpreter_is_right_in_both_runs(size, mask) -> None:
    head_dim, head_dim_v = sizes_of(parse_head_size(size))
    for name in (default_of(parse_head_size(size), mask), "seed"):
        schedule = resolve(name).schedule
        errors = verify(derive(schedule), schedule, Variant(head_dim, "bfloat16", mask, head_dim_v), seed=3)
        assert set(errors) == set(POLICIES)
        assert all(error.ok for error in errors.values()), {k: str(e) for k, e in errors.items()}


def test_the_reference_takes_v_of_another_head_size() -> None:
    q, k, v = make_inputs(AttentionShape(2, 3, 17, 33, 192, head_dim_v=128), seed=1)
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=0.1)
    assert v.shape[3] == 128 and torch.allclose(attention_fp64(q, k, v, mask=FULL, scale=0.1), wanted, atol=1e-12)


# --- the generated code -----------------------------------------------------------------------------------------------


def test_only_a_kernel_that_needs_it_carries_the_bounded_store() -> None:
    narrow, wide = (lowered(KERNELS[name]).source for name in ("p_shared, asked", "waits_exact"))
    assert "tl_attention_store_columns" in narrow and "tl_attention_store_columns" not in wide
    prelude = re.search(r"template <int columns, bool bf16>.*?\n}\n", narrow, re.DOTALL)
    assert prelude and "32 * chunk + 8 * member < columns" in prelude[0]
