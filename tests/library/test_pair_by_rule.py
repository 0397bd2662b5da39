"""A rule of backward.yaml may name a pair of schedules; tests have one do so for all calls, or take those that ship."""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import OPEN, WITH_A_PAIR, Operators, operators, rules_with_a_pair
from on_cpu import Kernels, on_cpu
from test_backward import drawn, found_and_exact
from test_backward_choice import SQUARE, taken, through_sdpa, train
from torch import Tensor

from tl_attention import InputError, attention, attention_varlen
from tl_attention.compiler import compile
from tl_attention.op import backward, compiled, pair
from tl_attention.op.integrations import sdpa
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files import backward as rules_of
from tl_attention.schedule.files.backward import FLASH2, PAIR, backward_rules
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule

__all__ = ["on_cpu", "operators"]


# Replace this in a file of rules by this; then the line, and what the message says.
MISTAKES = {
    "no schedules": ("schedules: [dq, dkdv], ", "", 2, "rules[0]: expected of a pair two schedules"),
    "one schedule": ("dq, dkdv", "dq", 2, "rules[0]: expected of a pair two schedules"),
    "three": ("dq, dkdv", "dq, dkdv, best", 2, "rules[0]: expected of a pair two schedules"),
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
        "tl_attention: dq, dkdv have no gradients of head_dim 64 in float16, and other rules decide: nvcc: it has failed"
    ]
    assert operators.taken == 3 * [FLASH2]


# --- the rules that ship ----------------------------------------------------------------------------------------------

# head_dim, options of attention_varlen, and the operator.
PACKED = {
    "full": (128, {}, PAIR),
    "causal, short": (96, {"causal": True, "lengths": (1, 1)}, PAIR),
    "head_dim 64": (64, {"causal": True}, FLASH2),
    "window": (128, {"window_size": (20, 9)}, PAIR),
    "used rows": (64, {"causal": True, "seqused_k": torch.tensor([60], dtype=torch.int32)}, PAIR),
    "softcap": (64, {"causal": True, "softcap": 1.5}, PAIR),
    "open on the right": (64, {"window_size": (9, OPEN)}, PAIR),
    "head_dim 192": (192, {"causal": True}, FLASH2),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_take_the_pair_where_it_serves(name, on_cpu: Kernels, operators: Operators) -> None:
    size, options, operator = PACKED[name]
    *inputs, grad = (x[0].transpose(0, 1).detach() for x in drawn((1, 2, 2, 65, 65, size), "bhsd"))
    cu, longest, options = torch.tensor([0, 65], dtype=torch.int32), options.get("lengths", (65, 65)), {**options}
    options.pop("lengths", None)
    inputs = [x.requires_grad_() for x in inputs]

    def gradients(**more: object) -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention_varlen(*inputs, cu, cu, *longest, **options, **more), inputs, grad)

    found = gradients()
    assert taken(operators, on_cpu) == operator and all(x.isfinite().all() for x in found)
    if operator == PAIR:
        assert all(map(torch.equal, found, gradients(backward=("dq", "dkdv"))))


@pytest.mark.parametrize("is_packed", [False, True], ids=["dense", "packed"])
def test_a_compiled_call_takes_what_the_eager_one_does(is_packed, on_cpu: Kernels, operators: Operators) -> None:
    """It asks for what the pair alone has: a softcap, a window that is open on the right, and the LSE's gradient."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"softcap": 1.5, "window_size": (9, OPEN), "return_lse": True}

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not is_packed:
            output, lse = attention(q, k, v, **options)
        else:
            q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
            cu = torch.tensor([0, 9, 70], dtype=torch.int32)
            output, lse = attention_varlen(q, k, v, cu, cu, 61, 61, **options)
        return output.float().sum() + lse.square().sum()

    inputs = drawn((1, 4, 2, 70, 70, 64), "bhsd")[:3]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    found, wanted = (torch.autograd.grad(call(*inputs), inputs) for call in (compiled, step))
    assert all(map(torch.equal, found, wanted)) and taken(operators, on_cpu) == PAIR


@pytest.mark.parametrize("is_packed", [False, True], ids=["dense", "packed"])
def test_the_lse_has_a_gradient_by_the_pair(is_packed, on_cpu: Kernels, operators: Operators) -> None:
    """So has that of a call whose output alone would take cuDNN."""
    inputs, call, cu = drawn(SQUARE, "bhsd")[:3], attention, torch.tensor([0, 65], dtype=torch.int32)
    if is_packed:
        inputs = [x.detach()[0].transpose(0, 1).requires_grad_() for x in inputs]
        call = functools.partial(attention_varlen, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=65, max_seqlen_k=65)

    def gradients(**more: object) -> tuple[Tensor, ...]:
        output, lse = call(*inputs, causal=True, return_lse=True, **more)
        return torch.autograd.grad(output.float().sum() + lse.square().sum(), inputs)

    assert all(map(torch.equal, gradients(), gradients(backward=("dq", "dkdv"))))
    assert taken(operators, on_cpu) == PAIR


# What PyTorch's operators lack of calls of packed sequences.
LACKING = {
    "softcap": {"softcap": 1.5},
    "used rows": {"seqused_k": torch.tensor([60], dtype=torch.int32)},
    "a window": {"window_size": (9, OPEN)},
}


@pytest.mark.parametrize("name", LACKING)
def test_what_only_a_pair_has_is_refused_where_its_kernels_cannot_be_made(
    name, on_cpu: Kernels, operators: Operators, monkeypatch
) -> None:
    def fail(schedule: Schedule, variant: Variant) -> Any:
        raise InputError("nvcc: it has failed")

    q, k, v = (x.detach()[0].transpose(0, 1).requires_grad_() for x in drawn(SQUARE, "bhsd")[:3])
    cu = torch.tensor([0, 65], dtype=torch.int32)
    output = attention_varlen(q, k, v, cu, cu, 65, 65, **LACKING[name])
    monkeypatch.setattr(compiled, "kernel_of", fail)
    with (
        pytest.warns(UserWarning, match="it has failed"),
        pytest.raises(InputError, match="neither PyTorch nor a pair"),
    ):
        output.sum().backward()
    assert not operators.taken


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
