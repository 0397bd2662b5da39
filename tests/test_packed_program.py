"""A submission carries the package's own program, which reads as the Program has it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import libcst as cst
import pytest
import tilelang.transform
from code_mutants.kernels import generated
from mma_sync_schedules import SHIPPED as FAMILY_AND_TOP
from mma_sync_schedules import head_dim
from moves.choices import choices
from mutations import shipped
from overlap import FORMS, overlap
from pydantic.fields import FieldInfo
from specialized import hundred
from submissions import SCHEDULES, import_file
from tiers import exhaustive, sampled
from tvm import IRModule, tirx

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import LOWERINGS, lowering_of
from tl_attention.kernels.shared.iterations import function_of
from tl_attention.lab.leaderboard.program import program_text, read_module
from tl_attention.lab.leaderboard.pruned import code, pruned
from tl_attention.lab.leaderboard.submission import formatted
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions, Split
from tl_attention.schedule.schedule import Schedule

HEADER = "import tilelang.language as T\nfrom dataclasses import dataclass\nfrom types import SimpleNamespace\n\n"


def values(field: FieldInfo) -> tuple[Any, ...]:
    """Returns the values of an option that are a choice of their own: all, or none and any."""
    found = choices(field)
    return found if 1 < len(found) <= 3 else (False, True)


def facts(schedule: Schedule) -> set[tuple[str, Any]]:
    """Returns the options of a schedule."""
    return {
        (name, value if value in values(field) else bool(value))
        for options in (schedule.kernel, schedule.softmax, schedule.split)
        for name, field in type(options).model_fields.items()
        for value in [getattr(options, name)]
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
}


def traced(text: str, folder: Path) -> tirx.PrimFunc:
    """Returns the prim_func of a packed program."""
    return import_file(folder / "packed.py", HEADER + text).attention_kernel()


def plain(prim_func: tirx.PrimFunc) -> str:
    """Returns a prim_func's text without the names that macros give to what they are passed."""
    module = tilelang.transform.Simplify()(tilelang.transform.LetInline()(IRModule({"main": prim_func})))
    return module["main"].script()


def undefined(text: str) -> str:
    """Returns what ruff says of names that are not defined."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stdout


@exhaustive
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_packed_program_lowers_to_exactly_the_packages_cuda(name, tmp_path):
    schedule, variant = SCHEDULES[name], Variant(128, "float16")
    own = lowering_of(schedule).prim_func(Planned(schedule), variant)
    packed = traced(program_text(Planned(schedule), variant), tmp_path)
    assert generated(packed, schedule, variant) == generated(own, schedule, variant)


def test_the_sample_has_every_option():
    fields = [field for options in (KernelOptions, SoftmaxOptions, Split) for field in options.model_fields.items()]
    every = {(name, value) for name, field in fields for value in values(field)}
    assert set().union(*map(facts, COVERING)) == every - {("tile_scheduler", "dynamic")}


@pytest.mark.parametrize("name", sampled(TRACED, ["option 0", "seed causal", "mma_sync causal"]))
def test_the_packed_program_is_the_packages_own(name, tmp_path):
    schedule, mask = TRACED[name]
    variant = Variant(128, "bfloat16", mask)
    text = program_text(Planned(schedule), variant)
    assert plain(traced(text, tmp_path)) == plain(lowering_of(schedule).prim_func(Planned(schedule), variant))
    assert undefined(HEADER + text).strip() == "All checks passed!"
    defined = [node.name for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    uncalled = [name for name in defined if text.count(name) == 1]
    assert uncalled == ["attention_kernel"] and max(Counter(defined).values()) == 1


def test_the_steady_state_is_the_programs_as_one_reads_it():
    text = formatted(program_text(Planned(shipped()["best"]), Variant(128, "float16")))
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
    text = formatted(program_text(Planned(shipped()["mma_sync"]), Variant(128, "float16")))
    products = "frag_q(t - 1, tile, s, c, first=7, steps=1)\n    mma0(t - 1, tile, s, c, first=7, steps=1)\n    wait("
    assert products in text


@pytest.mark.parametrize("name", LOWERINGS)
def test_the_modules_of_a_lowering_import_names_and_share_none(name):
    launch = function_of(LOWERINGS[name].launch())
    found, waiting = [], [launch.__module__]
    while waiting:
        if (module := read_module(waiting.pop())) not in found:
            found.append(module)
            waiting += [place for place, _ in module.imports.values() if place.startswith("tl_attention.kernels.")]
    defined = Counter(name for module in found for name in module.definitions)
    assert len(found) > 3 and [name for name, times in defined.items() if times > 1] == []
    for module in found:
        tree = ast.parse(Path(importlib.util.find_spec(module.name).origin).read_text())
        whole = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        assert [ast.unparse(node) for node in whole] in ([], ["import tilelang.language as T"]), module.name
        assert [
            alias
            for node in ast.walk(tree)
            for alias in getattr(node, "names", ())
            if getattr(alias, "asname", "T") not in (None, "T")
        ] == []


# --- what constants alone decide -------------------------------------------------------------------------------------

CONSTANTS = SimpleNamespace(on=True, off=False, way="near", depth=2, record=None)


def go_near() -> None: ...


def go_far() -> None: ...


CASES = {
    "a branch that is taken": ("if c.on:\n    x()\ny()", "x()\ny()"),
    "a branch that is not": ("if c.off:\n    x()\ny()", "y()"),
    "the other branch": ("if c.off:\n    x()\nelse:\n    y()", "y()"),
    "nothing is left": ("if c.off:\n    x()", "pass"),
    "nothing is left of a loop": ("for t in range(n):\n    if c.off:\n        x()", "for t in range(n):\n    pass"),
    "the last of three": ("if c.off:\n    x()\nelif c.off:\n    y()\nelse:\n    z()", "z()"),
    "the second of three": ("if c.off:\n    x()\nelif c.on:\n    y()\nelse:\n    z()", "y()"),
    "an open condition behind": ("if c.off:\n    x()\nelif t:\n    y()", "if t:\n    y()"),
    "an open condition before": (
        "if t:\n    x()\nelif c.on:\n    y()\nelse:\n    z()",
        "if t:\n    x()\nelse:\n    y()",
    ),
    "an open condition alone": ("if t:\n    x()\nelif c.off:\n    y()", "if t:\n    x()"),
    "a nested branch": ("if t:\n    if c.on:\n        x()", "if t:\n    x()"),
    "what stands behind a return": ("if c.on:\n    return x()\nreturn y()", "return x()"),
    "an open return": ("if t:\n    return x()\nreturn y()", "if t:\n    return x()\nreturn y()"),
    "a comment of what is kept": ("# Why.\nif c.on:\n    # How.\n    x()", "# Why.\n# How.\nx()"),
    "a comment of what is not": ("# Why.\nif c.off:\n    # How.\n    x()\ny()", "y()"),
    "a conditional expression": ("x(1 if c.way == 'near' else 2)", "x(1)"),
    "one in another": ("x(a if t else b if c.off else d)", "x(a if t else d)"),
    "parentheses that are needed": ("x((a + b if c.on else d) * e)", "x((a + b) * e)"),
    "parentheses that are not": ("x((a if c.on else d) * e)", "x(a * e)"),
    "one side that decides": ("if c.off and t:\n    x()", "pass"),
    "one side that does not": ("if c.on and t:\n    x()", "if c.on and t:\n    x()"),
    "a function of constants": ("if max(c.depth, 1) > 1:\n    x()", "x()"),
    "no value": ("if c.record is not None:\n    x(c.record.first)", "pass"),
    "an entry of a table": ("WAYS[c.way](t)", "go_near(t)"),
    "an entry of a table by a choice": ("WAYS['far' if c.on else c.way](t)", "go_far(t)"),
    "an entry that is open": ("WAYS[way](t)", "WAYS[way](t)"),
    "an entry of another table": ("OTHERS[c.way](t)", "OTHERS[c.way](t)"),
    "a number": ("x(c.depth * 2)", "x(c.depth * 2)"),
    "a parameter of a constant's name": ("if masked and t:\n    x(on)", "if masked and t:\n    x(on)"),
}


@pytest.mark.parametrize("before, after", CASES.values(), ids=CASES.keys())
def test_what_constants_decide_is_left_out_and_nothing_else_is_changed(before: str, after: str) -> None:
    assert body(before) == dedent(after)


def body(text: str) -> str:
    """Returns what is left of a function of these lines."""
    lines = text.replace("\n", "\n    ")
    function = cst.ensure_type(cst.parse_statement(f"def f(t, u, way):\n    {lines}\n"), cst.FunctionDef)
    left = code(pruned(function, {"c": CONSTANTS, "WAYS": {"near": go_near, "far": go_far}}))
    return dedent(left.partition("\n")[2]).strip()
