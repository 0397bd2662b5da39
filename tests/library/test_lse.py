"""Tests check the LSE on the CPU: references, the interpreter in every kind of kernel, and refused calls."""

import math
from dataclasses import replace

import pytest
import torch
from mutations import SCHEDULES

from tl_attention import InputError, attention
from tl_attention.lab.measure.candidate import SHARP
from tl_attention.lab.oracle.interpret import POLICIES, interpret, verify
from tl_attention.lab.oracle.reference import (
    LSE_ROUNDING,
    attention_fp64,
    compare_lse,
    lse_fp64,
    lse_same_precision,
    make_inputs,
)
from tl_attention.lab.oracle.tile import Settings
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.machine import LATE
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.options import Exp2Polynomial

LSE = frozenset({"LSE"})
# A maximum for every thread and for every row, sums likewise, and exponentials from another maximum than the row's.
NAMES = ["seed", "best", "best_causal", "ws_seed", "experiments/causal/rescale_threshold", "experiments/q_registers"]


@pytest.mark.parametrize("mask", [FULL, CAUSAL, Mask(left=7, right=2)], ids=str)
def test_fp64_lse_is_the_logarithm_of_the_sums(mask):
    q, k, _ = make_inputs(AttentionShape(2, 3, 40, 90, 64), seed=1)
    places = torch.arange(40)[:, None] + 50
    keys = torch.arange(90)[None, :]
    visible = torch.ones(40, 90, dtype=torch.bool)
    if mask.left is not None:
        visible &= keys >= places - mask.left
    if mask.right is not None:
        visible &= keys <= places + mask.right
    scores = q.double() @ k.double().transpose(2, 3) * 0.3
    expected = (scores.exp() * visible).sum(dim=3).log()
    assert torch.allclose(lse_fp64(q, k, mask=mask, scale=0.3), expected, rtol=1e-13)


def test_a_row_that_sees_no_key_is_minus_infinity():
    q, k, _ = make_inputs(AttentionShape(1, 1, 120, 50, 64), seed=1)
    options = {"mask": Mask(left=20, right=4), "scale": 0.1}
    exact, peer = lse_fp64(q, k, **options), lse_same_precision(q, k, **options)
    assert exact[0, 0, :66].isneginf().all() and exact[0, 0, 66:].isfinite().all()
    assert compare_lse(peer, exact, peer).ok
    for wrong in (float("nan"), float("inf"), 0.0):
        changed = peer.clone()
        changed[0, 0, 3] = wrong
        assert not compare_lse(changed, exact, peer).ok
    changed = peer.clone()
    changed[0, 0, 80] = -math.inf
    assert not compare_lse(changed, exact, peer).ok
    none = torch.full((1, 1, 4), -math.inf)
    assert compare_lse(none, none.double(), none).ok


def test_the_budget_of_the_lse_is_absolute():
    q, k, _ = make_inputs(AttentionShape(1, 2, 30, 70, 64), seed=1)
    options = {"mask": FULL, "scale": 0.1}
    exact, peer = lse_fp64(q, k, **options), lse_same_precision(q, k, **options)
    assert compare_lse(peer + 0.9 * LSE_ROUNDING, exact, peer).ok
    one_row = peer.clone()
    one_row[0, 1, 5] += 1.5 * LSE_ROUNDING
    assert not compare_lse(one_row, exact, peer).ok


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=["full", "causal"])
def test_the_interpreter_is_held_to_the_lse_in_both_runs(name, mask):
    schedule = load(SCHEDULES / f"{name}.yaml")
    errors = verify(derive(schedule), schedule, Variant(64, "bfloat16", mask, optional=LSE), seed=3)
    assert set(errors) == {*POLICIES, *(f"{policy} LSE" for policy in POLICIES)}
    assert all(error.ok for error in errors.values()), {k: str(e) for k, e in errors.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "seq_q,seq_kv,mask",
    [(1, 1, FULL), (65, 200, CAUSAL), (200, 65, FULL), (100, 300, Mask(left=40, right=0)), (120, 116, Mask(20, 4))],
    ids=str,
)
@pytest.mark.parametrize("spread", [1.0, SHARP])
def test_ragged_sizes_and_every_mask(dtype, seq_q, seq_kv, mask, spread):
    q, k, v = make_inputs(AttentionShape(2, 3, seq_q, seq_kv, 64, dtype), seed=seq_q + seq_kv, spread=spread)
    options = {"mask": mask, "scale": 0.2}
    exact, peer = lse_fp64(q, k, **options), lse_same_precision(q, k, **options)
    for name in ("seed", "ws_seed"):
        lse = torch.full((2, 3, seq_q), float("nan"))
        program = derive(load(SCHEDULES / f"{name}.yaml"))
        interpret(program, (q, k, v), Settings(32, 16), policy=LATE, lse=lse, **options)
        error = compare_lse(lse, exact, peer)
        assert error.ok, f"{name}: {error}"


def test_every_polynomial_is_within_the_budget():
    schedule = load(SCHEDULES / "best.yaml")
    for degree, every in ((2, 2), (2, 1), (3, 1)):
        polynomial = Exp2Polynomial(every=every, degree=degree)
        softmax = schedule.softmax.model_copy(update={"exp2_polynomial": polynomial})
        changed = schedule.model_copy(update={"softmax": softmax})
        errors = verify(derive(changed), changed, Variant(64, "float16", optional=LSE), seed=4)
        assert errors["late LSE"].ok, f"degree {degree}, every {every}: {errors['late LSE']}"


def test_a_wrong_sum_shows(monkeypatch):
    from tl_attention.lab.oracle.tile import InterpretedTile

    schedule = load(SCHEDULES / "best.yaml")
    right = InterpretedTile.lse
    monkeypatch.setattr(InterpretedTile, "lse", lambda tile: right(tile) * 1.01)
    errors = verify(derive(schedule), schedule, Variant(64, "float16", optional=LSE), seed=3)
    assert {name for name, error in errors.items() if not error.ok} == {"late LSE", "early LSE"}


def test_return_lse_is_true_or_false():
    half = torch.zeros(1, 1, 4, 64, dtype=torch.float16)
    with pytest.raises(InputError, match="attention: return_lse is 1, expected True or False") as error:
        attention(half, half, half, return_lse=1)
    assert "\n" not in str(error.value)


def test_the_variant_has_one_more_parameter():
    asked = replace(Variant(128, "float16"), optional=LSE)
    [lse] = [parameter for parameter in asked.parameters() if parameter.name == "LSE"]
    assert (lse.kind, lse.dims, lse.dtype) == ("output", ("batch", "heads", "seq_q"), "float32")
    assert all(parameter.name != "LSE" for parameter in Variant(128, "float16").parameters("TileCounter"))


def test_the_output_is_as_without():
    q, k, v = make_inputs(AttentionShape(1, 1, 30, 70, 64), seed=1)
    options = {"mask": FULL, "scale": 0.1}
    program = derive(load(SCHEDULES / "seed.yaml"))
    both = [
        interpret(program, (q, k, v), Settings(32, 16), policy=LATE, lse=lse, **options)
        for lse in (None, torch.empty(1, 1, 30))
    ]
    assert torch.equal(*both)
    assert torch.allclose(both[0].double(), attention_fp64(q, k, v, **options), atol=2e-3)
