"""Kernels that read strides: the proof accepts what TileLang generates of each kind of output, and refuses faults."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from generated_faults import Edits, replaced

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import KERNELS, Kernel
from code_mutants.reading import Code, prove
from once import lowered, proved

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.proof.generated.host_plan import parse_host_source
from tl_attention.proof.generated.tensors import Tensor, contiguous, told_apart


@dataclass(frozen=True)
class Strided(Kernel):
    """A kernel of the strided variant."""

    sizes: Sizes | None = None

    @property
    def variant(self) -> Variant:
        return replace(super().variant, strided=True, sizes=self.sizes)


STRIDED = {
    "best": Strided("best"),
    "best_causal": Strided("best_causal", causal=True, dtype="bfloat16"),
    "tma": Strided("experiments/output_tma"),
    "direct": Strided("experiments/output_direct", head_dim=64),
    "seed": Strided("seed"),
    "prefetch": Strided("prefetch", causal=True, dtype="bfloat16", head_dim=64),
    "fixed": Strided("best", sizes=Sizes(2, 3, 100, 200)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_the_generated_code_is_proved(name):
    assert proved(STRIDED[name]).digest


def test_strides_have_64_bits_from_the_caller_to_the_kernel():
    for name in ("best", "seed"):
        code = lowered(STRIDED[name])
        plan = parse_host_source(code.host_source)
        assert {(s.name, s.tensor, s.axis) for s in plan.strides} == {
            (f"{tensor}_{dim}_stride", tensor, axis)
            for tensor in ("Q", "K", "V", "Output")
            for axis, dim in enumerate(("batch", "head", "row"))
        }
        taken = {p.name: p.kind for p in plan.parameters if p.name.endswith("_stride")}
        assert set(taken.values()) == {"int64_t"}
        # What addresses are made of; TMA descriptors have the others.
        tensors = {name.partition("_")[0] for name in taken}
        assert tensors == ({"Output"} if name == "best" else {"Q", "K", "V"})
        assert "(int)Q_" not in code.source and "((int)Output_" not in code.source


def test_copies_of_strided_rows_take_16_bytes():
    code = lowered(STRIDED["seed"])
    assert "tl::cp_async_gs<16>" in code.source and "= *(uint4*)(Q + " in code.source
    # For which the host's code holds the strides to multiples of 16 bytes.
    for tensor in "QKV":
        assert f"if (!((({tensor}_row_stride % (int64_t)8) == (int64_t)0)))" in code.host_source


def test_the_strides_of_a_proof_tell_all_dimensions_apart():
    shape = (2, 3, 50, 64)
    found = [told_apart(number, shape) for number in range(4)]
    every = [stride for strides in found for stride in strides[:3]]
    assert len({*every}) == len(every) and all(stride % 8 == 0 for stride in every)
    orders = {tuple(sorted(range(3), key=lambda dim: strides[dim])) for strides in found}
    assert len(orders) == 4 and (2, 1, 0) not in orders
    for strides in (*found, contiguous(shape)):
        tensor = Tensor(shape, strides)
        for place in ((0, 0, 0), (1, 2, 49), (1, 0, 7)):
            assert tensor.split(tensor.element(*place) + 5) == (*place, 5)
            for rows in (50, 1, 0, -3):
                first = tensor.element(*place[:2], 50 - rows)
                assert tensor.bounded(first, rows) == (*place[:2], 50 - rows, 0)


def slot(descriptor: str, number: int, value: str) -> str:
    return rf"(v_ptr\) = {descriptor};\n(?:(?!.*FunctionCall).*\n)*?.*\[{number}\]\.v_int64\) = ){value};"


def in_bytes(stride: str) -> str:
    return rf"\({stride} \* \(int64_t\)2\)"


def exchanged(descriptor: str, number: int, stride: str, other: str) -> Edits:
    """A stride of a descriptor, innermost first from slot 9 on, is another one."""
    return ((slot(descriptor, number, in_bytes(stride)), rf"\g<1>({other} * (int64_t)2);"),)


def read_stride(name: str, axis: int) -> str:
    return rf"(\)\[){axis}(\];\n  \}}\n  int64_t {name} = )"


# (kernel, of the host's code, edits, words)
FAULTS: dict[str, tuple[str, bool, Edits, str]] = {
    "a descriptor's rows by the head's stride": (
        "best", True, exchanged("K_desc", 9, "K_row_stride", "K_head_stride"), "the strides of K_desc"),
    "a descriptor's row and head strides swapped": (
        "best", True,
        (*exchanged("V_desc", 9, "V_row_stride", "V_head_stride"),
         *exchanged("V_desc", 10, "V_head_stride", "V_row_stride")),
        "the strides of V_desc"),
    "a descriptor's batches by the head's stride": (
        "best", True, exchanged("Q_desc", 11, "Q_batch_stride", "Q_head_stride"), "the strides of Q_desc"),
    "K's strides in V's descriptor": (
        "best", True, exchanged("V_desc", 9, "V_row_stride", "K_row_stride"), "the strides of V_desc"),
    "Q's strides in the output's descriptor": (
        "tma", True, exchanged("Output_desc", 10, "Output_head_stride", "Q_head_stride"), "the strides of Output_desc"),
    "a descriptor of a contiguous tensor": (
        "best", True, ((slot("K_desc", 9, in_bytes("K_row_stride")), r"\g<1>((int64_t)256);"),), "strides of K_desc"),
    "a stride in elements": (
        "best", True, ((slot("K_desc", 10, in_bytes("K_head_stride")), r"\g<1>K_head_stride;"),), "strides of K_desc"),
    "a stride read off another dimension": (
        "best", True, ((read_stride("K_row_stride", 2), r"\g<1>1\2"),), "K_row_stride is the stride 1 of K"),
    "a stride read off another tensor": (
        "best", True,
        ((r"attention_V_strides\)(\[2\];\n  \}\n  int64_t V_row_stride)", r"attention_K_strides)\1"),),
        "the checks of the arguments"),
    "strides of 32 bits": (
        "seed", True, ((r"v_int64\) = K_row_stride;", "v_int64) = ((int64_t)K_row_stride);"),), "expected one of"),
    "a kernel that takes strides of 32 bits": (
        "best", False, ((r"int64_t Output_row_stride(?=.* \{\n)", "int Output_row_stride"),), "is launched with"),
    "two strides in each other's place": (
        "best", True,
        ((r"v_int64\) = Output_batch_stride;", "v_int64) = Output_swapped;"),
         (r"v_int64\) = Output_head_stride;", "v_int64) = Output_batch_stride;"),
         (r"v_int64\) = Output_swapped;", "v_int64) = Output_head_stride;")),
        "is launched with"),
    "an assumption of another form": (
        "seed", True,
        ((r"if \(!\(\(\(K_row_stride % \(int64_t\)8\) == ", "if (!(((K_row_stride = (int64_t)8) == "),),
        "argument 0 of a call"),
    "the output's rows by Q's distance": (
        "best", False, ((r", Output_row_stride\);", ", 128);"),), "stores .* at another row"),
    "the output's rows by the head's stride": (
        "best", False, ((r", Output_row_stride\);", ", Output_head_stride);"),), "stores .* at another row"),
    "a device function for contiguous rows": (
        "best", False, ((r", Output_row_stride\);", ");"),), "stores .* at another row"),
    "the device function of contiguous kernels": (
        "best", False, ((r"\(row_stride / 8\)", "(head_dim / 8)"),), "not its prelude"),
    "the output's first row by the head's stride": (
        "best", False,
        ((r"\(\(\(int64_t\)first_row_3\) \* Output_row_stride\)", "(((int64_t)first_row_3) * Output_head_stride)"),),
        "stores .* at another row|it stores"),
    "the output's heads by the batch's stride": (
        "best", False,
        ((r"\(\(\(int64_t\)head_3\) \* Output_head_stride\)", "(((int64_t)head_3) * Output_batch_stride)"),), ""),
    "direct stores by the head's stride": (
        "direct", False, ((r"\(\(int64_t\)first_row_3\)\) \* Output_row_stride",
                           "((int64_t)first_row_3)) * Output_head_stride"),), ""),
    "direct stores of contiguous rows": (
        "direct", False, ((r"\(\(int64_t\)first_row_3\)\) \* Output_row_stride",
                           "((int64_t)first_row_3)) * (int64_t)64"),), ""),
    "a copy of K by Q's rows": (
        "seed", False, ((r"(&\(K\[.*\(int64_t\)kv\).*)K_row_stride(.*\(\(\(\(\(\(kv)", r"\1Q_row_stride\2"),), ""),
    "a copy of K by the head's stride": (
        "seed", False, ((r"(&\(K\[.*\(int64_t\)kv\).*)K_row_stride(.*\(\(\(\(\(\(kv)", r"\1K_head_stride\2"),), ""),
    "a copy of K of another head": (
        "seed", False,
        ((r"(&\(K\[.*blockIdx)\.y(\)\) \* K_head_stride.*\(int64_t\)kv\))", r"\1.z\2"),),
        "K gets .* rows from"),
    "a copy of V by the batch's stride of K": (
        "seed", False,
        ((r"(cp_async_gs<16>.*&\(V\[.*)V_batch_stride", r"\1K_batch_stride"),), "V gets .* rows from"),
}  # fmt: skip


def changed(code: Code, host: bool, edits: Edits) -> Code:
    part = "host_source" if host else "source"
    return replace(code, **{part: replaced(getattr(code, part), edits)})


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_strides_is_refused(name):
    kernel, host, edits, words = FAULTS[name]
    schedule, code = STRIDED[kernel].schedule, lowered(STRIDED[kernel])
    with pytest.raises(InputError if host else ScheduleRefused, match=words or None):
        prove(schedule, changed(code, host, edits))


def test_a_contiguous_kernel_is_not_taken_for_a_strided_one():
    for name in ("best", "seed"):
        plain = lowered(KERNELS[name])
        with pytest.raises(ScheduleRefused):
            prove(STRIDED[name].schedule, replace(plain, variant=STRIDED[name].variant))
        with pytest.raises(ScheduleRefused):
            prove(STRIDED[name].schedule, replace(lowered(STRIDED[name]), variant=KERNELS[name].variant))
