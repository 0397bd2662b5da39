"""A submission carries the package's own program, which reads as the Program has it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tilelang.transform
from code_mutants.kernels import generated
from made_up import far
from made_up.kernel import launch
from mma_sync_schedules import SHIPPED as FAMILY_AND_TOP
from mma_sync_schedules import head_dim
from mutations import shipped
from overlap import FORMS, overlap
from pydantic.fields import FieldInfo
from specialized import hundred
from submissions import SCHEDULES, import_file
from tiers import sampled
from tvm import IRModule, tirx

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.registry import LOWERINGS, lowering_of
from tl_attention.kernels.shared.signature import prim_func
from tl_attention.lab.leaderboard import program, source
from tl_attention.lab.leaderboard.program import packed_program
from tl_attention.lab.leaderboard.submission import VARIANT
from tl_attention.lab.search.choices import choices
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.schedule.dialect import dialects
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions, Split
from tl_attention.schedule.schedule import Schedule

PACKAGE = Path(program.__file__).parents[2]


def values(field: FieldInfo) -> tuple[Any, ...]:
    """Returns the values of an option that are a choice of their own: all, or none and any."""
    found = choices(field)
    return found if 1 < len(found) <= 3 else (False, True)


OPTIONS = {"kernel": KernelOptions, "softmax": SoftmaxOptions, "split": Split}
# Options that no lowering of the forward takes.
OF_GRADIENTS = {
    name
    for key, options in OPTIONS.items()
    for name in options.model_fields
    if not any(dialect.takes(f"{key}.{name}") for dialect in dialects())
}


def facts(schedule: Schedule) -> set[tuple[str, Any]]:
    """Returns the options of a schedule."""
    return {
        (name, value if value in values(field) else bool(value))
        for options in (schedule.kernel, schedule.softmax, schedule.split)
        for name, field in type(options).model_fields.items()
        for value in [getattr(options, name)]
        if name not in OF_GRADIENTS
    }


def has_order(schedule: Schedule) -> bool:
    """Says whether a schedule's waits and releases come where they can."""
    try:
        return bool(derive(schedule))
    except ScheduleRefused:
        return False


def covering(schedules: list[Schedule]) -> Iterator[Schedule]:
    """Yields few schedules that together have every fact that any schedule has."""
    left = set().union(*map(facts, schedules))
    while left:
        best = max(schedules, key=lambda schedule: len(facts(schedule) & left))
        left -= facts(best)
        yield best


MMA_SYNC = [schedule for name, schedule in FAMILY_AND_TOP.items() if head_dim(name) == 128]
# A submission does not pass the counter that the dynamic scheduler takes.
SPECIALISED = [schedule for schedule in filter(has_order, hundred(0)) if schedule.kernel.tile_scheduler != "dynamic"]
COVERING = list(covering([*SPECIALISED, *MMA_SYNC]))
MASKS = (FULL, CAUSAL, Mask(left=256, right=0))
# Every form of a loop under a mask, and every option under one of them.
TRACED = {
    **{f"{form} causal": (overlap(form), CAUSAL) for form in FORMS},
    **{f"option {n}": (schedule, MASKS[n % 3]) for n, schedule in enumerate(COVERING)},
    **{f"{name} causal": (shipped()[name], CAUSAL) for name in ("seed", "prefetch_late", "mma_sync")},
    **{name: (schedule, FULL) for name, schedule in SCHEDULES.items()},
}
# What is lowered: a schedule of each lowering, and every option.
PACKED = SCHEDULES | {f"option {n}": schedule for n, schedule in enumerate(COVERING)}


def whole(packed: program.ProgramText) -> str:
    """Returns a packed program as the text of a module."""
    return "\n".join(["import tilelang.language as T", *packed.imports, *packed.of_tilelang, packed.text])


def traced(packed: program.ProgramText, folder: Path) -> tirx.PrimFunc:
    """Returns the prim_func of a packed program."""
    return import_file(folder / "packed.py", whole(packed)).attention_kernel()


def plain(prim_func: tirx.PrimFunc) -> str:
    """Returns a prim_func's text without the names that macros give to what they are passed."""
    module = tilelang.transform.Simplify()(tilelang.transform.LetInline()(IRModule({"main": prim_func})))
    return module["main"].script()


def undefined(text: str) -> str:
    """Returns what ruff says of names that are not defined."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stdout


# The programs are compared as text, too, all of them.
@pytest.mark.parametrize("name", sampled([*SCHEDULES, "option 0"], ["best"]))
def test_the_packed_program_lowers_to_exactly_the_packages_cuda(name, tmp_path):
    schedule = PACKED[name]
    own = lowering_of(schedule).prim_func(Planned(schedule), VARIANT)
    packed = traced(packed_program(Planned(schedule), VARIANT), tmp_path)
    assert generated(packed, schedule, VARIANT) == generated(own, schedule, VARIANT)


def test_every_lowering_is_lowered():
    assert {schedule.lowering for schedule in SCHEDULES.values()} == {*LOWERINGS}


def test_the_sample_has_every_option():
    fields = [field for options in OPTIONS.values() for field in options.model_fields.items()]
    every = {(name, value) for name, field in fields for value in values(field) if name not in OF_GRADIENTS}
    assert set().union(*map(facts, COVERING)) == every - {("tile_scheduler", "dynamic")}


@pytest.mark.parametrize("name", sampled(TRACED, ["option 0", "best", "seed causal", "mma_sync causal", "inferred"]))
def test_the_packed_program_is_the_packages_own(name, tmp_path):
    schedule, mask = TRACED[name]
    variant = Variant(128, "bfloat16", mask, group=1, sms=114)
    packed = packed_program(Planned(schedule), variant)
    text = packed.text
    assert plain(traced(packed, tmp_path)) == plain(lowering_of(schedule).prim_func(Planned(schedule), variant))
    assert undefined(whole(packed)).strip() == "All checks passed!"
    defined = [node.name for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    uncalled = [name for name in defined if text.count(name) == 1]
    assert uncalled == ["attention_kernel"] and max(Counter(defined).values()) == 1


def test_the_steady_state_is_the_programs_as_one_reads_it():
    text = packed_program(Planned(shipped()["best"]), VARIANT).text
    lines = text.partition("def steady(")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.strip() for line in lines] == [
        "take_turn(t, tile, s, c)",
        "wait_k(t, tile, s, c)",
        "issue_mma0(t, tile, s, c)  # in flight: mma0(t)",
        "wait_v(t - 1, tile, s, c)",
        "issue_mma1(t - 1, tile, s, c)  # in flight: mma0(t), mma1(t - 1)",
        "pass_turn(t, tile, s, c)",
        "max_prev(t, tile, s, c)",
        "wait_mma0(t, tile, s, c, outstanding=1)  # in flight: mma1(t - 1)",
        "release_k(t, tile, s, c)",
        "row_max(t, tile, s, c, masked=False)",
        "scale(t, tile, s, c, masked=False)",
        "exp(t, tile, s, c, masked=False, columns=(0, 48))",
        "hold_last(t, tile, s, c, registers=(0, 24))",
        "wait_mma1(t - 1, tile, s, c, outstanding=0)  # in flight: nothing",
        "release_v(t - 1, tile, s, c)",
        "exp(t, tile, s, c, masked=False, columns=(48, 176))",
        "row_sum_of_thread(t, tile, s, c)",
        "cast(t, tile, s, c)",
        "rescale(t, tile, s, c)",
    ]
    text = packed_program(Planned(shipped()["mma_sync"]), VARIANT).text
    products = "frag_q(t - 1, tile, s, c, first=7, steps=1)\n    mma0(t - 1, tile, s, c, first=7, steps=1)\n    wait("
    assert products in text


# --- what stands below the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_functions_and_classes_stand_to_the_letter(name: str) -> None:
    text = packed_program(Planned(SCHEDULES[name]), VARIANT).text
    files = [path.read_text() for room in ("kernels", "problem") for path in (PACKAGE / room).rglob("*.py")]
    printed = {"attention_kernel", "prologue", "steady", "steady_masked", "epilogue"}
    functions = 0
    for node in ast.parse(text).body:
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        for part in parts:
            if isinstance(part, (ast.FunctionDef, ast.AnnAssign)) and getattr(part, "name", None) not in printed:
                segment = ast.get_source_segment(text, part)
                assert any(segment in file for file in files), segment
                functions += isinstance(part, ast.FunctionDef)
    assert functions > 10


def test_what_does_not_run_is_none() -> None:
    text = packed_program(Planned(SCHEDULES["best"]), VARIANT).text
    absent = re.findall(r"(\w+) = (?=\w+ = |None\n)", text)
    assert {"store_tma", "tapered", "list_tiles", "steady_masked"} <= {*absent} and "store_vector" not in absent
    assert [name for name in absent if f"def {name}(" in text] == []


def test_kernels_are_written_as_their_authors_like(tmp_path, monkeypatch) -> None:
    """In made_up/ two modules define one name, and modules are imported as a whole or under another name."""
    monkeypatch.setattr(source, "PACKAGE", "made_up")
    best = lowering_of(SCHEDULES["best"])
    made_up = SimpleNamespace(launch=lambda: launch, constants=best.constants, asked_by=best.asked_by)
    monkeypatch.setattr(program, "lowering_of", lambda schedule: made_up)
    planned = Planned(SCHEDULES["best"])
    found = packed_program(planned, VARIANT, taken=["base64"])
    assert "def put(" in found.text and "def far_put(" in found.text and "def near_base64(" in found.text
    assert "absent = late = other = None\n" in found.text and "def never" not in found.text
    assert [line for line in whole(found).splitlines() if "made_up" in line or "TL" in line] == []
    assert '# A pair of numbers.\nclass Pair:\n    """A Pair."""\n\n    def __init__(' in found.text
    assert found.of_tilelang == ("from tvm import tirx",) and set(found.imports) > {"import operator as numbers"}
    own = prim_func(launch, best.constants(planned, VARIANT), VARIANT, ())
    assert plain(traced(found, tmp_path)) == plain(own) and 'T.Cast("float16", 21)' in own.script()
    monkeypatch.setitem(far.CHOICES, "float16", far.late)
    with pytest.raises(InputError, match="^made_up.far: late imports when it is called, expected imports above it$"):
        packed_program(planned, VARIANT)
