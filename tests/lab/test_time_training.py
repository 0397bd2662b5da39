"""Training steps with new lengths, and of a Llama: tests check on the CPU who computes, and the records."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from gradients import flash_on_cpu
from measurements import llama, new_shapes, training
from measurements.losses import judged
from measurements.steps import Steps, ratios
from measurements.training import Setting
from on_cpu import Kernels, on_cpu
from tiers import exhaustive, sampled

from tl_attention.lab.measure.records import parse_line, problem_of
from tl_attention.op import aten, trial
from tl_attention.problem.shape import AttentionShape

__all__ = ["flash_on_cpu", "on_cpu"]
SHAPE = AttentionShape.parse("1,2/1,96,64", dtype="bfloat16", causal=True)
MACHINE = {"device": "stand-in", "run": "now"}


@pytest.fixture
def operators(monkeypatch, on_cpu: Kernels, flash_on_cpu) -> list[tuple[str, int]]:
    """Notes which operator computes gradients, and of how many queries; FlashAttention-2 stands for cuDNN."""
    found: list[tuple[str, int]] = []
    flash2 = aten.flash2

    def noted(given, *of):
        found.append(("flash2", given.q.shape[1]))
        return flash2(given, *of)

    def cudnn(given, causal, scale):
        found.append(("cudnn", given.q.shape[2]))
        rows = given.but(lambda x: x.transpose(1, 2))
        return tuple(x.transpose(1, 2) for x in flash2(rows, SHAPE.mask, scale))

    monkeypatch.setattr(aten, "flash2", noted)
    monkeypatch.setattr(aten, "cudnn", cudnn)
    monkeypatch.setattr(trial, "why_not", lambda *of, **may_run: "")
    return found


def test_each_step_has_a_new_length_and_cudnn_computes_where_it_is_asked_for(operators, monkeypatch) -> None:
    monkeypatch.setattr(new_shapes, "PLANS", 1)
    monkeypatch.setattr(new_shapes, "WARM_UP", 1)
    rows = new_shapes.measured(Setting(SHAPE, layers=2, steps=3), MACHINE, "cpu")
    assert [row.attention for row in rows] == ["rule", "flash2", "cudnn"]
    for row in rows:
        assert parse_line(Steps, row.to_json().encode(), "here") == row
        assert len(row.block_s) == len(row.seqs) == 3 and row.steps == 1
    of_all = [seq for row in rows for seq in row.seqs]
    assert len(set(of_all)) == 9 and max(of_all) < SHAPE.seq_q
    asked = {
        name: {(operator, seq) for operator, seq in operators if seq in row.seqs} for name, row in by_name(rows).items()
    }
    assert {name: {operator for operator, _ in of} for name, of in asked.items()} == {
        "rule": {"flash2"}, "flash2": {"flash2"}, "cudnn": {"cudnn"}
    }  # fmt: skip
    # Two layers of three steps and one before them; and three gradients of each shape whose plan is timed.
    assert Counter(operator for operator, _ in operators) == {"flash2": 16, "cudnn": 8 + 6}
    assert len(by_name(rows)["cudnn"].plan_ms) == 1 and not by_name(rows)["rule"].plan_ms


def by_name(rows: list[Steps]) -> dict[str, Steps]:
    return {row.attention: row for row in rows}


def steps_of(attention: str, *block_s: float, **more) -> Steps:
    return Steps("a model", attention, problem_of(SHAPE), 8, 5, block_s, **more)


def test_ratios_are_medians_of_pairs() -> None:
    flash2, rule = steps_of("flash2", 1.0, 2.0, 4.0), steps_of("rule", 1.0, 2.2, 4.4)
    assert ratios([rule, flash2], "flash2") == {"rule": pytest.approx(1.1)} and rule.step_ms == pytest.approx(440)
    cudnn = replace(steps_of("cudnn", 3.0, 6.0, 12.0), plan_ms=(80.0, 86.4, 90.0))
    said, good = new_shapes.verdict([rule, flash2, cudnn])
    assert not good and said == (
        "by rule / flash2: 1.100, expected at most 1.05: FAILED; cudnn from the first call / flash2: 3.00; a plan takes 86 ms"
    )
    assert new_shapes.verdict([replace(flash2, attention="rule"), flash2, cudnn])[1]


@pytest.fixture
def small_llama(monkeypatch) -> None:
    monkeypatch.setattr(llama, "VOCABULARY", 97)
    monkeypatch.setattr(llama, "WARM_UP", 1)
    monkeypatch.setattr(llama, "STEPS", 1)


FLASH_ON_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.transformers
@pytest.mark.parametrize("how", sampled(llama.HOW, ["eager"]))
def test_each_attention_is_the_models_in_its_own_blocks(how, operators, small_llama) -> None:
    torch.compiler.reset()
    rows = llama.timed(SHAPE, 1, how, llama.attends(), 3, MACHINE, "cpu", "eager")
    for row in rows:
        assert parse_line(Steps, row.to_json().encode(), "here") == row
        assert len(row.block_s) == 3 and row.model == f"Llama, {how}"
    sdpa, by_sdpa, by_transformers = (row.seen for row in rows)
    # Activating replaces CUDA's functions, and a CPU has its own.
    assert FLASH_ON_CPU in sdpa and FLASH_ON_CPU in by_sdpa and FLASH_ON_CPU not in by_transformers
    assert "aten::_flash_attention_backward" in by_transformers
    assert ("tl_attention::forward" in by_transformers) == (how == "compiled")
    assert not any("Backward0" in name or name == "aten::scaled_dot_product_attention" for name in sdpa)
    assert len(operators) == 5


@exhaustive
@pytest.mark.transformers
def test_the_same_model_is_compiled_by_itself_with_each_attention(operators, small_llama) -> None:
    """Neither torch.compile nor its guards see what SDPA may run."""
    torch.compiler.reset()
    math = functools.partial(torch.nn.attention.sdpa_kernel, torch.nn.attention.SDPBackend.MATH)
    among = {"sdpa": ("sdpa", nullcontext), "math": ("sdpa", math)}
    flash, composed = llama.timed(SHAPE, 1, "compiled", among, 1, MACHINE, "cpu", "aot_eager")
    assert FLASH_ON_CPU in flash.seen and FLASH_ON_CPU not in composed.seen


@pytest.mark.transformers
def test_losses_of_a_llama_are_judged_as_those_of_the_other_model(operators, small_llama) -> None:
    setting = llama.LlamaSetting(SHAPE, layers=1, steps=20)
    attends = llama.judged_attends()
    # A CPU has no cuDNN.
    attends["cudnn"] = ("sdpa", functools.partial(torch.nn.attention.sdpa_kernel, torch.nn.attention.SDPBackend.MATH))
    runs = training.measure(setting, attends, (1,), "cpu", MACHINE, lambda run: None)
    assert [run.attention for run in runs] == ["ours", "cudnn", "flash2"] and operators
    assert all(run.method.startswith("a Llama") and len(run.losses) == 20 for run in runs)
    assert len(judged(runs)) == 1 and runs[0].losses[0] != runs[0].losses[-1]
