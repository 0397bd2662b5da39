"""What computes a call's gradients is chosen by backward.yaml, counts and trials; tests use stand-ins on the CPU."""

from __future__ import annotations

import itertools
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from gradients import OPEN, Operators, no_pair, operators
from on_cpu import Kernels, on_cpu
from test_backward import drawn, found_and_exact
from tiers import sampled
from torch import Tensor

from tl_attention import InputError, attention
from tl_attention.op import aten, backward, checks
from tl_attention.op.backward import GradShape, force_operator
from tl_attention.op.integrations import sdpa
from tl_attention.problem.card import ARCHS, CARDS
from tl_attention.problem.head_dims import TILE_SIZES
from tl_attention.problem.mask import MASK_KINDS, Mask
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.schedule.files import backward as rules_of
from tl_attention.schedule.files.backward import (
    CUDNN,
    FILE,
    FLASH2,
    PAIR,
    BackwardRules,
    backward_rules,
    cudnn_versions,
)
from tl_attention.schedule.files.conditions import NONE_YET, Case
from tl_attention.schedule.loop.loops import FORWARD

__all__ = ["no_pair", "on_cpu", "operators"]
AFTER = 2
SQUARE = (1, 2, 2, 65, 65, 64)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Has cuDNN take over after AFTER calls of a shape, and all else as the rules that ship have it."""
    text, number = re.subn(r"after: \d+$", f"after: {AFTER}", FILE.read_text(), flags=re.MULTILINE)
    assert number == 2
    (tmp_path / "backward.yaml").write_text(text)
    found = rules_of.read(tmp_path / "backward.yaml")
    monkeypatch.setattr(backward, "backward_rules", lambda: found)


@pytest.fixture
def at_once() -> Iterator[None]:
    """Has a shape's first call take the rule's operator."""
    with force_operator():
        yield


def train(sizes: tuple[int, ...] = SQUARE, of: Callable[..., Tensor] = attention, **options) -> list[Tensor]:
    """Calls `of` on tensors of these sizes, and returns its gradients of q, k and v."""
    *inputs, grad = drawn(sizes, "bhsd")
    return [*torch.autograd.grad(of(*inputs, **options), inputs, grad)]


# --- the rules --------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    lengths = (1, 64, 192, 200)
    apart = (TILE_SIZES, DTYPES, MASK_KINDS, lengths, lengths, ARCHS, (False, True), (False, True))
    for size, dtype, mask, seq_q, seq_kv, arch, packed, deterministic in itertools.product(*apart):
        yield Case(size, dtype, mask, seq_q, seq_kv, 1, frozenset({"sinks"}), arch, packed, deterministic=deterministic)


def test_each_rule_serves_some_case_and_the_last_serves_all() -> None:
    found, serving = backward_rules(), set()
    for case in cases():
        assert found.rules[-1].unmet(case) is None, case
        met = [number for number, rule in enumerate(found.rules) if rule.unmet(case) is None]
        # Where no pair can be made, PyTorch's operators serve.
        by_torch = [number for number in met if not found.rules[number].schedules]
        assert [found.find(case), found.find(case, lambda rule: not rule.schedules)] == [met[0], by_torch[0]]
        serving |= {met[0], by_torch[0]}
    assert serving == {*range(len(found.rules))} and found.rules[-1].operator == FLASH2


def test_a_case_has_the_mask_without_sides_that_hide_no_key_unless_packed() -> None:
    wide = AttentionShape(1, 2, 65, 65, 64, mask=Mask(65, 65)).asking(lse=True, sinks=True)
    found = [rules_of.case_of(shape) for shape in (wide, replace(wide, packed=True), replace(wide, mask=Mask(65, 0)))]
    assert [case.mask for case in found] == ["full", "window", "causal"]
    assert {case.asked for case in found} == {frozenset({"sinks"})} and not found[0].deterministic


def test_every_rule_names_its_record_and_the_file_ships() -> None:
    for rule in backward_rules().rules:
        said = re.fullmatch(r"([\w.-]+\.jsonl) says .+", rule.record)
        assert rule.record == NONE_YET or (said and (ROOT / "results" / said[1]).is_file()), rule
        # What is not known to be right is tried in every process's first call.
        assert rule.operator != CUDNN or rule.versions
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert FILE in [path for pattern in packaged["tl_attention.schedule.files"] for path in FILE.parent.glob(pattern)]


RULES = """\
rules:
  - square: true
    seq_kv_mod_128: 64
    operator: cudnn
    after: 100
    versions: [9.19.0 with torch 2.11]
    why: it is fast
    record: none yet
  - {operator: flash2, why: it serves all, record: none yet}
"""
# Replace this in the rules above by this; then the line, and what the message says.
MISTAKES = {
    "operator": ("cudnn", "cudn", 4, "rules[0].operator: expected 'flash2', 'cudnn' or 'pair', found 'cudn'"),
    "no operator": ("operator: flash2, ", "", 9, "rules[1].operator: the key is missing"),
    "condition": ("square", "sqare", 2, "rules[0].sqare: unknown key, did you mean square?"),
    "truth": ("true", "1", 2, "rules[0].square: expected true or false, found 1"),
    "rest": ("128: 64", "128: 128", 3, "rules[0].seq_kv_mod_128: "),
    "count": ("100", "-1", 5, "rules[0].after: "),
    "version": ("9.19.0 with", "9.19 with", 6, "rules[0].versions[0]: "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_line_with_file_and_line(name, tmp_path) -> None:
    old, new, line, words = MISTAKES[name]
    assert RULES.count(old) == 1
    path = tmp_path / "rules.yaml"
    path.write_text(RULES.replace(old, new))
    with pytest.raises(InputError) as error:
        rules_of.read(path)
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: ") and words in message and "\n" not in message, message


def test_a_file_of_rules_is_read_with_the_lines_of_its_rules(tmp_path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    found = rules_of.read(path)
    assert isinstance(found, BackwardRules) and [found.line(number) for number in (0, 1)] == [2, 9]
    assert found.rules[0].served == "square true, seq_kv_mod_128 64" and found.rules[1].served == "any case"


# --- which operator a call takes --------------------------------------------------------------------------------------

# Sizes as in test_backward.py, options, and the operator. A rule is tested at both sides of each of its edges.
CALLS = {
    "full": (SQUARE, {}, CUDNN),
    "full, of 64 queries": ((1, 2, 2, 64, 128, 64), {}, CUDNN),
    "full, of 63 queries": ((1, 2, 2, 63, 128, 64), {}, FLASH2),
    "one query": ((1, 2, 2, 1, 128, 64), {}, FLASH2),
    "one query, causal": ((1, 2, 2, 1, 128, 64), {"causal": True}, FLASH2),
    "full, to 63 keys": ((1, 2, 2, 64, 63, 64), {}, PAIR),
    "full, to 64 keys": ((1, 2, 2, 64, 64, 64), {}, PAIR),
    "full, to 128 and 64 keys": ((1, 2, 2, 70, 192, 64), {}, PAIR),
    "full, to 128 and 64 keys, head_dim 256": ((1, 2, 2, 70, 192, 256), {}, FLASH2),
    "full, to 128 and 65 keys": ((1, 2, 2, 70, 193, 64), {}, CUDNN),
    "causal": (SQUARE, {"causal": True}, CUDNN),
    "causal, to 64 keys": ((2, 4, 2, 64, 64, 64), {"causal": True}, CUDNN),
    "causal, to 63 keys": ((2, 4, 2, 63, 63, 64), {"causal": True}, FLASH2),
    "causal, more keys": ((1, 2, 2, 65, 66, 64), {"causal": True}, PAIR),
    "causal, more keys, of 63 queries": ((1, 2, 2, 63, 66, 64), {"causal": True}, FLASH2),
    # The rows that see a key are as many as the keys.
    "causal, more queries": ((2, 4, 2, 80, 66, 64), {"causal": True}, CUDNN),
    "window": (SQUARE, {"window_size": (20, 0)}, PAIR),
    "both sides": (SQUARE, {"window_size": (20, 9)}, PAIR),
    "window, of head_dim 136": ((1, 2, 2, 65, 65, 136), {"window_size": (20, 0)}, FLASH2),
    # FlashAttention-2 hides other keys.
    "open on the right, few queries": ((1, 2, 2, 50, 30, 64), {"window_size": (3, OPEN)}, PAIR),
    "softcap": (SQUARE, {"softcap": 1.5}, PAIR),
    "softcap, causal, one query": ((1, 2, 2, 1, 66, 64), {"causal": True, "softcap": 1.5}, PAIR),
    "a window that hides no key": (SQUARE, {"window_size": (65, 65)}, CUDNN),
    "a window that hides later keys alone": (SQUARE, {"window_size": (65, 0)}, CUDNN),
    "grouped": ((2, 4, 1, 70, 130, 128), {"scale": 0.3}, CUDNN),
    "smaller heads of V": ((1, 4, 2, 65, 65, 192, 128), {"causal": True}, CUDNN),
    "sinks": ((2, 4, 2, 65, 65, 64), {"causal": True, "sinks": torch.linspace(-2, 3, 4)}, CUDNN),
}


LAYOUTS = ("bhsd", "bshd")


@pytest.mark.parametrize(
    "name, layout", sampled(itertools.product(CALLS, LAYOUTS), [*zip(CALLS, itertools.cycle(LAYOUTS))])
)
def test_a_call_takes_the_operator_of_its_rule_and_its_gradients_are_right(
    name, layout, on_cpu: Kernels, operators: Operators, at_once
) -> None:
    sizes, options, operator = CALLS[name]
    options = options | {"sinks": options["sinks"].clone().requires_grad_() if "sinks" in options else None}
    causal, window = options.pop("causal", False), options.pop("window_size", (OPEN, OPEN))
    window = (OPEN, 0) if causal else window
    dtype = torch.bfloat16 if layout == "bshd" else torch.float16
    found, expected = found_and_exact(*drawn(sizes, layout, dtype=dtype), window, layout, **options)
    assert taken(operators, on_cpu) == operator
    for gradient, value in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), value, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", [name for name, (*_, operator) in CALLS.items() if operator == PAIR])
def test_without_a_pair_a_call_takes_flash2_or_is_refused(name, on_cpu: Kernels, operators: Operators, no_pair) -> None:
    sizes, options, _ = CALLS[name]
    if "softcap" in name or "open" in name:
        with pytest.raises(InputError, match="there is no backward: call it under"):
            train(sizes, **options)
    else:
        train(sizes, **options)
        assert taken(operators, on_cpu) == FLASH2


def taken(operators: Operators, kernels: Kernels) -> str:
    """Returns the operator of PyTorch that alone was called, once, or a pair whose two kernels alone were asked for."""
    loops = {variant.loop for _, variant in kernels.asked} - {FORWARD}
    assert (loops, len(operators.taken)) in (({"dq", "dkdv"}, 0), (set(), 1))
    return PAIR if loops else operators.taken[0]


def test_another_card_takes_flash2(on_cpu: Kernels, operators: Operators, at_once, monkeypatch) -> None:
    with torch.no_grad():
        attention(*drawn(SQUARE, "bhsd")[:3])
    monkeypatch.setattr(checks, "checked_card", lambda device: CARDS["sm_80"])
    q, k, v, grad = (x.detach() for x in drawn(SQUARE, "bhsd"))
    own = {"causal": False, "scale": None, "window_size": (OPEN, OPEN), "layout": "bhsd"}
    backward.dense(aten.Saved(grad, q, k, v, torch.zeros_like(q), torch.zeros(1, 2, 65)), None, **own)
    assert operators.taken == [FLASH2]


def test_a_measurement_takes_the_operator_that_it_names(on_cpu: Kernels, operators: Operators, after) -> None:
    for operator in (CUDNN, FLASH2):
        with force_operator(operator):
            train()
    train()
    assert operators.taken == [CUDNN, FLASH2, FLASH2] and len(backward._shapes) == 1


def test_the_same_bits_twice_are_the_pairs(on_cpu: Kernels, operators: Operators, at_once) -> None:
    try:
        torch.use_deterministic_algorithms(True)
        train()
        assert taken(operators, on_cpu) == PAIR
        # Where it does not serve they are FlashAttention-2's.
        train((1, 2, 2, 65, 65, 256))
        torch.use_deterministic_algorithms(True, warn_only=True)
        train()
    finally:
        torch.use_deterministic_algorithms(False)
    train()
    assert operators.taken == [FLASH2, CUDNN, CUDNN]


def test_where_cudnn_is_switched_off_it_computes_no_gradient(on_cpu: Kernels, operators: Operators, at_once) -> None:
    train()
    with torch.backends.cudnn.flags(enabled=False):
        train()
    train()
    assert operators.taken == [CUDNN, FLASH2, CUDNN]


# --- its first calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_each_shape_takes_flash2_first_and_counts_for_itself(
    causal, on_cpu: Kernels, operators: Operators, after
) -> None:
    other = (1, 2, 2, 72, 72, 64)
    for sizes in (SQUARE, SQUARE, other, SQUARE, other, other, SQUARE):
        train(sizes, causal=causal)
    assert operators.taken == [FLASH2, FLASH2, FLASH2, CUDNN, FLASH2, CUDNN, CUDNN]
    train(causal=not causal)
    assert operators.taken[7:] == [FLASH2]


def through_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]


def test_counts_are_those_of_a_shape_whoever_calls(on_cpu: Kernels, operators: Operators, after) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    library = sdpa.register_kernels("CPU")
    try:
        found = [train(of=of) for of in (through_sdpa, compiled, attention, through_sdpa, compiled)]
    finally:
        library._destroy()
    assert operators.taken == [FLASH2, FLASH2, CUDNN, CUDNN, CUDNN] and len(backward._shapes) == 1
    for others in found[1:]:
        torch.testing.assert_close(others, found[0])


@pytest.mark.parametrize("aside", [False, True])
def test_cudnn_serves_steps_aside_at_once_and_no_capture_builds_a_plan(
    aside, operators: Operators, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "aside" if aside else "default")
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    captures = iter([True, False, True])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: next(captures))
    shape, device = GradShape(CUDNN, AFTER, cudnn_versions()), torch.device("cuda", 0)
    if not aside:
        assert [shape.count(device) for _ in range(AFTER)] == [FLASH2] * AFTER
    # The capture of a shape that is new, a call outside, and a capture behind it.
    assert [shape.count(device) for _ in range(3)] == [FLASH2, CUDNN, CUDNN]


def test_the_table_of_shapes_stays_small(on_cpu: Kernels, operators: Operators, monkeypatch) -> None:
    monkeypatch.setattr(backward, "MOST_KEPT", 3)
    q = torch.zeros(1, 2, 99, 64, dtype=torch.float16)
    for length in range(1, 9):
        backward.shape_of(q[:, :, :length], q, q, False, (-1, -1))
        assert 0 < len(backward._shapes) <= 3
    first, again = (backward.shape_of(q[:, :, :8], q, q, False, (-1, -1)) for _ in range(2))
    assert first is again


# --- what cuDNN cannot do ---------------------------------------------------------------------------------------------


@pytest.fixture
def other_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Gives a function that takes an operator from this torch, or makes its schema another one."""

    def change(operator: str, how: str) -> None:
        table, value = (aten.NAMES, "_no_such") if how == "none" else (aten.EXPECTED, f"{aten.EXPECTED[operator]} new")
        monkeypatch.setitem(table, operator, value)
        aten.lacking.cache_clear()

    yield change
    monkeypatch.undo()
    aten.lacking.cache_clear()


@pytest.mark.parametrize("how", ["none", "another schema"])
def test_without_the_cudnn_operator_that_is_known_flash2_serves(
    how, on_cpu: Kernels, operators: Operators, at_once, other_torch
) -> None:
    other_torch(CUDNN, how)
    train()
    assert operators.taken == [FLASH2]


@pytest.mark.parametrize("how", ["none", "another schema"])
def test_without_the_flash2_that_is_known_there_is_no_gradient(
    how, on_cpu: Kernels, operators: Operators, other_torch
) -> None:
    other_torch(FLASH2, how)
    with pytest.raises(InputError, match=r"^attention: torch .* has .*, expected that of torch 2.8 to 2.13") as error:
        train()
    assert "\n" not in str(error.value) and not operators.taken


def test_a_shape_that_cudnn_refuses_is_flash2s_from_then_on(on_cpu: Kernels, operators: Operators, at_once) -> None:
    def refuse(gradients: object) -> None:
        raise RuntimeError("cuDNN Frontend error: no plan\nand more")

    operators.fault = refuse
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = [train() for _ in range(3)]
    assert [str(warning.message) for warning in warned] == [
        "tl_attention: FlashAttention-2 has the gradients of q (1, 2, 65, 64): cuDNN Frontend error: no plan"
    ]
    operators.fault = lambda gradients: None
    train()
    train((1, 2, 2, 66, 66, 64))
    assert operators.taken == [CUDNN, *4 * [FLASH2], CUDNN]
    with force_operator(FLASH2):
        assert all(all(map(torch.equal, gradients, train())) for gradients in found)


def test_that_memory_is_full_is_no_refusal(on_cpu: Kernels, operators: Operators, at_once) -> None:
    def full(gradients: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    operators.fault = full
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        train()
    operators.fault = lambda gradients: None
    train()
    assert operators.taken == [CUDNN, CUDNN]
