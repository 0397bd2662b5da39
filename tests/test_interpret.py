"""The interpreter and the reference: right on every kind of problem, and wrong where they should be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mutations import shipped

from tl_attention.interpret import POLICIES, interpret, verify
from tl_attention.machine import EARLY, LATE
from tl_attention.derivation import derive
from tl_attention.reference import attention_fp64, attention_same_precision, compare, make_inputs

MODELS = ("synchronous", "asynchronous")


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("model", MODELS)
def test_shipped_schedules_are_right_in_both_runs(name, model):
    schedule = shipped()[name]
    for causal in (False, True):
        errors = verify(derive(schedule, model), schedule, head_dim=64, dtype="float16", causal=causal, seed=3)
        assert set(errors) == set(POLICIES)
        assert all(error.ok for error in errors.values()), {k: str(e) for k, e in errors.items()}


@pytest.mark.parametrize("kv_order", ["ascending", "descending"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seq_q,seq_kv,causal", [
    (1, 1, True), (1, 1, False), (63, 63, True), (65, 200, True), (200, 65, False), (130, 131, True), (64, 512, False),
])
def test_ragged_sizes_every_mask_and_both_directions(kv_order, dtype, seq_q, seq_kv, causal):
    q, k, v = make_inputs(2, 3, seq_q, seq_kv, 64, dtype, seed=seq_q + seq_kv)
    options = {"causal": causal, "scale": 0.2}
    program = derive(shipped()["seed"])
    output = interpret(
        program, q, k, v, block_M=32, block_N=16, kv_order=kv_order, policy=LATE, **options
    )
    error = compare(output, attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options))
    assert error.ok, str(error)


def test_fp64_attention_is_pytorchs():
    q, k, v = (x.double() for x in make_inputs(2, 2, 50, 80, 64, torch.float32, 0))
    mask = torch.ones(50, 80, dtype=torch.bool).tril(30)
    for causal in (False, True):
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask if causal else None, scale=0.3
        )
        torch.testing.assert_close(attention_fp64(q, k, v, causal=causal, scale=0.3), expected, rtol=1e-12, atol=1e-12)


def test_inputs_have_a_mean_and_depend_on_the_seed():
    q, k, v = make_inputs(1, 2, 512, 512, 64, torch.float16, 5)
    assert all(0.45 < x.float().mean() < 0.55 for x in (q, k, v))
    assert not torch.equal(k, v)
    assert torch.equal(q, make_inputs(1, 2, 512, 512, 64, torch.float16, 5)[0])
    assert not torch.equal(q, make_inputs(1, 2, 512, 512, 64, torch.float16, 6)[0])


@pytest.mark.parametrize("change", ["scale", "nan", "a wrong element", "a shifted mask"])
def test_the_budget_rejects(change):
    q, k, v = make_inputs(1, 2, 100, 100, 64, torch.float16, 1)
    exact = attention_fp64(q, k, v, causal=True, scale=0.125)
    peer = attention_same_precision(q, k, v, causal=True, scale=0.125)
    output = peer.clone()
    assert compare(output, exact, peer).ok
    if change == "scale":
        output = output * 1.01
    elif change == "nan":
        output[0, 1, 7, 3] = float("nan")
    elif change == "a wrong element":
        output[0, 0, 50, 3] += 0.02
    else:
        output[:, :, 1:] = attention_same_precision(q[:, :, :-1], k, v, causal=True, scale=0.125)
    assert not compare(output, exact, peer).ok


def test_late_and_early_differ_in_when_products_run():
    """With its waits taken out, a Program is wrong when products are late and right when they are early."""
    program = derive(shipped()["seed"], "asynchronous")
    unwaited = replace(program, consumer=tuple(
        op for op in program.consumer if (op.kind, op.statement) != ("wait", "mma0")
    ))
    q, k, v = make_inputs(1, 1, 64, 128, 64, torch.float16, 0)
    options = {"causal": False, "scale": 0.125}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    run = {"block_M": 64, "block_N": 16, **options}
    assert compare(interpret(unwaited, q, k, v, policy=EARLY, **run), exact, peer).ok
    assert not compare(interpret(unwaited, q, k, v, policy=LATE, **run), exact, peer).ok
