"""A sketch of a kernel's code has about the instructions of its machine code, and meets other roles as that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from conftest import ROOT
from model_code import disassemblies

from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import called
from tl_attention.lab.measure.compilation import refusal_of
from tl_attention.lab.measure.records import Row, read_all
from tl_attention.lab.model.instructions import read
from tl_attention.lab.model.machine import load as load_machine
from tl_attention.lab.model.prediction import guess
from tl_attention.lab.model.roles import run
from tl_attention.lab.model.sketch import Sketch
from tl_attention.lab.model.steps import WarpStep, columns, tile_code
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.catalogue import names
from tl_attention.schedule.files.named import load

H200 = load_machine("h200")
SHAPE = AttentionShape(4, 64, 8192, 8192, 128, "bfloat16")
# What computes a block; ptxas adds moves, and code for addresses and masks.
COUNTED = ("HGMMA", "MUFU", "FFMA", "FMUL", "FADD", "FMNMX", "F2FP", "SHFL")
SPECIALISED = [name for name in names() if load(name).lowering == "warp_specialized"]


def counted(steps: Sequence[WarpStep]) -> Counter[str]:
    return Counter(step.instruction.name for step in steps)


@pytest.mark.parametrize("name", ["best", "best_causal"])
def test_a_sketch_has_the_instructions_of_the_machine_code(name) -> None:
    code, sketch = tile_code(read(disassemblies()[name]), H200), Sketch(Planned(load(name)), 128, H200)
    ours, theirs = counted(sketch.steady), counted(code.steady)
    assert columns(sketch.steady) == columns(code.steady) and sketch.again == code.again
    assert {kind for kind in COUNTED if abs(ours[kind] - theirs[kind]) > 6} == set()
    assert sum(step.stall for step in sketch.steady) == pytest.approx(sum(step.stall for step in code.steady), rel=0.25)


def waited(planned: Planned) -> int:
    """Returns how many waits of a consumer nobody has ended when all roles have run two tiles of five KV blocks."""
    quarter = run(planned, Sketch(planned, 128, H200), [(5, 0)] * 2, H200, 128)
    return sum((2,) not in account.marks for account in quarter.accounts.values())


@pytest.mark.parametrize("name", SPECIALISED)
def test_the_roles_of_a_sketch_all_end(name) -> None:
    schedule = load(name)
    kernel = schedule.kernel
    forms = [
        kernel.model_copy(update=update)
        for update in ({}, {"q_operand": "registers"}, {"output": "tma"}, {"output": "direct"}, {"p_operand": "shared"})
    ]
    for form in forms:
        planned = Planned(schedule.model_copy(update={"kernel": form}))
        if not refusal_of(called("", SHAPE, planned)):
            assert not waited(planned), form


def test_a_guess_is_near_what_was_recorded() -> None:
    """The record has these as milliseconds on an H200, in bf16."""
    rows = [
        row for row in read_all(Row, ROOT / "results/bench-h200-L.jsonl") if row.median_ms and row.sizes == "runtime"
    ]
    measured = {
        row.name: row.median_ms for row in rows if row.problem["dtype"] == "bfloat16" and row.name in SPECIALISED
    }
    guessed = {name: guess(called(name, SHAPE, Planned(load(name))), H200) for name in measured}
    assert len(measured) > 4 and guessed == pytest.approx(measured, rel=0.08)


def test_another_lowering_has_no_sketch() -> None:
    for name in ("seed", "mma_sync"):
        planned = Planned(load(name))
        with pytest.raises(InputError, match="no sketch of its code, expected lowering: warp_specialized"):
            guess(replace(called(name, SHAPE, planned), arch="sm_90a"), H200)
