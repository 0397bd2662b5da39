"""The program that a submission carries: the same as the package's own, with nothing in it that is not used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tilelang.transform
from mma_sync_schedules import SHIPPED as FAMILY_AND_TOP
from mma_sync_schedules import head_dim
from mutations import shipped
from overlap import FORMS, overlap
from packed_text import FILES, dead_parts, loose_words
from pydantic.fields import FieldInfo
from specialized import RANDOM
from submissions import SCHEDULES
from tvm import IRModule, tirx

from tl_attention.errors import ScheduleRefused
from tl_attention.leaderboard.program_text import program_text
from tl_attention.leaderboard.specialise.layout import FORMAT, LINE_LENGTH
from tl_attention.leaderboard.specialise.source import read_source
from tl_attention.lowering.registry import LOWERINGS, lowering_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.schedule.choices import choices
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions, Split
from tl_attention.schedule.schedule import Schedule

HEADER = "import tilelang.language as T\nfrom types import SimpleNamespace\n\n"


def values(field: FieldInfo) -> tuple[Any, ...]:
    """Those of an option that are a choice of their own: all, or none and any."""
    found = choices(field)
    return found if 1 < len(found) <= 3 else (False, True)


def facts(schedule: Schedule) -> set[tuple[str, Any]]:
    """The options of a schedule."""
    return {
        (name, value if value in values(field) else bool(value))
        for options in (schedule.kernel, schedule.softmax, schedule.split)
        for name, field in type(options).model_fields.items()
        for value in [getattr(options, name)]
    }


def all_facts() -> set[tuple[str, Any]]:
    fields = [field for options in (KernelOptions, SoftmaxOptions, Split) for field in options.model_fields.items()]
    return {(name, value) for name, field in fields for value in values(field)}


def has_order(schedule: Schedule) -> bool:
    """Whether its waits and releases come where they can."""
    try:
        return bool(derive(schedule))
    except ScheduleRefused:
        return False


def covering(schedules: list[Schedule]) -> Iterator[Schedule]:
    """Few schedules that have every fact that any of them has."""
    left = set().union(*map(facts, schedules))
    while left:
        best = max(schedules, key=lambda schedule: len(facts(schedule) & left))
        left -= facts(best)
        yield best


ORDERED = [schedule for schedule in RANDOM if has_order(schedule)]
# Those whose chunks are of the head size that is traced.
MMA_SYNC = [schedule for name, schedule in FAMILY_AND_TOP.items() if head_dim(name) == 128]
COVERING = list(covering([*ORDERED, *MMA_SYNC]))
MASKS = {"full": FULL, "causal": CAUSAL}
# Every form of a loop; every option; some at random.
TRACED = {
    **{f"{name} {m}": (shipped()[name], m) for name in ("best", "best_causal", "seed", "prefetch_late") for m in MASKS},
    **{f"{form} {mask}": (overlap(form), mask) for form in FORMS for mask in MASKS},
    **{f"option {n}": (schedule, ("full", "causal")[n % 2]) for n, schedule in enumerate(COVERING)},
    **{f"random {n}": (schedule, ("full", "causal")[n % 2]) for n, schedule in enumerate(ORDERED[:8])},
    **{f"{name} {mask}": (FAMILY_AND_TOP[name], mask) for name in ("mma_sync", "mma_sync_small") for mask in MASKS},
    "inferred": (SCHEDULES["inferred"], "full"),
}


def traced(text: str, folder: Path) -> tirx.PrimFunc:
    """The prim_func of a packed program."""
    path = folder / "packed.py"
    path.write_text(HEADER + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.attention_kernel()


def plain(prim_func: tirx.PrimFunc) -> str:
    """Its text without the names that macros give to what they are passed."""
    module = tilelang.transform.Simplify()(tilelang.transform.LetInline()(IRModule({"main": prim_func})))
    return module["main"].script()


def test_the_sample_has_every_option():
    assert set().union(*map(facts, COVERING)) == all_facts()


@pytest.mark.parametrize("name", TRACED)
def test_the_packed_program_is_the_packages_own_with_nothing_dead_in_it(name, tmp_path):
    schedule, mask = TRACED[name]
    variant, lowering = Variant(128, "float16", MASKS[mask]), lowering_of(schedule)
    text = program_text(schedule, variant)
    assert plain(traced(text, tmp_path)) == plain(lowering.prim_func(lowering.arguments(schedule), variant))
    assert dead_parts(text) == []
    assert loose_words(text) == []
    # CUDA writes a polynomial on one line.
    assert max(len(line) for line in text.splitlines() if "fmaf(" not in line) <= LINE_LENGTH
    command = [sys.executable, "-m", "ruff", *FORMAT]
    assert subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout == text


@pytest.mark.parametrize("mask", [FULL, CAUSAL])
def test_also_for_another_problem(mask, tmp_path):
    variant = Variant(64, "bfloat16", mask, sizes=Sizes(2, 3, 500, 700))
    for schedule in (shipped()["seed"], shipped()["best"]):
        lowering = lowering_of(schedule)
        own = lowering.prim_func(lowering.arguments(schedule), variant)
        assert plain(traced(program_text(schedule, variant), tmp_path)) == plain(own)


def test_the_steady_state_is_the_programs_as_one_reads_it():
    text = program_text(shipped()["best"], Variant(128, "float16"))
    lines = text.partition("def steady(")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.strip() for line in lines] == [
        "take_turn(tile)",
        "wait_k(t, tile, s)",
        "issue_mma0(t, tile, s)",
        "wait_v(t - 1, tile, s)",
        "issue_mma1(t - 1, tile, s)",
        "pass_turn(tile)",
        "max_prev(s)",
        "wait_mma0(s, outstanding=1)",
        "release_k(t, tile, s)",
        "row_max(s)",
        "scale(s, masked=False)",
        "exp(s, masked=False, columns=(0, 48))",
        "hold_last(s)",
        "wait_mma1(s)",
        "release_v(t - 1, tile, s)",
        "exp(s, masked=False, columns=(48, 176))",
        "row_sum_of_thread(s)",
        "cast(s)",
        "rescale(s)",
    ]


# --- the checks themselves -------------------------------------------------------------------------------------------

PROGRAM = '''WIDTH = 4


def twice(x, scale):
    """`x` times `scale`."""
    return x * scale + WIDTH


def attention_kernel():
    return twice(T.dynamic("n"), 2) + twice(T.dynamic("m"), 3)
'''
FAULTS = {
    "a function": (PROGRAM + "\n\ndef other():\n    return 1\n", "other is not used"),
    "a constant": ("DEPTH = 2\n" + PROGRAM, "DEPTH is not used"),
    "a parameter": (PROGRAM.replace("x * scale", "x"), "twice takes scale and does not use it"),
    "a name": (PROGRAM.replace("    return x", "    y = x\n    return x"), "twice does not read y"),
    "one value": (PROGRAM.replace('("m"), 3', '("m"), 2'), "twice: every call passes 2 for scale"),
    "a condition": (PROGRAM.replace("x * scale", "(x if WIDTH > 2 else scale)"), "twice: WIDTH > 2 is decided"),
    "a branch": (
        PROGRAM.replace("    return x", "    if True:\n        x = 1\n    return x"),
        "twice: True is decided",
    ),
    "a default": (PROGRAM.replace("(x, scale)", "(x, scale=2)"), "twice has defaults that no call uses"),
    "a missing name": (PROGRAM.replace("+ WIDTH", "+ HEIGHT"), "twice reads HEIGHT, which is not there"),
    "a name twice": ("WIDTH = 5\n" + PROGRAM, "WIDTH is defined 2 times"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_dead_is_found(name):
    text, sentence = FAULTS[name]
    assert dead_parts(PROGRAM) == [] and sentence in dead_parts(text)


@pytest.mark.parametrize("words", ["`depth` of it", "see tiles.py", "as tl_attention has it", "this option is off"])
def test_loose_words_are_found(words):
    assert loose_words(PROGRAM) == [] and loose_words(PROGRAM.replace("`x` times", f"{words}, `x` times"))


# --- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOWERINGS)
def test_the_files_of_a_lowering_keep_the_contract(name):
    source = read_source(LOWERINGS[name].files)
    assert {definition.file for definition in source.definitions} == set(LOWERINGS[name].files)
    assert [words for words in source.headings.values() if FILES.search(words)] == []


def test_a_mask_that_no_kernel_uses_yet_is_written_out_too():
    # In the kernels its near end alone is missing; what they ask of it is decided field by field.
    text = program_text(shipped()["seed"], Variant(128, "float16", Mask(left=256, right=0)))
    assert "T.Or(too_late, key < own_key - LEFT)" in text and "\nLEFT = 256\n" in text and dead_parts(text) == []
