"""The proof says what it leaves to the numbers of code with a softcap, sinks and strides.

Faults of such code stand in faults/softcap.py and strides.py.
"""

import re
from dataclasses import replace

import pytest
from code_mutants.reading import prove
from golden_kernels import KERNELS
from once import lowered
from tiers import sampled

from tl_attention.codeproof.registry import PROOFS
from tl_attention.codeproof.tiles.unknowns import Unknowns
from tl_attention.errors import ScheduleRefused
from tl_attention.problem.variant import Sizes
from tl_attention.program.derivation import derive

BOTH = ("softcap", "Sinks")
READ = r"( *)own\[0\] = Sinks\[\(\(int64_t\)(\w+|\(\(int\)blockIdx\.y\))\)\];\n"
# They pass: the numbers show them.
NUMBERS: dict[str, tuple[str, str, str]] = {
    "scores not capped": ("best, asked", r" *tl_attention_cap<88, false>.*\n", ""),
    "hidden keys among their neighbours": ("best, asked", r"cap<88, true>", "cap<88, false>"),
    "hidden keys among an invariant kernel's": ("softcap, invariant", r"(condval_\d+ = )0x0p\+0f/.*;", r"\g<1>1.0f;"),
    "a sink that weighs nothing": ("best, asked", r"float sink = .*;", "float sink = -CUDART_INF_F;"),
    "another cap of the pipelined kernel": ("seed, asked", r"(condval_2 = )acc_s\[i_6\];", r"\g<1>acc_s[0];"),
}


@pytest.mark.parametrize("name", ["best, asked", "best_causal, asked", "ws_seed, asked", "seed, asked"])
def test_a_sink_is_read_once(name):
    code = lowered(KERNELS[name])
    assert [p.name for p in code.parameters if p.name in BOTH] == [*BOTH]
    assert len(re.findall(READ, code.source)) == 1


@pytest.mark.parametrize("kernel", sampled(sorted({kernel for kernel, *_ in NUMBERS.values()}), ["seed, asked"]))
def test_arithmetic_is_left_to_the_numbers(kernel):
    """All of a kernel's faults are put in at once; each changes lines that are left to the numbers."""
    code = lowered(KERNELS[kernel])
    source = code.source
    for of, pattern, into in NUMBERS.values():
        if of == kernel:
            source, found = re.subn(pattern, into, source)
            assert found, f"{pattern!r} matches nothing"
    prove(KERNELS[kernel].schedule, replace(code, source=source))


def test_without_them_nothing_is_read_for_them():
    """A kernel without sinks is refused if it reads one, or if it takes what its variant does not have."""
    code = lowered(KERNELS["seed, asked"])
    with pytest.raises(ScheduleRefused, match="its caller gives"):
        prove(
            KERNELS["seed, asked"].schedule,
            replace(code, parameters=tuple(p for p in code.parameters if p.name != "Sinks")),
        )


def test_strides_have_64_bits_from_the_caller_to_the_kernel():
    for name in ("best", "seed"):
        code = lowered(KERNELS[f"{name}, asked"])
        plan = code.plan
        assert {(s.name, s.tensor, s.axis) for s in plan.strides} == {
            (f"{tensor}_{dim}_stride", tensor, axis)
            for tensor in ("Q", "K", "V", "Output")
            for axis, dim in enumerate(("batch", "head", "row"))
        }
        taken = {p.name: p.kind for p in plan.parameters if p.name.endswith("_stride")}
        assert set(taken.values()) == {"int64_t"}
        # What addresses are made of; TMA descriptors have the others.
        tensors = {name.partition("_")[0] for name in taken}
        assert tensors == ({"Output"} if name == "best" else {"Q", "K", "V", "Output"})
        assert "(int)Q_" not in code.source and "((int)Output_" not in code.source


def test_copies_of_strided_rows_take_16_bytes():
    code = lowered(KERNELS["seed, asked"])
    assert "tl::cp_async_gs_conditional<16>" in code.source and "= *(uint4*)(Q + " in code.source


def test_the_strides_of_a_run_with_numbers_are_unlike_each_other():
    kernel = KERNELS["mma_sync_small, asked"]
    proof = PROOFS["mma_sync"](kernel.schedule, derive(kernel.schedule), lowered(kernel))
    names = Unknowns.from_numbers(proof, Sizes(2, 6, 50, 64)).names
    strides = [names[stride] for parameter in proof.code.parameters for stride in parameter.strides]
    assert len({*strides}) == len(strides) == 12 and all(stride % 8 == 0 for stride in strides)


def test_a_contiguous_kernel_is_not_taken_for_a_strided_one():
    for name in ("best", "seed"):
        asked = KERNELS[f"{name}, asked"]
        for kernel, strided in ((KERNELS[name], True), (asked, False)):
            code = lowered(kernel)
            with pytest.raises(ScheduleRefused):
                prove(kernel.schedule, replace(code, variant=replace(code.variant, strided=strided)))
