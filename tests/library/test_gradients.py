"""The oracle's gradients are autograd's, and Programs of both loops compute them at both extremes of asynchrony."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress

import pytest
import torch
from test_gradient_loops import SHIPPED, changed
from tiers import exhaustive
from torch import Tensor

from tl_attention.errors import ScheduleRefused
from tl_attention.lab.oracle.gradients import gradients, interpret_gradients
from tl_attention.lab.oracle.interpret import POLICIES
from tl_attention.lab.oracle.reference import attention_and_lse, compare
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.program.derivation import derive
from tl_attention.program.legality import check
from tl_attention.program.machine import Deadlock
from tl_attention.schedule.schedule import Schedule

WINDOW = Mask(20, 5)
BLOCK_M, BLOCK_N = 32, 16


def drawn(
    seed: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int, columns: int, columns_v: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Returns Q, K, V and dO, drawn as normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    of = (heads, seq_q, columns), (heads_kv, seq_kv, columns), (heads_kv, seq_kv, columns_v), (heads, seq_q, columns_v)
    return tuple(torch.randn(2, *sizes, generator=generator).to(dtype) for sizes in of)


@pytest.mark.parametrize("mask", [FULL, CAUSAL, WINDOW], ids=str)
@pytest.mark.parametrize("seq_q, seq_kv", [(9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_the_oracles_gradients_are_those_of_autograd(mask, seq_q, seq_kv, softcap):
    inputs = drawn(1, 4, 2, seq_q, seq_kv, 8, 16, torch.float64)
    q, k, v = (x.requires_grad_() for x in inputs[:3])
    d_lse, sinks = torch.randn(2, 4, seq_q, dtype=torch.float64), torch.linspace(-1, 2, 4)
    found = gradients(*inputs, d_lse, mask=mask, scale=0.3, precise=True, sinks=sinks, softcap=softcap)
    scores = q @ k.repeat_interleave(2, 1).mT * 0.3
    scores = softcap * (scores / softcap).tanh() if softcap else scores
    own = torch.arange(seq_q)[:, None] + seq_kv - seq_q
    after = torch.arange(seq_kv)[None, :] - own
    seen = (after <= (mask.right if mask.right is not None else 99)) & (
        after >= -(mask.left if mask.left is not None else 99)
    )
    # A row without a key has an output of 0, and the sink as its LSE.
    scores = torch.cat([scores.masked_fill(~seen, -1e300), sinks.double()[:, None, None].expand(2, -1, seq_q, 1)], -1)
    weights = scores.softmax(-1)[..., :-1]
    ((weights @ v.repeat_interleave(2, 1) * inputs[3]).sum() + (scores.logsumexp(-1) * d_lse).sum()).backward()
    for name, x in zip(("dQ", "dK", "dV"), (q, k, v)):
        torch.testing.assert_close(found[name], x.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_gradcheck_agrees_with_the_oracle(softcap):
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(context, q, k, v):
            context.save_for_backward(q, k, v)
            return attention_and_lse(q, k, v, mask=CAUSAL, scale=0.4, precise=True, softcap=softcap)

        @staticmethod
        def backward(context, *grads):
            given = {"mask": CAUSAL, "scale": 0.4, "precise": True, "softcap": softcap}
            return tuple(gradients(*context.saved_tensors, *grads, **given).values())

    q, k, v, _ = (x.requires_grad_() for x in drawn(3, 2, 1, 5, 7, 4, 4, torch.float64))
    assert torch.autograd.gradcheck(Attention.apply, (q, k, v))


# --- Programs --------------------------------------------------------------------------------------------------------

CASES = {
    "whole tiles": (1, 1, 64, 64, 16, 16, FULL),
    "ragged": (2, 2, 45, 77, 16, 16, FULL),
    "causal": (2, 2, 70, 70, 16, 16, CAUSAL),
    "more keys": (2, 2, 33, 90, 16, 16, CAUSAL),
    "rows without a key": (2, 2, 90, 33, 16, 16, CAUSAL),
    "grouped": (4, 2, 50, 50, 16, 16, CAUSAL),
    "one KV head, wider V": (3, 1, 37, 64, 16, 32, FULL),
    "window": (2, 1, 80, 80, 16, 16, WINDOW),
    "one query": (1, 1, 1, 40, 16, 16, FULL),
}


def interpreted(
    schedule: Schedule, inputs: Mapping[str, Tensor], mask: Mask, policy: str, **asked: float
) -> dict[str, Tensor]:
    return interpret_gradients(
        derive(schedule), inputs, BLOCK_M, BLOCK_N, mask=mask, scale=0.25, policy=POLICIES[policy], **asked
    )


def problem(name: str, dtype: torch.dtype, seed: int = 0, **asked: float) -> tuple[dict[str, Tensor], Mask]:
    *sizes, mask = CASES[name]
    q, k, v, d_out = drawn(seed, *sizes, dtype)
    output, lse = attention_and_lse(q, k, v, mask=mask, scale=0.25, precise=False, **asked)
    return {"Q": q, "K": k, "V": v, "dO": d_out, "O": output, "LSE": lse}, mask


def check_numbers(schedule: Schedule, name: str, dtype: torch.dtype, has_d_lse: bool = False, **asked: float) -> None:
    inputs, mask = problem(name, dtype, **asked)
    if has_d_lse:
        inputs["dLSE"] = torch.randn(inputs["LSE"].shape, generator=torch.Generator().manual_seed(2))
    given = *(inputs[x] for x in ("Q", "K", "V", "dO")), inputs.get("dLSE")
    exact, peer = (gradients(*given, mask=mask, scale=0.25, precise=precise, **asked) for precise in (True, False))
    for policy in POLICIES:
        found = interpreted(schedule, inputs, mask, policy, **asked)
        assert [*found] == [*schedule.table.stored]
        for result, x in found.items():
            report = compare(x, exact[result], peer[result])
            assert report.ok, (policy, result, report)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("loop", SHIPPED)
def test_a_shipped_schedule_computes_gradients_at_both_extremes_of_asynchrony(loop, name):
    for dtype in (torch.float16, torch.bfloat16):
        check_numbers(SHIPPED[loop], name, dtype)


@pytest.mark.parametrize("name", ["causal", "rows without a key", "window"])
@pytest.mark.parametrize("loop", SHIPPED)
def test_a_softcap_has_its_slope_in_every_gradient(loop, name):
    check_numbers(SHIPPED[loop], name, torch.bfloat16, softcap=1.5)


@pytest.mark.parametrize("name", ["rows without a key", "grouped"])
@pytest.mark.parametrize("loop", SHIPPED)
def test_a_shipped_schedule_computes_gradients_of_the_lse(loop, name):
    check_numbers(SHIPPED[loop], name, torch.bfloat16, has_d_lse=True)


@pytest.mark.parametrize("loop", SHIPPED)
def test_a_row_without_a_key_has_no_weights_whatever_its_lse(loop):
    """With a sink such a row has a finite LSE, the sink: its scores are hidden by the mask alone."""
    inputs, mask = problem("rows without a key", torch.bfloat16)
    for policy in POLICIES:
        expected = interpreted(SHIPPED[loop], inputs, mask, policy)
        for sink in (-1e4, 0.0, 1e4):
            with_sinks = inputs | {"LSE": inputs["LSE"].masked_fill(inputs["LSE"].isneginf(), sink)}
            found = interpreted(SHIPPED[loop], with_sinks, mask, policy)
            assert all(found[name].equal(value) for name, value in expected.items())


OTHERS = {
    "dQ a block late": ("dq", {"order": [-1, -1, 0, 1, 3, 4, 2], "stage": [-1, -1, 0, 0, 0, 0, 1]}),
    "in chunks": (
        "dq",
        {
            "split": {"exp": [32, 32], "ds": [48, 16]},
            "group": [["load_v"], ["load_k"], ["s"], ["dp"], ["mask", "exp.0", "exp.1"], ["ds.0", "ds.1"], ["dq"]],
        },
    ),
    "three buffers": ("dkdv", {"kernel": {"q_stages": 3}}),
    "dV behind dS": ("dkdv", {"order": [-1, -1, 0, 1, 2, 4, 3, 5]}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_orders_compute_the_same(name):
    loop, keys = OTHERS[name]
    if "split" in keys:
        # Chunks have the columns of the schedule's block.
        inputs, mask = problem("causal", torch.bfloat16)
        schedule = changed(loop, **keys)
        for policy in POLICIES.values():
            found, plain = (
                interpret_gradients(derive(s), inputs, 64, 64, mask=mask, scale=0.25, policy=policy)["dQ"]
                for s in (schedule, SHIPPED[loop])
            )
            assert found.equal(plain)
    else:
        check_numbers(changed(loop, **keys), "grouped", torch.float16)


def test_sums_do_not_depend_on_when_asynchronous_work_ends():
    inputs, mask = problem("grouped", torch.bfloat16)
    for schedule in SHIPPED.values():
        early, late = (interpreted(schedule, inputs, mask, policy) for policy in POLICIES)
        assert all(early[name].equal(late[name]) for name in early)


WRONG = [
    # Each is refused; its numbers are wrong at one of the extremes, or it never ends.
    ("dkdv", {"order": [-1, -1, 0, 1, 2, 3, 5, 4]}, "dK"),
    ("dkdv", {"order": [-1, -1, 0, 3, 1, 4, 2, 5]}, "dK"),
    ("dq", {"order": [-1, -1, 0, 1, 3, 2, 4]}, "dQ"),
    ("dq", {"stage": [-1, -1, 0, 0, 0, 1, 1]}, "dQ"),
]


@pytest.mark.parametrize("loop, keys, result", WRONG)
def test_a_refused_order_has_wrong_numbers(loop, keys, result):
    schedule = changed(loop, **keys)
    with pytest.raises(ScheduleRefused):
        check(derive(schedule))
    inputs, mask = problem("whole tiles", torch.float16)
    exact = gradients(*(inputs[x] for x in ("Q", "K", "V", "dO")), mask=mask, scale=0.25, precise=True)[result]
    found = []
    for policy in POLICIES:
        with suppress(Deadlock):
            found.append(interpreted(schedule, inputs, mask, policy)[result])
    assert len(found) < len(POLICIES) or any(
        not x.isfinite().all() or (x.double() - exact).abs().max() > 0.05 for x in found
    )


@exhaustive
@pytest.mark.parametrize("loop", SHIPPED)
def test_every_accepted_order_of_300_computes_the_gradients(loop):
    rng, base, accepted = random.Random(11), SHIPPED[loop], 0
    for _ in range(300):
        placed = [order for order in base.order if order >= 0]
        places = sorted(placed, key=lambda place: place + rng.uniform(0, 3))
        ranks = {place: rank for rank, place in enumerate(places)}
        order = [ranks.get(order, -1) for order in base.order]
        most = rng.randrange(3)
        stage = [-1 if o < 0 else rng.randint(0, most) for o in order]
        buffers = {f"{load.removeprefix('load_')}_stages": rng.randint(1, 3) for load in base.table.loads}
        try:
            schedule = changed(loop, order=order, stage=stage, kernel=buffers)
            check(derive(schedule))
        except ValueError:
            continue
        accepted += 1
        check_numbers(schedule, "causal", torch.float16)
    assert accepted > 5
