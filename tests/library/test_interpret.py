"""Interpreter and reference are right on every kind of problem, and the interpreter is wrong where it should be."""

import itertools
import struct
from dataclasses import replace

import pytest
import torch
from mutations import shipped
from specialized import CHUNKED, REST, TWO, fa3
from tiers import sampled

from tl_attention.lab.measure.candidate import SHARP
from tl_attention.lab.oracle.interpret import POLICIES, interpret, verify
from tl_attention.lab.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.lab.oracle.tile import Settings, exp2, on_fma_units
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.machine import EARLY, LATE
from tl_attention.schedule.loop.exp2 import COEFFICIENTS
from tl_attention.schedule.options import Exp2Polynomial, SoftmaxOptions

MODELS = ("synchronous", "asynchronous")


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("model", MODELS)
def test_shipped_schedules_are_right_in_both_runs(name, model):
    schedule = shipped()[name]
    for mask in (FULL, CAUSAL):
        errors = verify(derive(schedule, model), schedule, Variant(64, "float16", mask), seed=3)
        assert set(errors) == set(POLICIES)
        assert all(error.ok for error in errors.values()), {k: str(e) for k, e in errors.items()}


RAGGED = (
    (1, 1, CAUSAL),
    (1, 1, FULL),
    (63, 63, CAUSAL),
    (65, 200, CAUSAL),
    (200, 65, FULL),
    (130, 131, CAUSAL),
    (64, 512, FULL),
    (100, 300, Mask(left=40, right=0)),
    (100, 300, Mask(left=16, right=31)),
    (70, 200, Mask(left=0, right=0)),
    (130, 65, Mask(left=33)),
    (65, 200, Mask(right=20)),
    # The first queries stand before all keys.
    (120, 116, Mask(left=20, right=4)),
)
BOTH_WAYS = [*itertools.product(("ascending", "descending"), DTYPES)]
DRAWN = [(*way, *sizes) for sizes in RAGGED for way in BOTH_WAYS]


# `make test` tries each in one direction, these and the dtypes in turn.
@pytest.mark.parametrize(
    "kv_order,dtype,seq_q,seq_kv,mask", sampled(DRAWN, [DRAWN[4 * n + n % 4] for n in range(len(RAGGED))])
)
def test_ragged_sizes_every_mask_and_both_directions(kv_order, dtype, seq_q, seq_kv, mask):
    q, k, v = make_inputs(AttentionShape(2, 3, seq_q, seq_kv, 64, dtype), seed=seq_q + seq_kv)
    options = {"mask": mask, "scale": 0.2}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    for name in ("seed", "ws_seed"):
        program = derive(shipped()[name])
        output = interpret(program, (q, k, v), Settings(32, 16, kv_order), policy=LATE, **options)
        error = compare(output, exact, peer)
        assert error.ok, f"{name}: {error}"


def test_fp64_attention_is_pytorchs():
    q, k, v = (x.double() for x in make_inputs(AttentionShape(2, 2, 50, 80, 64), 0))
    place = torch.ones(50, 80, dtype=torch.bool)
    masks = {
        FULL: None,
        CAUSAL: place.tril(30),
        Mask(left=7, right=2): place.tril(32).triu(23),
        Mask(left=0): place.triu(30),
    }
    for mask, visible in masks.items():
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=0.3)
        torch.testing.assert_close(attention_fp64(q, k, v, mask=mask, scale=0.3), expected, rtol=1e-12, atol=1e-12)


def test_a_query_that_sees_one_key_gets_its_value_and_one_that_sees_none_gets_0():
    q, k, v = make_inputs(AttentionShape(1, 1, 5, 3, 64), 0)
    for attention in (attention_fp64, attention_same_precision):
        output = attention(q, k, v, mask=CAUSAL, scale=0.3)[0, 0]
        assert not output[:2].any() and output[2:].isfinite().all() and torch.equal(output[2].half(), v[0, 0, 0])


def test_inputs_have_a_mean_and_depend_on_the_seed():
    q, k, v = make_inputs(AttentionShape(1, 2, 512, 512, 64), 5)
    assert all(0.45 < x.float().mean() < 0.55 for x in (q, k, v))
    assert not torch.equal(k, v)
    assert torch.equal(q, make_inputs(AttentionShape(1, 2, 512, 512, 64), 5)[0])
    assert not torch.equal(q, make_inputs(AttentionShape(1, 2, 512, 512, 64), 6)[0])


@pytest.mark.parametrize("change", ["scale", "nan", "a wrong element", "a shifted mask"])
def test_the_budget_rejects(change):
    q, k, v = make_inputs(AttentionShape(1, 2, 100, 100, 64), 1)
    exact = attention_fp64(q, k, v, mask=CAUSAL, scale=0.125)
    peer = attention_same_precision(q, k, v, mask=CAUSAL, scale=0.125)
    output = peer.clone()
    assert compare(output, exact, peer).ok
    if change == "scale":
        output = output * 1.01
    elif change == "nan":
        output[0, 1, 7, 3] = float("nan")
    elif change == "a wrong element":
        output[0, 0, 50, 3] += 0.02
    else:
        output[:, :, 1:] = attention_same_precision(q[:, :, :-1], k, v, mask=CAUSAL, scale=0.125)
    assert not compare(output, exact, peer).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_maximum_that_is_not_the_rows_own_shows_where_scores_lie_far_apart(dtype):
    def short_maximum(tile):
        tile["scores_max"] = torch.maximum(tile["scores_max"], tile["acc_s"][:, 16:].amax(dim=1))

    program, options = derive(shipped()["seed"]), {"mask": FULL, "scale": 0.125}
    for spread, code, ok in ((1.0, short_maximum, True), (SHARP, short_maximum, False), (SHARP, None, True)):
        q, k, v = make_inputs(AttentionShape(1, 1, 256, 300, 64, dtype), 3, spread=spread)
        exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
        tiles = Settings(64, 32, code={"row_max": code} if code else {})
        output = interpret(program, (q, k, v), tiles, policy=LATE, **options)
        assert compare(output, exact, peer).ok == ok


def test_late_and_early_differ_in_when_products_run():
    """A Program without its waits is wrong when products are late and right when they are early."""
    program = derive(shipped()["seed"], "asynchronous")
    unwaited = replace(
        program, consumer=tuple(op for op in program.consumer if (op.kind, op.statement) != ("wait", "mma0"))
    )
    q, k, v = make_inputs(AttentionShape(1, 1, 64, 128, 64), 0)
    options = {"mask": FULL, "scale": 0.125}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    given = (q, k, v), Settings(64, 16)
    assert compare(interpret(unwaited, *given, policy=EARLY, **options), exact, peer).ok
    assert not compare(interpret(unwaited, *given, policy=LATE, **options), exact, peer).ok


@pytest.mark.parametrize(
    "options",
    [
        {"rescale_threshold": 1.0},
        {"rescale_threshold": 15.0},
        {"fused_scale": False, "row_sum": "row"},
        {"exp2_polynomial": {"every": 1, "degree": 3}},
        {"exp2_polynomial": {"every": 4, "first": 3, "degree": 5}},
        {"rescale_threshold": 8.0, "exp2_polynomial": {"every": 2}},
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_softmax_is_right(options, dtype):
    schedule = fa3(*REST, softmax=options)
    for mask in (FULL, CAUSAL):
        errors = verify(derive(schedule), schedule, Variant(64, dtype, mask), seed=5)
        assert all(error.ok for error in errors.values()), {k: str(e) for k, e in errors.items()}


def run(schedule, softmax: SoftmaxOptions = SoftmaxOptions(), observer=None, block_N: int = 176) -> torch.Tensor:
    q, k, v = make_inputs(AttentionShape(1, 1, 128, 704, 64), 0)
    return interpret(
        derive(schedule),
        (q, k, v),
        Settings(128, block_N, "descending", softmax, observer=observer),
        mask=CAUSAL,
        scale=0.125,
        policy=LATE,
    )


@pytest.mark.parametrize(
    "split",
    [
        TWO,
        {"exp": (16, 160), "cast": (96, 80)},
        {"rescale": (16, 48)},
        {"exp": (48, 128), "row_sum": (16, 64, 96), "cast": (96, 48, 32), "rescale": (32, 32)},
    ],
)
def test_chunks_give_the_same_bits_but_for_the_order_of_the_sum(split):
    names = [f"{name}.{i}" if name in split else name for name in REST for i in range(len(split.get(name, (0,))))]
    got, want = run(fa3(*names, split=split)), run(fa3(*REST))
    if "row_sum" not in split:
        assert torch.equal(got, want)
    torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-5)


def test_the_maximum_is_kept_in_a_row_until_it_would_grow_by_more_than_the_threshold():
    """The maximum is kept row by row, no exponential exceeds 2^threshold, and the output does not tell."""
    kept: dict[float, list[torch.Tensor]] = {}
    for threshold in (0.0, 1.0, 15.0):
        maxima: list[torch.Tensor] = []

        def observe(statement, block, buffer, value):
            if (statement, buffer) == ("exp", "scores_max"):
                maxima.append(value)
            if (statement, buffer) == ("cast", "acc_s"):
                assert value.min() >= 0.0 and value.max() <= 2.0**threshold * (1 + 1e-5)

        # The first of so small blocks hides all of some rows.
        output = run(fa3(*REST), SoftmaxOptions(rescale_threshold=threshold), observe, block_N=48)
        torch.testing.assert_close(output, run(fa3(*REST)), rtol=2e-3, atol=1e-4)
        kept[threshold] = maxima
    changes = {t: sum(int((a != b).sum()) for a, b in itertools.pairwise(m)) for t, m in kept.items()}
    assert changes[0.0] > changes[1.0] > 0, changes
    # From -inf the next maximum is always taken.
    assert changes[15.0] == int((kept[15.0][0] == float("-inf")).sum()) > 0
    # A row keeps its maximum by itself: some grow in a block in which others do not.
    assert any(0 < int((a != b).sum()) < len(a) for a, b in zip(kept[1.0][1:], kept[1.0][2:]))


def test_the_polynomial_computes_the_elements_of_its_registers():
    """Thread 0 of a warpgroup holds rows 0 and 8, and columns 0 and 1 of every eight, in wgmma's register order."""
    thread_0 = [(i, 8 * g + c) for g in range(6) for i in (0, 8) for c in (0, 1)]
    for every, first in ((1, 0), (4, 0), (3, 2), (5, 7)):
        chosen = on_fma_units(Exp2Polynomial(every=every, first=first), 64, 48)
        assert [bool(chosen[i, j]) for i, j in thread_0] == [r >= first and (r - first) % every == 0 for r in range(24)]
        # Every thread of every warp does the same with its own.
        assert torch.equal(chosen[:16, :8].repeat(4, 1), chosen[:, :8]) and torch.equal(chosen[0], chosen[7])
        assert torch.equal(chosen[:, 0::2][:, :4], chosen[:, 0:1].expand(-1, 4))


@pytest.mark.parametrize("degree, error", [(2, 2.1e-3), (3, 8.6e-5), (4, 3.1e-6), (5, 3.3e-7)])
def test_the_polynomial_is_within_its_error_in_fp32_over_the_whole_range(degree, error):
    x = torch.linspace(-125, 15, 100_001)
    assert (exp2(x, degree).double() / 2.0 ** x.double() - 1).abs().max() <= error
    low = exp2(torch.tensor([0.0, -127.0, -1000.0, float("-inf")]), degree)
    assert low[0] == 1.0 and (low[1:] <= 2.0**-127).all() and (low[1:] >= 0).all()


def test_the_chosen_exponentials_are_the_polynomials_and_the_others_are_not():
    seen: dict[bool, list[torch.Tensor]] = {}
    options = SoftmaxOptions(exp2_polynomial=Exp2Polynomial(every=3, first=1, degree=2))
    for softmax in (SoftmaxOptions(), options):
        values = seen.setdefault(softmax == options, [])

        def observe(statement, block, buffer, value):
            if (statement, buffer) == ("cast", "acc_s"):
                values.append(value)

        run(fa3(*CHUNKED, split=TWO), softmax, observe)
    chosen = on_fma_units(options.exp2_polynomial, 128, 176)
    exact, polynomial = seen[False][-1], seen[True][-1]
    assert torch.equal(exact[~chosen], polynomial[~chosen])
    error = (polynomial[chosen] / exact[chosen] - 1).abs()
    assert 1e-3 < error.max() < 2.1e-3


# The largest relative error on [0, 1).
ERRORS = {2: 2.06e-3, 3: 8.57e-5, 4: 2.90e-6, 5: 8.50e-8}


def fp32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def polynomial(degree: int, x: torch.Tensor) -> torch.Tensor:
    return sum(fp32(coefficient) * x**power for power, coefficient in enumerate(COEFFICIENTS[degree]))


def test_there_is_a_polynomial_of_every_degree_that_a_schedule_may_ask_for() -> None:
    assert {degree: len(coefficients) - 1 for degree, coefficients in COEFFICIENTS.items()} == {
        degree: degree for degree in ERRORS
    }


@pytest.mark.parametrize("degree", ERRORS)
def test_the_largest_relative_error_is_the_one_stated(degree) -> None:
    x = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    error = (polynomial(degree, x) / 2**x - 1).abs().max().item()
    assert 0.99 * ERRORS[degree] < error <= ERRORS[degree]


@pytest.mark.parametrize("degree", ERRORS)
def test_no_neighbour_is_better(degree) -> None:
    """The error is minimal: a relative change of a thousandth of any coefficient but the first makes it larger."""
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    exact = 2**x
    value = polynomial(degree, x)
    least = (value / exact - 1).abs().max()
    for power in range(1, degree + 1):
        for factor in (-1e-3, 1e-3):
            changed = value + factor * COEFFICIENTS[degree][power] * x**power
            assert (changed / exact - 1).abs().max() > least


@pytest.mark.parametrize("degree", ERRORS)
def test_no_value_lies_below_one(degree) -> None:
    assert COEFFICIENTS[degree][0] == 1.0
    assert polynomial(degree, torch.linspace(0, 1, 10_001, dtype=torch.float64)).min() == 1.0
