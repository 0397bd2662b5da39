"""The LSE in generated code: it is read and proved, and every fault of its store but one of its value is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from lse_kernels import CALL, KERNELS, Code, LseKernel, lowered, of_numbers, prove, stores, with_lse
from once import proved

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.lowering.device_code import STORE_LSE
from tl_attention.proof.generated.expression import arguments
from tl_attention.proof.generated.lse import OWN

# Each way to store the output and to add up a row, both fastest, a maximum that is not the row's own, both lowerings.
NAMES = [
    "best",
    "best_causal",
    "output_tma",
    "q_registers",
    "rescale_threshold",
    "ws_fa3_64x128",
    "seed",
    "three_stages",
]


def line_of(code: Code) -> str:
    [number] = stores(code.source)
    return code.source.splitlines()[number]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_accepted_and_one_line_more_in_the_kernel(name):
    kernel, code = with_lse(name)
    verdict = proved(kernel)
    [number] = stores(code.source)
    assert verdict.kinds[number] == "output, numbers: registers"
    assert not set(verdict.unreached) & {number}
    # Everything else is the kernel without it.
    plain = lowered(KERNELS[name]).source
    without = code.source.replace(STORE_LSE, "", 1).replace(line_of(code) + "\n", "")
    assert without.replace("float* __restrict__ LSE, ", "") == plain


def test_a_thread_is_counted_among_those_that_compute():
    """Behind the threads that load, where the compiler puts these first: such a kernel has no Program to prove it by."""
    calls = {name: line_of(lowered(LseKernel(name))).strip() for name in ("best", "seed", "inferred")}
    own = {name: arguments(call.removeprefix(CALL).removesuffix(");"))[-1] for name, call in calls.items()}
    assert own == {"best": OWN, "seed": OWN, "inferred": "(((int)threadIdx.x) - 128)"}


def test_without_it_nothing_of_it_is_there():
    for name in ("best", "seed"):
        code = lowered(KERNELS[name])
        assert "LSE" not in code.source + code.host_source and CALL not in code.source


# --- faults ----------------------------------------------------------------------------------------------------------


Change = Callable[[str], str]


def instead(pattern: str, replacement: str) -> Change:
    """In the line, which has this exactly once."""

    def change(line: str) -> str:
        changed, found = re.subn(pattern, replacement, line)
        assert found == 1, f"{pattern!r} matches {found} times in {line!r}"
        return changed

    return change


def within(condition: str) -> Change:
    return lambda line: f"if ({condition}) {{\n{line}\n}}"


# In a warp-specialised kernel: what the line becomes, and the words of the refusal.
WARP_SPECIALIZED: dict[str, tuple[Change, str]] = {
    "another row": (
        instead(r"\+ \(\(int64_t\)first_row_3\)\)\]", "+ ((int64_t)(first_row_3 + 8)))]"),
        "logarithms at another row than it has rows left from there",
    ),
    "other rows, and as many as there are from there on": (
        lambda line: line.replace("first_row_3", "(first_row_3 + 8)"),
        r"warpgroup 0 of block 0 stores \(8, 0, 0\) as \(row, head, batch\) of lse, expected \(0, 0, 0\)",
    ),
    "rows of the other warpgroup": (
        lambda line: line.replace("first_row_3", "(first_row_3 ^ 64)"),
        r"stores \(64, 0, 0\) as \(row, head, batch\) of lse, expected \(0, 0, 0\)",
    ),
    "another head": (
        instead(r"\(\(int64_t\)head_3\)", "((int64_t)(head_3 + 1))"),
        r"stores \(0, 1, 0\) as \(row, head, batch\) of lse, expected \(0, 0, 0\)",
    ),
    "the first head": (instead(r"\(\(int64_t\)head_3\)", "((int64_t)0)"), r"as \(row, head, batch\) of lse|of lse of"),
    "another batch": (
        instead(r"\(\(int64_t\)bz_3\)", "((int64_t)(bz_3 + 1))"),
        r"stores \(0, 0, 1\) as \(row, head, batch\) of lse, expected \(0, 0, 0\)",
    ),
    "the first batch": (instead(r"\(\(int64_t\)bz_3\)", "((int64_t)0)"), r"of lse of warpgroup 0 is .*, expected"),
    "heads of a batch as many as batches": (
        instead(r"\(int64_t\)heads", "(int64_t)batch"),
        r"of lse of warpgroup 0 is .*, expected",
    ),
    "no bound": (
        instead(r"\(seq_q - first_row_3\), ", "64, "),
        "logarithms at another row than it has rows left from there",
    ),
    "a bound of keys": (
        instead(r"\(seq_q - first_row_3\), ", "(seq_kv - first_row_3), "),
        "logarithms at another row than it has rows left from there",
    ),
    "a row more than there are": (
        instead(r"\(seq_q - first_row_3\), ", "((seq_q - first_row_3) + 1), "),
        "logarithms at another row than it has rows left from there",
    ),
    "none": (lambda line: "", r"warpgroup 0 of block 0 stores nothing as \(row, head, batch\) of lse"),
    "two": (lambda line: f"{line}\n{line}", r"as \(row, head, batch\) of lse, expected|of lse besides"),
    "by the first warpgroup alone": (within("wg_2 == 0"), "warpgroup 1 of block 0 stores nothing .* of lse"),
    "by the second warpgroup alone": (within("wg_2 == 1"), "warpgroup 0 of block 0 stores nothing .* of lse"),
    "by half of a warpgroup": (
        within("((int)threadIdx.x) < 64"),
        "64 of the 128 threads of warpgroup 0 of block 0 run it",
    ),
    "by one lane": (within("tl::tl_shuffle_elect<32>()"), "of the 128 threads of warpgroup 0 of block 0 run it"),
    "of the first tiles alone": (within("turn_1 < 1"), "stores nothing .* of lse|of lse of warpgroup 0"),
    "into the output": (instead(r"&\(LSE\[", "&(Output["), "stores logarithms as Output"),
    "into a register": (instead(r"&\(LSE\[", "&(acc_o["), "a store of logarithms of a form that is not known"),
    "of one register": (
        instead(r"store_lse\(scores_max, ", "store_lse(broadcast_var_2, "),
        "a store of logarithms of a form that is not known",
    ),
    "of what is no register": (
        instead(r"store_lse\(scores_max, ", "store_lse(Output, "),
        "a store of logarithms of a form that is not known",
    ),
    "of another thread": (
        instead(r"\(\(int\)threadIdx.x\)\);", "(((int)threadIdx.x) ^ 4));"),
        "a store of logarithms of a form that is not known",
    ),
    "with a seventh argument": (
        instead(r"store_lse\(scores_max, ", "store_lse(scores_max, scores_max, "),
        "a store of logarithms of a form that is not known",
    ),
}
PIPELINED: dict[str, tuple[Change, str]] = {
    "another row": (
        instead(r"\(int64_t\)128\)", "(int64_t)136)"),
        "logarithms at another row than it has rows left from there",
    ),
    "other rows, and as many as there are from there on": (
        lambda line: instead(r"\* 128\)\), \(", "* 64)), (")(instead(r"\(int64_t\)128\)", "(int64_t)64)")(line)),
        r"it stores logarithms of \(64, .* as \(row, head, batch\), expected \(128, ",
    ),
    "another head": (
        instead(r"\(\(int\)blockIdx.y\)", "(((int)blockIdx.y) + 1)"),
        r"it stores logarithms of .* as \(row, head, batch\), expected",
    ),
    "another batch": (
        instead(r"\(\(int\)blockIdx.z\)", "(((int)blockIdx.z) + 1)"),
        r"it stores logarithms of .* as \(row, head, batch\), expected",
    ),
    "heads of a batch as many as batches": (
        instead(r"\(int64_t\)heads", "(int64_t)batch"),
        r"it stores logarithms of .* as \(row, head, batch\), expected",
    ),
    "no bound": (
        instead(r"\(seq_q - \(\(\(int\)blockIdx.x\) \* 128\)\), ", "128, "),
        "logarithms at another row than it has rows left from there",
    ),
    "a bound of keys": (
        instead(r"\(seq_q - ", "(seq_kv - "),
        r"it stores logarithms of \(-128, 1, 44\) as \(row, head, batch\), expected \(0, 2, 1\)",
    ),
    "none": (lambda line: "", "a block stores the logarithms of 0 tiles"),
    "two": (lambda line: f"{line}\n{line}", "a block stores the logarithms of 2 tiles"),
    "by the first warpgroup alone": (within("((int)threadIdx.x) < 128"), "128 of the 256 threads of block .* run it"),
    "of the first tiles alone": (within("((int)blockIdx.x) < 1"), "a block stores the logarithms of 0 tiles"),
    "into the output": (instead(r"&\(LSE\[", "&(K["), "stores logarithms as K"),
}
FAULTS = {("best", name): fault for name, fault in WARP_SPECIALIZED.items()}
FAULTS |= {("seed", name): fault for name, fault in PIPELINED.items()}
FAULTS |= {("output_tma", name): WARP_SPECIALIZED[name] for name in ("none", "two", "another head")}


@pytest.mark.parametrize("name,fault", FAULTS)
def test_a_fault_of_the_store_is_refused(name, fault):
    change, words = FAULTS[name, fault]
    kernel, code = with_lse(name)
    line = line_of(code)
    with pytest.raises(ScheduleRefused, match=words):
        prove(kernel.schedule, replace(code, source=code.source.replace(line, change(line))))


@pytest.mark.parametrize("name", ["best", "seed"])
def test_a_store_that_was_not_asked_for_is_refused(name):
    """Code that stores the LSE, where the variant has none."""
    kernel, code = with_lse(name)
    plain = KERNELS[name].variant
    kept = tuple(parameter for parameter in code.parameters if parameter.name != "LSE")
    with pytest.raises(ScheduleRefused, match="'.*' stands before the kernel"):
        prove(kernel.schedule, replace(code, variant=plain, parameters=kept))
    with pytest.raises(ScheduleRefused, match="its caller gives|what stands before the kernel"):
        prove(kernel.schedule, replace(lowered(KERNELS[name]), variant=code.variant, parameters=code.parameters))


HOST = {
    "the output's address for that of the LSE": (r"(\.v_ptr\) = )LSE;", r"\1Output;"),
    "rows as many as the LSE has heads": (
        r"int32_t seq_q = .*;",
        "int32_t seq_q = ((int32_t)((int64_t*)attention_LSE_shape)[1]);",
    ),
    "the LSE where the output belongs": (r"void\* LSE = \(\(\(DLTensor\*\)LSE_", "void* LSE = (((DLTensor*)Output_"),
}


@pytest.mark.parametrize("fault", HOST)
def test_a_fault_of_the_launch_is_refused(fault):
    kernel, code = with_lse("best")
    pattern, replacement = HOST[fault]
    changed, found = re.subn(pattern, replacement, code.host_source)
    assert found == 1
    with pytest.raises(InputError):
        prove(kernel.schedule, replace(code, host_source=changed))


# --- what is left to the numbers ---------------------------------------------------------------------------------------


# tests/test_op_lse.py shows them on a GPU.
VALUES = {
    "the maximum before the last block": ("best", r"store_lse\(scores_max,", "store_lse(scores_max_prev,"),
    "a sum of one thread": ("best", r", scores_scale, ", ", denominator, "),
    "a scale of natural units": ("best", r"0x1\.71547652b82fep\+0f/\*1\.442695e\+00\*/", "0x1p+0f/*1.000000e+00*/"),
    "the sum of the last block": ("seed", r", denominator, ", ", scores_sum, "),
}


def with_value(fault: str) -> tuple[LseKernel, Code]:
    """A kernel whose store is given another value."""
    name, pattern, replacement = VALUES[fault]
    kernel, code = with_lse(name)
    line = line_of(code)
    return kernel, replace(code, source=code.source.replace(line, instead(pattern, replacement)(line)))


@pytest.mark.parametrize("fault", VALUES)
def test_a_fault_of_the_value_passes_the_proof(fault):
    kernel, code = with_value(fault)
    [number] = stores(code.source)
    assert of_numbers(prove(kernel.schedule, code).kinds[number]) == "numbers: registers"
