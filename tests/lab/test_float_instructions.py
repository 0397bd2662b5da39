"""The formula says which float instructions of the softmax the machine code has, and what fusing the scale saves."""

from dataclasses import replace

import pytest
from conftest import ROOT
from pages.float_instructions import by_formula, counted, products_of_a_block
from tiers import exhaustive

from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.lab.machine_code.sass import Loop
from tl_attention.lab.measure.records import read_rows
from tl_attention.problem.mask import FULL
from tl_attention.problem.variant import Variant
from tl_attention.schedule.configuration import parse, schedule_of
from tl_attention.schedule.schedule import Schedule

RECORD = ROOT / "results/ladder-rtx3090_tuned-h200.jsonl"
KERNEL_5 = "(128, 64, 64, 4): async+eager+swizzled+load_2_2_2_fragments+buffer"


def of(text: str) -> Schedule:
    return schedule_of(parse(text))


@exhaustive
def test_the_machine_code_has_what_the_formula_says_fused_and_not():
    text = "(128, 64, 32, 4): async+eager+swizzled+load_2_2_2_fragments"
    variant = Variant(128, "float16", FULL, arch="sm_86")
    schedules = of(text), of(f"{text}+opt_softmax")
    found = [counted(s, variant.head_dim, MachineCode(compile_kernel(s, variant)).report.loops) for s in schedules]
    assert found == [by_formula(schedule, variant.head_dim) for schedule in schedules]
    # One for each score of a thread.
    assert sum(found[0].values()) - sum(found[1].values()) == 16


def test_the_formula_is_what_was_counted_of_every_kernel_of_the_choice():
    """The kernels are of all tiles, compiled for sm_90a and counted on the machine where they were measured."""
    rows = [row for row in read_rows(RECORD) if row.name.startswith("(") and row.loops]
    assert len({row.name for row in rows}) > 100
    for row in rows:
        schedule = Schedule.from_label(row.label)
        assert counted(schedule, 128, row.loops) == by_formula(schedule, 128), row.name


def test_only_the_steady_loop_counts_and_what_is_no_arithmetic_does_not():
    schedule = of(KERNEL_5)
    assert products_of_a_block(schedule, 128) == 2 * 64
    loop = Loop(300, {"HMMA": 128, "FFMA": 7, "MUFU": 5, "MOV": 9}, 5)
    masked = replace(loop, instructions=400, counts={"HMMA": 128, "FFMA": 70})
    assert counted(schedule, 128, (masked, loop)) == {"FFMA": 7, "FMUL": 0, "FADD": 0, "FMNMX": 0, "MUFU": 5}


def test_what_cannot_be_counted_is_refused_in_words():
    loop = Loop(300, {"HMMA": 64}, 5)
    with pytest.raises(InputError, match="the steady loop has 64 mma.sync, expected the 128 of a KV block"):
        counted(of(KERNEL_5), 128, [loop])
    with pytest.raises(InputError, match="the steady loop has 0 mma.sync, expected the 128"):
        counted(of(KERNEL_5), 128, [])
