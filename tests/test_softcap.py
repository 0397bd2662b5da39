"""Softcap and sinks on the CPU: the references, the interpreter, what is refused, and the kernel's own arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from mutations import mutate, shipped

from tl_attention.oracle.interpret import POLICIES, interpret, verify
from tl_attention.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.machine import EARLY, LATE
from tl_attention.proof.legality import find_violation

BOTH = ("seed", "ws_seed", "best")
CASES = {
    "softcap": {"softcap": 3.0},
    "a softcap that none comes near": {"softcap": 1000.0},
    "a softcap that all reach": {"softcap": 0.25},
    "sinks": {"sinks": torch.tensor([-2.0, 0.0, 7.5])},
    "sinks that weigh all or nothing": {"sinks": torch.tensor([float("-inf"), 1e30, -1e30])},
    "both": {"softcap": 5.0, "sinks": torch.tensor([3.0, 9.0, -1.0])},
}


def by_hand(q, k, v, mask, scale, softcap=0.0, sinks=None):
    """Row by row and key by key, as the words say it."""
    output = torch.zeros_like(q)
    past = k.shape[2] - q.shape[2]
    for b, h, i in ((b, h, i) for b in range(q.shape[0]) for h in range(q.shape[1]) for i in range(q.shape[2])):
        weights = []
        for j in range(k.shape[2]):
            late, early = mask.right is not None and j > i + past + mask.right, mask.left is not None and j < i + past - mask.left
            score = scale * float(q[b, h, i] @ k[b, h, j])
            capped = softcap * math.tanh(score / softcap) if softcap else score
            weights.append(0.0 if late or early else math.exp(capped))
        total = sum(weights) + (math.exp(float(sinks[h])) if sinks is not None else 0.0)
        if any(weights):
            output[b, h, i] = torch.tensor(weights, dtype=torch.float64) @ v[b, h] / total
    return output


@pytest.mark.parametrize("mask", [FULL, CAUSAL, Mask(left=2, right=1)], ids=str)
@pytest.mark.parametrize("options", [CASES["softcap"], CASES["sinks"], CASES["both"]], ids=["softcap", "sinks", "both"])
def test_the_reference_is_what_the_words_say(mask, options):
    q, k, v = (x.double() for x in make_inputs(AttentionShape(1, 3, 4, 7, 64), 0))
    expected = by_hand(q, k, v, mask, 0.1, **options)
    torch.testing.assert_close(attention_fp64(q, k, v, mask=mask, scale=0.1, **options), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "seq_q,seq_kv,mask", [(65, 70, FULL), (40, 130, CAUSAL), (50, 90, Mask(left=20, right=5)), (33, 33, Mask(left=7))], ids=str
)
def test_the_interpreter_is_right(case, dtype, seq_q, seq_kv, mask):
    q, k, v = make_inputs(AttentionShape(1, 3, seq_q, seq_kv, 64, dtype), seed=seq_q + seq_kv)
    options = {"mask": mask, "scale": 0.2, **CASES[case]}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    for name in BOTH:
        for policy in (LATE, EARLY):
            output = interpret(derive(shipped()[name]), q, k, v, block_M=32, block_N=16, policy=policy, **options)
            error = compare(output, exact, peer)
            assert error.ok, f"{name}: {error}"


@pytest.mark.parametrize("name", ("seed", "fa3_pipelined", "best", "best_causal", "ws_three_stages"))
def test_variants_are_verified_with_what_is_optional(name):
    schedule = shipped()[name]
    plain = Variant(64, "float16", CAUSAL)
    for optional in ({"softcap"}, {"Sinks"}, {"softcap", "Sinks"}):
        reports = verify(derive(schedule), schedule, replace(plain, optional=frozenset(optional)))
        assert set(reports) == set(POLICIES) and all(report.ok for report in reports.values()), reports


def test_what_is_left_out_shows():
    """The budget tells a kernel that neither caps nor has sinks from one that does."""
    q, k, v = make_inputs(AttentionShape(1, 1, 40, 60, 64), 0)
    plain = attention_same_precision(q, k, v, mask=FULL, scale=0.125)
    for options in ({"softcap": 2.0}, {"sinks": torch.tensor([5.0])}):
        exact = attention_fp64(q, k, v, mask=FULL, scale=0.125, **options)
        peer = attention_same_precision(q, k, v, mask=FULL, scale=0.125, **options)
        assert compare(peer, exact, peer).ok and not compare(plain, exact, peer).ok
