"""Tests check what the proof leaves of generated code with a softcap and with sinks. Faults: tests/faults/softcap.py.

The proof leaves to the numbers the cap's arithmetic, whether hidden keys are kept from their neighbours, and what is
made of a sink.
"""

import re
from dataclasses import replace

import pytest
from code_mutants.reading import prove
from golden_kernels import KERNELS
from once import lowered
from tiers import sampled

from tl_attention.errors import ScheduleRefused

BOTH = ("softcap", "Sinks")
READ = r"( *)own\[0\] = Sinks\[\(\(int64_t\)(\w+|\(\(int\)blockIdx\.y\))\)\];\n"
# They pass: the numbers show them.
NUMBERS: dict[str, tuple[str, str, str]] = {
    "scores not capped": ("best, asked", r" *tl_attention_cap<88, false>.*\n", ""),
    "hidden keys among their neighbours": ("best, asked", r"cap<88, true>", "cap<88, false>"),
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
