"""The generated code with a softcap and with sinks: it passes its proof, and faults in what the proof reads do not.

Left to the numbers: the cap's arithmetic, whether hidden keys are kept from their neighbours, and what is made of a sink.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import Kernel
from code_mutants.reading import prove
from generated_faults import replaced
from once import lowered, proved

from tl_attention.errors import ScheduleRefused

BOTH = frozenset({"softcap", "Sinks"})
KERNELS = {
    "best": Kernel("best", optional=BOTH),
    "dynamic": Kernel("best_causal", causal=True, dtype="bfloat16", optional=BOTH),
    "rows": Kernel("ws_seed", optional=BOTH, head_dim=64),
    "seed": Kernel("seed", causal=True, optional=BOTH),
}
READ = r"( *)sink\[0\] = Sinks\[\(\(int64_t\)(\w+|\(\(int\)blockIdx\.y\))\)\];\n"
STORE = r"( *)(tl_attention_store<.*\n)"
# The kernel, the pattern, what stands in its place, and the words of the refusal; of the host's code where that is said.
FAULTS: dict[str, tuple[str, str, str, str]] = {
    "the sink of the next head": ("best", READ, r"\1sink[0] = Sinks[(\2 + 1)];\n", r"the sinks of heads \[1\]"),
    "the sink of the first head": ("best", READ, r"\1sink[0] = Sinks[0];\n", r"the sinks of heads? \[?0"),
    "the sink of the batch": ("dynamic", READ, r"\1sink[0] = Sinks[bz_1];\n", r"the sinks of heads? \[?0"),
    "the sink of a head of the first 256": (
        "best",
        READ,
        r"\1sink[0] = Sinks[(\2 & 255)];\n",
        r"the sinks? of heads? \[?\d+",
    ),
    "the sink of the tile": ("best", READ, r"\1sink[0] = Sinks[tile_1];\n", "the sinks? of head"),
    "no sink is read": ("best", READ, "", r"with the sinks of heads \[\]"),
    "two sinks are read": ("rows", READ, r"\g<0>\g<0>", r"the sinks of heads \[0, 0"),
    "half of the threads read a sink": (
        "best",
        READ,
        r"\1if (((int)threadIdx.x) < 64) {\n\g<0>\1}\n",
        "64 of the 128 threads of .* run it",
    ),
    "the sink is read behind the store": (
        "best",
        rf"{READ}([\s\S]*?)\n{STORE}",
        r"\3\n\4\5\1sink[0] = Sinks[\2];\n",
        r"with the sinks of heads \[\]",
    ),
    "another tensor's element for a sink": ("best", r"= Sinks\[", "= Output[", "is nothing that is known"),
    "a cap of some of the scores": ("best", r"cap<88, false>", "cap<80, false>", "is nothing that is known"),
    "another cap": ("best", r"furthest <= 0\.375f", "furthest <= 9.5f", "is not its prelude"),
    "the pipelined kernel's sink of the batch": (
        "seed",
        READ,
        r"\1sink[0] = Sinks[((int64_t)((int)blockIdx.z))];\n",
        r"the sinks of heads \[1\]",
    ),
    "the pipelined kernel reads no sink": ("seed", READ, "", r"with the sinks of heads \[\]"),
    "the pipelined kernel's sink of a thread": (
        "seed",
        READ,
        r"\1sink[0] = Sinks[((int)threadIdx.x)];\n",
        "value differs between threads",
    ),
}
HOST: dict[str, tuple[str, str, str, str]] = {
    "the scale for the softcap": ("best", r"\(\(double\)softcap\)", "((double)softmax_scale)", "is launched with"),
    "V's address for the sinks'": (
        "seed",
        r"(stack_ffi_any\)\[\d+\]\.v_ptr\) = )Sinks;\n",
        r"\1V;\n",
        "in the form that TileLang|is launched with",
    ),
}
# They pass: the numbers show them.
NUMBERS: dict[str, tuple[str, str, str]] = {
    "scores not capped": ("best", r" *tl_attention_cap<88, false>.*\n", ""),
    "hidden keys among their neighbours": ("best", r"cap<88, true>", "cap<88, false>"),
    "a sink that weighs nothing": ("best", r"float sink_1 = .*;", "float sink_1 = -CUDART_INF_F;"),
    "another cap of the pipelined kernel": ("seed", r"(condval_2 = )acc_s\[i_6\];", r"\g<1>acc_s[0];"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_proof_passes(name):
    code = lowered(KERNELS[name])
    assert proved(KERNELS[name]).digest
    assert [parameter.name for parameter in code.parameters][5:7] == ["softcap", "Sinks"]
    assert len(re.findall(READ, code.source)) == 1


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(name):
    kernel, pattern, replacement, words = FAULTS[name]
    code = lowered(KERNELS[kernel])
    with pytest.raises(ScheduleRefused, match=words):
        prove(KERNELS[kernel].schedule, replace(code, source=replaced(code.source, ((pattern, replacement),))))


@pytest.mark.parametrize("name", HOST)
def test_a_fault_of_the_launch_is_refused(name):
    kernel, pattern, replacement, words = HOST[name]
    code = lowered(KERNELS[kernel])
    with pytest.raises(ScheduleRefused, match=words):
        prove(
            KERNELS[kernel].schedule, replace(code, host_source=replaced(code.host_source, ((pattern, replacement),)))
        )


@pytest.mark.parametrize("kernel", sorted({kernel for kernel, *_ in NUMBERS.values()}))
def test_arithmetic_is_left_to_the_numbers(kernel):
    """All of a kernel's faults at once, each of which changes lines that are left to the numbers."""
    code = lowered(KERNELS[kernel])
    edits = tuple((pattern, into) for of, pattern, into in NUMBERS.values() if of == kernel)
    prove(KERNELS[kernel].schedule, replace(code, source=replaced(code.source, edits)))


def test_without_them_nothing_is_read_for_them():
    """A kernel without sinks that reads one is refused, and one that takes what its variant has not."""
    code = lowered(KERNELS["seed"])
    with pytest.raises(ScheduleRefused, match="its caller gives"):
        prove(KERNELS["seed"].schedule, replace(code, parameters=code.variant.parameters()[:5]))
