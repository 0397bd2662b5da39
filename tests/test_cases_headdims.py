"""Head sizes: what they are told as, which schedules run them, and that the proof reads their kernels and sees faults."""

from __future__ import annotations

import re

import pytest
import torch
from generated_faults import Fault, Kernel, fault, refused
from once import lowered, proved
from test_generated_faults_launch import argument, number

from tl_attention import InputError, attention
from tl_attention.files.defaults import default_schedule
from tl_attention.files.named import resolve
from tl_attention.lowering.preflight import check_limits
from tl_attention.measure.records import problem_of
from tl_attention.oracle.interpret import POLICIES, verify
from tl_attention.oracle.reference import attention_fp64, make_inputs
from tl_attention.problem.head_dims import TILE_DIMS, HeadSize, is_meant, parse_head_size, sizes_of, tile_dim
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive

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
        ((40, 40, 40), "the tensors are on cpu"),
    ],
    ids=str,
)
def test_what_no_kernel_takes_is_refused_in_one_line(columns, words) -> None:
    with pytest.raises(InputError, match=words) as error:
        attention(*(half(1, 1, 4, n) for n in columns))
    assert "\n" not in str(error.value)


# --- the schedules that run them ---------------------------------------------------------------------------------------


def default_of(size: HeadSize, mask: Mask) -> str:
    head_dim, head_dim_v = sizes_of(size)
    return default_schedule(AttentionShape(1, 1, 4096, 4096, head_dim, mask=mask, head_dim_v=head_dim_v))


def test_every_size_has_a_default_that_is_meant_for_it_and_fits() -> None:
    for size in (*EVERY, "192/128", "64/128", "256/40"):
        for mask in (FULL, CAUSAL):
            named = resolve(default_of(size, mask))
            assert is_meant(size, named.head_dims), (size, named)
            check_limits(named.schedule, size)


def test_what_is_made_for_another_size_is_told(cli, error_of) -> None:
    assert cli("check", "d192_128").stdout == "d192_128: proved safe at head_dim 192/128\n"
    assert cli("check", "best", "--head-dim", "104").stdout == "best: proved safe at head_dim 104\n"
    found = error_of("check", "experiments/block_N_144", "--head-dim", "192/128")
    memory = (128 * 192 + 2 * 144 * 192 + 2 * 144 * 128) * 2 + 1024
    assert (
        f"needs {memory:,} bytes of shared memory, the SM has 232,448: ((block_M 128 + 2 buffers * block_N 144) * "
        in (found)
    )
    assert "head_dim 192 + 2 buffers * block_N 144 * head_dim_v 128) * 2 bytes after 1,024 that hold" in found
    assert "it is meant for head_dim 192/128, not 192" in error_of("run", "d192_128", "--shape", "1,1,64,192")
    found = error_of("check", "experiments/output_tma", "--head-dim", "192/128")
    assert "tma goes through Q's tile, of 192 columns, and the output's has 128: expected vector or direct" in found


# --- the oracle --------------------------------------------------------------------------------------------------------


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


# --- the generated code ------------------------------------------------------------------------------------------------

KERNELS = {
    "best 40": Kernel("best", head_dim=40),
    "best_causal 104": Kernel("best_causal", causal=True, dtype="bfloat16", head_dim=104),
    "output_direct 40": Kernel("experiments/output_direct", head_dim=40),
    "output_tma 104": Kernel("experiments/output_tma", head_dim=104),
    "d96": Kernel("d96", head_dim=96),
    "d96_causal 72": Kernel("d96_causal", causal=True, head_dim=72),
    "d192": Kernel("d192", dtype="bfloat16", head_dim=192),
    "d192_128": Kernel("d192_128", head_dim=192, head_dim_v=128),
    "d192_128 136/104": Kernel("d192_128_causal", causal=True, head_dim=136, head_dim_v=104),
    "d256": Kernel("d256", head_dim=256),
    "seed 104": Kernel("seed", head_dim=104),
    "seed_64x64 192/128": Kernel("seed_64x64", causal=True, head_dim=192, head_dim_v=128),
}


# A proof takes up to ten seconds: one for each thing that is read in another way.
PROVED = {
    *("best_causal 104", "output_direct 40", "output_tma 104", "d96_causal 72", "d192_128 136/104", "d256", "seed 104"),
    "seed_64x64 192/128",
}


@pytest.mark.parametrize("name", sorted(PROVED))
def test_each_kernel_is_proved(name) -> None:
    assert proved(KERNELS[name]).digest


COLUMNS = r" && \(\(\(\(int\)threadIdx\.x\) & 15\) < 13\)"
FAULTS: dict[str, Fault] = {
    "a store of all columns of the tile": fault(
        "best 40", r"tl_attention_store_columns<40, ", "tl_attention_store<64, ", r"stores \('Output', 64, False"
    ),
    "a store of fewer columns": fault(
        "best 40", r"(tl_attention_store_columns)<40, ", r"\1<32, ", r"stores \('Output', 32, True"
    ),
    "a store that does not look at columns": fault(
        "best 40", r"tl_attention_store_columns<40, ", "tl_attention_store<40, ", r"stores \('Output', 40, False"
    ),
    "a direct store with no bound of columns": fault(
        "output_direct 40", r" && \(i_\d+ < 10\)", "", "the output's elements are not those of whole rows"
    ),
    "a direct store of fewer columns": fault(
        "output_direct 40", r"( && \(i_\d+ < )10\)", r"\g<1>8)", "the output's elements are not those of whole rows"
    ),
    "a panel of K not loaded": fault(
        "d192_128 136/104",
        r"(for \(int i = 0; i < )3(; \+\+i\) \{\n *tl::tma_load\(K_desc)",
        r"\g<1>2\2",
        "boxes of columns and elements .* of K, expected",
    ),
    "a panel of Q not loaded": fault(
        "d192_128 136/104",
        r"(for \(int i_2 = 0; i_2 < )3(; \+\+i_2\) \{\n *tl::tma_load\(Q_desc)",
        r"\g<1>2\2",
        "boxes of columns and elements .* of Q, expected",
    ),
    "as many panels of V as K has": fault(
        "d192_128 136/104",
        r"(for \(int i_1 = 0; i_1 < )2(; \+\+i_1\) \{\n *tl::tma_load\(V_desc)",
        r"\g<1>3\2",
        "boxes of columns and elements .* of V, expected",
    ),
    "V's slots as long as K's": fault(
        "d192_128 136/104",
        r"(V_full\[.*\]\.expect_transaction\()32768",
        r"\g<1>49152",
        "49152 bytes of a tile of 32768",
    ),
    "panels of 96 columns where those of 128 would be": fault(
        "d96_causal 72",
        r"(for \(int i = 0; i < 3; \+\+i\) \{\n *tl::tma_load\(K_desc.*\(i \* )32\)",
        r"\g<1>64)",
        "boxes of columns and elements .* of K, expected",
    ),
    "Q K^T with a step less": fault(
        "d192", r"(for \(int ki = 0; ki < )12", r"\g<1>11", "a product of 11 instructions, expected 12"
    ),
    "Q K^T with the steps of the tensor's columns": fault(
        "d192_128 136/104", r"(for \(int ki = 0; ki < )12", r"\g<1>9", "a product of 9 instructions, expected 12"
    ),
    "P V of fewer columns": fault(
        "d256", r"(for \(int ki_2 = 0;.*\n *tl::wgmma_rs<.* 64, )256", r"\g<1>128", "a product of the form"
    ),
    "V of a panel that is not its": fault(
        "d256", r"(initialize_wgmma_descriptor<1, )640(, 64>\(desc_b_2,)", r"\g<1>512\2", "a product of"
    ),
    "V in another swizzle": fault(
        "d96",
        r"initialize_wgmma_descriptor<2, (\d+), 32>\(desc_b_2,",
        r"initialize_wgmma_descriptor<1, \1, 64>(desc_b_2,",
        "a product of",
    ),
    "Q of the columns of a wider panel": fault(
        "d96",
        r"(wgmma_ss.*desc_a \+ \(\(\(\(ki >> )1(\) \* 4096\) \+ \(\(ki & )1\)",
        r"\g<1>2\g<2>3)",
        "reads other columns of its operands",
    ),
    "K copied beyond its columns": fault(
        "seed 104",
        rf"(cp_async_gs_conditional<16>\(\(&\(\(\(half_t\*\)K_shared.*\(\(\(\(\(i_2 \* 16\).*){COLUMNS}(.*){COLUMNS}",
        r"\1\2",
        "not all columns of the rows of K are copied",
    ),
    "rows of K as long as the tile's": fault(
        "seed 104",
        r"(cp_async_gs_conditional<16>.*\(&\(K\[\(+\(int64_t\)i_2\) \* \(int64_t\))1664",
        r"\g<1>2048",
        "columns of K are not where they belong in its tile",
    ),
    "Q copied beyond its columns": fault(
        "seed 104",
        rf"(    if \(.* < seq_q\)){COLUMNS}(\)+ \{{\n *condval = \*\(uint4)",
        r"\1\2",
        "not all columns of the rows of Q are copied|columns of Q are not",
    ),
    "the output stored beyond its columns": fault(
        "seed 104", r" && \(i_\d+ < 26\)", "", "the output's elements are not those of whole rows"
    ),
}


FAULTS |= {
    name: argument(kernel, descriptor, at, number(value), f"((int64_t){other})", words=words)
    for name, (kernel, descriptor, at, value, other, words) in {
        "K as wide as its tile": ("best 40", "K_desc", 4, 40, 64, r"dimensions of K_desc: \(64, .*, expected \(40, "),
        "boxes of the tensor's columns": ("best 40", "V_desc", 12, 64, 40, r"box of V_desc: \(40, .*, expected \(64, "),
        "V as wide as K": ("d192_128", "V_desc", 4, 128, 192, r"dimensions of V_desc: \(192, .*, expected \(128, "),
        "a panel of 128 bytes": ("d96", "K_desc", 12, 32, 64, r"box of K_desc: \(64, .*, expected \(32, "),
        "a swizzle of 128 bytes": ("d96", "K_desc", 21, 2, 3, "swizzle of K_desc: 3, expected 2"),
        "what is beyond as NaN": ("best 40", "Q_desc", 23, 0, 1, "fill beyond the end of Q_desc: 1, expected 0"),
    }.items()
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(name) -> None:
    refused(FAULTS[name], KERNELS)


def test_only_a_kernel_that_needs_it_carries_the_bounded_store() -> None:
    carries = {name: "tl_attention_store_columns" in lowered(kernel).source for name, kernel in KERNELS.items()}
    assert carries["best 40"] and not carries["d256"] and not carries["d192_128"]
    prelude = re.search(r"template <int columns, bool bf16>.*?\n}\n", lowered(KERNELS["best 40"]).source, re.DOTALL)
    assert prelude and "32 * chunk + 8 * member < columns" in prelude[0]
