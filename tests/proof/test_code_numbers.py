"""The proof leaves some faults to the numbers: a fault of each kind passes the proof, and the GPU shows the fault."""

import functools
import multiprocessing
import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from code_mutants.kernels import KERNELS
from code_mutants.on_gpu import RIGHT, run
from code_mutants.reading import Code, numbers_in, prove
from conftest import ROOT
from machine_code import cubin
from once import lowered
from pebble import ProcessPool
from tiers import sampled

from tl_attention.codeproof.read import text
from tl_attention.codeproof.read.calls import CALLS

Edits = tuple[tuple[str, str], ...]
DESIGN = ROOT / "docs" / "DESIGN.md"
# A product of the output's columns and of the scales or inverse sums of their rows.
OF_OUTPUT = r"\(acc_o \+ [^\n]*\n[^\n]*scores_scale[^\n]*\n *__\d+\.x = )\((v_\w+\.x)\*v_\w+\.x\)"
LEFT_OUT = (r"(i_\d+ < )88(; \+\+i_\d+\) \{\n(?: *if .*\n)? *denominator)", r"\g<1>87\2")
# The line's kind, the kernel, what stands in its code first, and what in its place.
FAULTS: dict[str, tuple[str, str, Edits]] = {
    "a sign in an exponential": (
        "arithmetic",
        "best",
        ((r"(__\d+\.y = __fmaf_rn\(v_\w*\.y, v_\w+\.y, )(v_\w+\.y\);)", r"\1-\2"),),
    ),
    "a maximum that is not scaled": (
        "arithmetic",
        "best",
        ((r"(__\d+\.x = )\((v_\w+\.x)\*v_\w+\.x\)(;\n.*\n *float2 v_\w+ = make_float2\(broadcast)", r"\1\2\3"),),
    ),
    "a score left out of its row's sum": ("arithmetic", "best", (LEFT_OUT,)),
    "a row's sum of one thread for that of four": (
        "arithmetic",
        "best",
        ((r"AllReduce<tl::Sum", "AllReduce<tl::Max"),),
    ),
    "a row of two that is left out": (
        "arithmetic",
        "best",
        ((r"(i_\d+ < )2(; \+\+i_\d+\) \{\n *scores_scale\[i_\d+\] = 0x0p)", r"\g<1>1\2"),),
    ),
    "an output that is not rescaled": ("arithmetic", "best", ((rf"({OF_OUTPUT}", r"\1\2"),)),
    "an output that is not divided": ("arithmetic", "best", ((rf"(?s)(.*{OF_OUTPUT}", r"\1\2"),)),
    "an output that is divided by another row's sum": (
        "arithmetic",
        "seed",
        ((r"(v__32 = make_float2\(denominator\[)\(i_28 & 1\)(\], denominator\[)\(i_28 & 1\)", r"\g<1>0\g<2>0"),),
    ),
    # These two show at some lengths only: `ends_of` has them.
    "a score left out that only a whole last block has": ("arithmetic", "one_tile", (LEFT_OUT,)),
    "scores converted twice": ("arithmetic", "seed", ((r"(\(&__23\)\)\[1\] = .*\(&v__30\)\)\[)1", r"\g<1>0"),)),
    "a key more hidden": ("mask", "best", ((r"(\(\(\(seq_kv \+ )176(\) - \(blocks_3 \* 176\)\) <= )", r"\g<1>175\2"),)),
    "another register stored": ("registers", "seed", ((r"(stmatrix.*acc_o\[\(+i_29 \* 8\) \+ )7", r"\g<1>6"),)),
    "another register filled with Q": (
        "registers",
        "q_registers",
        ((r"(\*\(uint1\*\)\(Q_local \+ )(.*?)\) = ", r"\g<1>(\2 ^ 2)) = "),),
    ),
    "a maximum of another type": ("declaration", "best", ((r"float (condval_2;)", r"bool \1"),)),
}
# Nothing that is computed changes.
HARMLESS: dict[str, tuple[str, str, Edits]] = {
    "a loop that is not written out": ("unrolling", "best", ((r" *#pragma unroll\n( *for \(int i_7 )", r"\n\1"),))
}
ALL = {**FAULTS, **HARMLESS}


def with_faults(kernel: str, names: Iterable[str]) -> Code:
    """Returns the code of a kernel with these faults."""
    code = lowered(KERNELS[kernel])
    source = code.source
    for pattern, replacement in (edit for name in names for edit in ALL[name][2]):
        source, found = re.subn(pattern, replacement, source, count=1)
        assert found, f"{pattern!r} matches nothing"
    return replace(code, source=source)


@functools.cache
def kinds(kernel: str) -> list[str]:
    """Returns what of each line of a kernel's source is left to the numbers, else ""."""
    source = lowered(KERNELS[kernel]).source
    found = text.read(source, CALLS).kinds
    return [numbers_in(found.get(line, "")).removeprefix("numbers: ") for line in range(len(source.splitlines()))]


def documented() -> set[str]:
    """Returns the kinds that docs/DESIGN.md lists."""
    section = DESIGN.read_text().split("\n## What the proof leaves to the numbers\n")[1]
    return set(re.findall(r"numbers: (\w+)", section.split("\n## ")[0]))


@pytest.mark.parametrize("name", ALL)
def test_a_fault_is_of_one_line_of_its_kind(name):
    kind, kernel, _ = ALL[name]
    lines = zip(
        lowered(KERNELS[kernel]).source.splitlines(), with_faults(kernel, [name]).source.splitlines(), strict=True
    )
    assert [kinds(kernel)[number] for number, (old, new) in enumerate(lines) if old != new] == [kind]


WRONG = sorted({kernel for _, kernel, _ in ALL.values()})


@pytest.mark.parametrize("kernel", sampled(WRONG, WRONG[::3]))
def test_faults_of_the_numbers_pass_the_proof(kernel):
    """All faults of a kernel are put in at once: a fault in what is read would be refused whatever the others are."""
    prove(KERNELS[kernel].schedule, with_faults(kernel, [name for name, (_, of, _) in ALL.items() if of == kernel]))


def test_each_documented_kind_has_a_fault():
    assert {kind for kind, *_ in ALL.values()} == documented()


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_kind_of_line_that_is_not_documented_is_left_to_the_numbers(kernel):
    assert set(kinds(kernel)) - {""} <= documented()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALL)
def test_the_numbers_show_it(name):
    source = with_faults(ALL[name][1], [name]).source
    with ProcessPool(1, context=multiprocessing.get_context("spawn")) as pool:
        result = pool.schedule(run, [ALL[name][1], source, cubin(source)], timeout=180).result()
    assert (result.outcome == RIGHT) == (name in HARMLESS)
