"""A rule of backward.yaml may name a pair of schedules; tests have one do so, as none that ships does."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import OPEN, WITH_A_PAIR, Operators, operators, rules_with_a_pair
from on_cpu import Kernels, on_cpu
from test_backward import drawn, found_and_exact
from test_backward_choice import SQUARE, through_sdpa, train

from tl_attention import InputError, attention
from tl_attention.compiler import compile
from tl_attention.op import backward, compiled, pair
from tl_attention.op.integrations import sdpa
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files import backward as rules_of
from tl_attention.schedule.files.backward import FLASH2, backward_rules
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule

__all__ = ["on_cpu", "operators"]


# Replace this in a file of rules by this; then the line, and what the message says.
MISTAKES = {
    "no schedules": ("schedules: [dq, dkdv], ", "", 2, "rules[0]: expected of a pair two schedules"),
    "one schedule": ("dq, dkdv", "dq", 2, "rules[0]: expected of a pair two schedules"),
    "three": ("dq, dkdv", "dq, dkdv, best", 2, "rules[0]: expected of a pair two schedules"),
    "packed": ("packed: false, ", "", 2, "rules[0]: expected packed: false of a pair"),
    "numbers": ("dq, dkdv", "1, 2", 2, "rules[0].schedules[0]: "),
    "a wait": ("operator: pair,", "operator: pair, after: 9,", 2, "rules[0]: expected of a pair .*neither after nor"),
    "no pair": (
        "flash2",
        "flash2\n    schedules: [dq, dkdv]",
        3,
        "rules[1]: it names schedules, expected operator pair",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_rule_of_a_pair_is_told_in_one_line(name, tmp_path) -> None:
    old, new, line, words = MISTAKES[name]
    path = tmp_path / "rules.yaml"
    path.write_text(WITH_A_PAIR.replace(old, new))
    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}:{line}: .*{words.replace('[', '.')}[^\n]*$"):
        rules_of.read(path)


def test_pairs_of_rules_that_ship_fit_together() -> None:
    for rule in backward_rules().rules:
        assert not rule.schedules or pair.pair_of(rule.schedules)


@pytest.fixture
def pair_by_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Has a rule name a pair, on a machine with compilers."""
    found = rules_with_a_pair(tmp_path)
    monkeypatch.setattr(backward, "backward_rules", lambda: found)
    monkeypatch.setattr(pair, "why_none_is_made", lambda: "")


def loops_of(kernels: Kernels) -> set[str]:
    return {variant.loop for _, variant in kernels.asked} - {FORWARD}


SERVED = {
    "full": (SQUARE, {}, {}),
    "causal, grouped, more keys": ((2, 4, 2, 65, 90, 128), {"causal": True}, {}),
    "sinks, and rows without a key": ((1, 4, 2, 80, 33, 64), {"causal": True}, {"sinks": torch.linspace(-2, 3, 4)}),
    "one key, and rows without it": ((1, 2, 2, 5, 1, 64), {"causal": True}, {}),
    "a window that hides no key": (SQUARE, {"window_size": (65, 65)}, {}),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_rules_pair_computes_the_gradients_of_calls_that_it_serves(
    name, on_cpu: Kernels, operators: Operators, pair_by_rule
) -> None:
    sizes, of_mask, more = SERVED[name]
    window = (OPEN, 0) if "causal" in of_mask else of_mask.get("window_size", (OPEN, OPEN))
    more = {word: value.clone().requires_grad_() for word, value in more.items()}
    for _ in range(2):
        found, expected = found_and_exact(*drawn(sizes, "bhsd"), window, "bhsd", **more)
        for gradient, value in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient.double(), value, atol=0.02, rtol=0.02)
    # No others are compiled than those that are launched.
    assert not operators.taken and sorted(v.loop for _, v in on_cpu.asked if v.loop != FORWARD) == ["dkdv", "dq"]


NOT_SERVED = {"head_dim 256": ((1, 2, 2, 65, 65, 256), {})}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_a_rules_pair_lacks_is_left_to_the_next_rule(
    name, on_cpu: Kernels, operators: Operators, pair_by_rule
) -> None:
    sizes, options = NOT_SERVED[name]
    *inputs, grad = drawn(sizes, options.get("layout", "bhsd"))
    torch.autograd.grad(attention(*inputs, **options), inputs, grad)
    assert operators.taken == [FLASH2] and not loops_of(on_cpu)


def test_a_rules_condition_counts_before_its_pair(on_cpu: Kernels, operators: Operators, pair_by_rule) -> None:
    try:
        torch.use_deterministic_algorithms(True)
        train()
    finally:
        torch.use_deterministic_algorithms(False)
    assert operators.taken == [FLASH2] and not loops_of(on_cpu)
    train()
    assert operators.taken == [FLASH2] and loops_of(on_cpu) == {"dq", "dkdv"}


@pytest.mark.parametrize("finished", [frozenset(), frozenset({"dq"}), frozenset({"dq", "dkdv"})], ids=sorted)
def test_without_a_compiler_only_kernels_that_are_there_are_taken(
    finished, on_cpu: Kernels, operators: Operators, pair_by_rule, monkeypatch
) -> None:
    monkeypatch.setattr(pair, "why_none_is_made", lambda: "nvcc: none that can compile")
    monkeypatch.setattr(pair, "is_finished", lambda schedule, variant: variant.loop in finished)
    train()
    assert operators.taken == ([] if len(finished) == 2 else [FLASH2])
    assert loops_of(on_cpu) == (finished if len(finished) == 2 else set())


def test_kernels_that_cannot_be_made_are_left_to_the_next_rule_with_a_warning(
    on_cpu: Kernels, operators: Operators, pair_by_rule, monkeypatch
) -> None:
    kernel_of = compiled.kernel_of

    def fail(schedule: Schedule, variant: Variant) -> Any:
        if variant.loop == "dkdv":
            raise InputError("nvcc: it has failed")
        return kernel_of(schedule, variant)

    monkeypatch.setattr(compiled, "kernel_of", fail)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            train()
    assert [str(warning.message) for warning in warned] == [
        "tl_attention: dq, dkdv have no gradients of q (1, 2, 65, 64), and other rules decide: nvcc: it has failed"
    ]
    assert operators.taken == 3 * [FLASH2]


def test_why_no_kernel_is_made_is_what_is_missing(monkeypatch) -> None:
    def missing(*given: object) -> None:
        raise InputError("it is missing")

    for name, words in {"check_host_compiler": "it is missing", "chosen_nvcc": "it is missing"}.items():
        with monkeypatch.context() as patch:
            patch.setattr(compile, name, missing)
            assert compile.why_none_is_made() == words
    monkeypatch.setattr(compile, "tilelang_folder", lambda: None)
    assert compile.why_none_is_made().startswith("TileLang is not installed, expected")
    monkeypatch.setattr(compile, "tilelang_folder", lambda: Path())
    assert compile.why_none_is_made() == ""


def test_a_call_through_sdpa_takes_the_rules_pair(on_cpu: Kernels, operators: Operators, pair_by_rule) -> None:
    library = sdpa.register_kernels("CPU")
    try:
        train(of=through_sdpa)
    finally:
        library._destroy()
    assert not operators.taken and loops_of(on_cpu) == {"dq", "dkdv"}
