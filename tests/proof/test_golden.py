"""The golden code is that of the package's kernels, and its kernels are a covering set.

library/test_launcher.py lowers them all again.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, product

import golden
import pytest
from golden_kernels import KERNELS, OF_FORMS, form, served
from tiers import sampled

from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.defaults import defaults
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

BYTES = 200_000
# No kernel has both.
NEVER = {
    frozenset({"causal", "right"}): "a causal mask is a window that is closed on the right",
    frozenset({"causal", "left"}): "a window that is causal is one whose sides are read",
    frozenset({"Sinks", "part_blocks"}): "a sink counts once, and each part would add it",
    frozenset({"output tma", "two sizes"}): "the output would leave through tiles of Q, which have other columns",
}
CALL = ("bf16", "causal", "left", "right", "narrow", "two sizes", "strided", "softcap", "Sinks", "LSE")
PROVED = ("warp_specialized", "pipelined", "mma_sync")


@pytest.mark.parametrize("name", sampled(KERNELS, [*OF_FORMS][::2]))
def test_it_was_lowered_from_what_the_package_traces_now(name: str) -> None:
    assert not golden.stale(name), f"{name}: {golden.STALE}"


def test_only_these_kernels_are_kept_in_a_file_of_a_sane_size() -> None:
    assert {*golden.index()} == {*golden.texts()} == {*KERNELS}, golden.STALE
    assert sum(file.stat().st_size for file in golden.FOLDER.iterdir()) < BYTES
    assert len(golden.names()) == len(KERNELS)


def test_all_that_the_default_rules_serve_is_there() -> None:
    assert {form(kernel) for kernel in served()} <= {form(kernel) for kernel in KERNELS.values()}
    assert {rule.schedule for rule in defaults().rules} <= {kernel.name for kernel in KERNELS.values()}


def of_call(variant: Variant) -> set[str]:
    """Returns what a call asks for."""
    asked = {
        "bf16": variant.dtype == "bfloat16",
        "causal": variant.mask.right == 0,
        "left": variant.mask.left is not None,
        "right": bool(variant.mask.right),
        "narrow": variant.narrow,
        "two sizes": variant.head_dim != variant.head_dim_v,
        "strided": variant.strided,
    }
    return {name for name, there in asked.items() if there} | variant.optional


def of_schedule(schedule: Schedule) -> set[str]:
    """Returns the options of a schedule that are not at their defaults."""
    found = set()
    for options in (schedule.kernel, schedule.softmax, schedule.split):
        for name, field in type(options).model_fields.items():
            value = getattr(options, name)
            # How many registers is not an option of the code that is proved.
            if value != field.default and name != "registers":
                found.add(f"{name} {value}" if isinstance(value, str) else name)
    return found


def computed(lowering: str) -> list[str]:
    """Returns the features of a call that a lowering computes."""
    lacks = {"softcap", "Sinks", "narrow", "two sizes"} if lowering == "mma_sync" else set()
    return [feature for feature in CALL if feature not in lacks]


@pytest.mark.parametrize("lowering", PROVED)
def test_each_pair_of_features_is_in_some_kernel(lowering: str) -> None:
    """The pairs are two features of a call, and each feature with each option that a schedule of the set has."""
    there: dict[str, set[str]] = defaultdict(set)
    for kernel in KERNELS.values():
        if kernel.schedule.lowering == lowering:
            features = of_call(kernel.variant) | of_schedule(kernel.schedule)
            for feature in features:
                there[feature] |= features
    options = set().union(*(of_schedule(k.schedule) for k in KERNELS.values() if k.schedule.lowering == lowering))
    pairs = [*combinations(computed(lowering), 2), *product(computed(lowering), options)]
    assert [pair for pair in pairs if pair[1] not in there[pair[0]] and frozenset(pair) not in NEVER] == []


def test_each_option_of_a_shipped_schedule_is_in_some_kernel(schedules_dir) -> None:
    there = {(k.schedule.lowering, option) for k in KERNELS.values() for option in of_schedule(k.schedule)}
    shipped = [load(path) for path in schedules_dir.rglob("*.yaml") if path.parent.parent.name != "ladders"]
    assert {(s.lowering, option) for s in shipped if s.has_program for option in of_schedule(s)} <= there


def test_another_program_and_a_changed_letter_are_stale(monkeypatch) -> None:
    code = golden.code("seed")
    with monkeypatch.context() as patch:
        patch.setitem(KERNELS, "seed", replace(KERNELS["seed"], mask=CAUSAL))
        assert golden.stale("seed")
    monkeypatch.setattr(golden, "code", lambda name: replace(code, source=code.source.replace("wait<1>", "wait<2>")))
    assert golden.stale("seed")
