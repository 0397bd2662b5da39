"""Tests check softcap and sinks on the CPU: references, interpreter, and the kernel's own arithmetic."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest
import torch
from mutations import mutate, shipped
from tiers import exhaustive, sampled

from tl_attention import ScheduleRefused
from tl_attention.kernels.shared.device_code import SOFTCAP, SOFTCAP_BY_ROW
from tl_attention.kernels.shared.softmax import TANH
from tl_attention.lab.oracle.interpret import POLICIES, interpret, verify
from tl_attention.lab.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.lab.oracle.tile import Settings
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.legality import find_violation
from tl_attention.program.machine import EARLY, LATE

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
    """Computes attention row by row and key by key, as the words say it."""
    output = torch.zeros_like(q)
    past = k.shape[2] - q.shape[2]
    for b, h, i in ((b, h, i) for b in range(q.shape[0]) for h in range(q.shape[1]) for i in range(q.shape[2])):
        weights = []
        for j in range(k.shape[2]):
            late, early = (
                mask.right is not None and j > i + past + mask.right,
                mask.left is not None and j < i + past - mask.left,
            )
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


SIZES = [(65, 70, FULL), (40, 130, CAUSAL), (50, 90, Mask(left=20, right=5)), (33, 33, Mask(left=7))]
DRAWN = [(case, dtype, *sizes) for case in CASES for sizes in SIZES for dtype in DTYPES]


# `make test` tries every third, with each case and each size.
@pytest.mark.parametrize("case,dtype,seq_q,seq_kv,mask", sampled(DRAWN, DRAWN[::3]))
def test_the_interpreter_is_right(case, dtype, seq_q, seq_kv, mask):
    q, k, v = make_inputs(AttentionShape(1, 3, seq_q, seq_kv, 64, dtype), seed=seq_q + seq_kv)
    options = {"mask": mask, "scale": 0.2, **CASES[case]}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    for name in BOTH:
        for policy in (LATE, EARLY):
            output = interpret(derive(shipped()[name]), (q, k, v), Settings(32, 16), policy=policy, **options)
            error = compare(output, exact, peer)
            assert error.ok, f"{name}: {error}"


@pytest.mark.parametrize("name", ("seed", "fa3_pipelined", "best", "best_causal", "ws_three_stages"))
def test_variants_are_verified_with_what_is_optional(name):
    schedule = shipped()[name]
    plain = Variant(64, "float16", CAUSAL)
    for optional in ({"softcap"}, {"Sinks"}, {"softcap", "Sinks"}):
        reports = verify(derive(schedule), schedule, replace(plain, optional=frozenset(optional)))
        assert set(reports) == set(POLICIES) and all(report.ok for report in reports.values()), reports


@exhaustive
@pytest.mark.parametrize("model", ["synchronous", "asynchronous"])
def test_a_row_max_that_caps_what_it_reads_needs_no_other_order(model):
    """The tables do not say that row_max writes acc_s: what must follow that write follows the maximum anyway."""
    rng = random.Random(11)
    verdicts = set()
    programmed = [schedule for schedule in shipped().values() if schedule.has_program]
    for schedule in [*programmed, *(mutate(rng.choice(programmed), rng) for _ in range(150))]:
        try:
            program = derive(schedule, model)
        except ScheduleRefused:
            continue
        row_max = program.table.by_name["row_max"]
        scores = tuple(buffer for buffer in row_max.reads if buffer.startswith("acc_s"))
        capping = replace(row_max, writes=row_max.writes + scores)
        table = replace(
            program.table, statements=tuple(capping if s is row_max else s for s in program.table.statements)
        )
        allowed = find_violation(program) is None
        assert allowed == (find_violation(replace(program, table=table)) is None)
        verdicts.add(allowed)
    assert verdicts == {True, False}


# Of the tangents by each polynomial, in fp32.
RELATIVE = {0.375: 4.6e-6, 0.75: 8e-7}


def by_horner(coefficients, power):
    result = torch.full_like(power, float(coefficients[-1]))
    for coefficient in coefficients[-2::-1]:
        result = result * power + coefficient
    return result


@pytest.mark.parametrize("bound", TANH)
def test_the_kernels_tangents_are_near_enough(bound):
    """Errors are relative to the tangent where a polynomial computes it, elsewhere to 1. All is in fp32."""
    x = torch.linspace(-bound, bound, 100_001)
    exact = torch.tanh(x.double())
    assert ((x * by_horner(TANH[bound], x * x) - exact).abs() <= RELATIVE[bound] * exact.abs()).all()
    for code in (SOFTCAP, SOFTCAP_BY_ROW):
        assert all(re.search(rf"(?<![\d.]){re.escape(str(abs(c)))}f", code.text) for c in TANH[bound])
        assert re.search(rf"furthest(\[row\])? <= {bound}f", code.text)
    x = torch.linspace(-30, 30, 100_001)
    exponents = (x * (2 * math.log2(math.e))).clamp(max=30.0)
    exact = torch.tanh(x.double())
    assert ((1 - 2 / (1 + torch.exp2(exponents)) - exact).abs() <= 4e-7).all()


@pytest.mark.parametrize("factor", [1.001e-7, 3e-5, 0.003, 1.0, 0.999e7])
def test_coefficients_with_the_factors_powers_are_near_enough(factor):
    """The factors lie between the two at which the kernel takes these coefficients."""
    assert all("factor > 1e-7f && factor < 1e7f" in code.text for code in (SOFTCAP, SOFTCAP_BY_ROW))
    bound, short = min(TANH.items())
    scores = torch.linspace(-bound, bound, 100_001) / factor
    factor = torch.tensor(factor)
    coefficients = [torch.tensor(c) * factor * (factor * factor) ** n for n, c in enumerate(short)]
    exact = torch.tanh(scores.double() * factor.double())
    assert (
        (scores * by_horner(coefficients, scores * scores) - exact).abs() <= RELATIVE[bound] * exact.abs() + 1e-37
    ).all()


def test_what_is_left_out_shows():
    """The error budget distinguishes a kernel that neither caps nor has sinks from one that does."""
    q, k, v = make_inputs(AttentionShape(1, 1, 40, 60, 64), 0)
    plain = attention_same_precision(q, k, v, mask=FULL, scale=0.125)
    for options in ({"softcap": 2.0}, {"sinks": torch.tensor([5.0])}):
        exact = attention_fp64(q, k, v, mask=FULL, scale=0.125, **options)
        peer = attention_same_precision(q, k, v, mask=FULL, scale=0.125, **options)
        assert compare(peer, exact, peer).ok and not compare(plain, exact, peer).ok
