"""NaN and infinity in inputs of attention() stay in the rows and heads that see them, on a Hopper GPU."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tl_attention import attention
from tl_attention.lab.oracle.reference import make_inputs
from tl_attention.op.compiled import schedule_of
from tl_attention.problem.card import HOPPER
from tl_attention.problem.mask import masked
from tl_attention.problem.shape import AttentionShape

HEADS, HEADS_KV, SEQ_Q, SEQ_KV = 6, 2, 1400, 1500
# The key that is spoiled, in K and V's second head, and a query of a head of Q that has the first.
KEY, QUERY = 1100, 17
PAST = SEQ_KV - SEQ_Q


@dataclass(frozen=True)
class Problem:
    """A problem is a call in whose inputs NaN and infinity are put."""

    head_dim: int
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    spread: float = 1.0
    schedule: str | None = None
    # A hidden key does nothing, wherever it lies; else it may in a KV block in which other rows see it.
    exact: bool = True

    @property
    def shape(self) -> AttentionShape:
        mask = masked(self.causal, self.window)
        return AttentionShape(1, HEADS, SEQ_Q, SEQ_KV, self.head_dim, mask=mask, heads_kv=HEADS_KV)

    @property
    def near(self) -> int:
        """Returns how far from rows that see a key others may still visit its KV block: two tiles and a block."""
        schedule = schedule_of(self.schedule, self.shape, HOPPER)
        return 2 * schedule.block_M + schedule.block_N

    def drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        return make_inputs(self.shape, random.SystemRandom().randrange(2**31), "cuda", self.spread)

    def run(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return attention(
            *tensors,
            causal=self.causal,
            window_size=self.window,
            softcap=self.softcap,
            schedule=self.schedule,
            return_lse=True,
        )


PROBLEMS = {
    "causal": Problem(128, causal=True),
    "window": Problem(128, window=(100, 50)),
    "softcap": Problem(128, causal=True, softcap=20.0),
    "softcap, scores far apart": Problem(128, causal=True, softcap=20.0, spread=64.0),
    "narrow": Problem(40, causal=True),
    "192, window": Problem(192, causal=True, window=(200, -1)),
    # It adds the product to the mask's -inf, and makes a number that is none of both.
    "pipelined": Problem(128, causal=True, schedule="seed", exact=False),
}


def rows_that_see(problem: Problem, beside: int = 0) -> Tensor:
    """Returns (heads, seq_q): the rows that see KEY of the second head, and `beside` more before and behind them."""
    left, right = problem.window
    after = KEY - PAST - torch.arange(SEQ_Q)
    last = 0 if problem.causal else right
    seen = torch.ones(SEQ_Q, dtype=torch.bool)
    if last >= 0:
        seen &= after <= last + beside
    if left >= 0:
        seen &= after >= -left - beside
    return torch.stack([seen if head >= HEADS // HEADS_KV else torch.zeros_like(seen) for head in range(HEADS)])


def test_some_rows_see_the_key_and_others_are_far_from_it() -> None:
    for problem in PROBLEMS.values():
        of_key, around = rows_that_see(problem), rows_that_see(problem, problem.near)
        assert of_key.any() and not (of_key & ~around).any()
        assert not around[3:].all() and not around[:3].any()


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_nan_in_a_key_and_in_a_query_spoils_the_rows_that_see_them(name: str) -> None:
    problem = PROBLEMS[name]
    q, k, v = problem.drawn()
    clean, clean_lse = problem.run(q, k, v)
    q[0, 0, QUERY, 5] = k[0, 1, KEY, 3] = math.nan
    output, lse = problem.run(q, k, v)
    must = rows_that_see(problem)
    may = must if problem.exact else rows_that_see(problem, problem.near)
    must[0, QUERY] = may[0, QUERY] = True
    spoiled = output.isnan().any(dim=-1)[0].cpu()
    assert torch.equal(output.isnan().all(dim=-1)[0].cpu(), spoiled) and torch.equal(lse.isnan()[0].cpu(), spoiled)
    assert not (must & ~spoiled).any() and not (spoiled & ~may).any()
    # Beside a score of another path of the cap, in the rows of a warp, numbers may differ by its error.
    good = ~spoiled[None].cuda()
    torch.testing.assert_close(output[good], clean[good], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse[good], clean_lse[good], rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "192, window", "pipelined"])
def test_what_is_no_number_in_v_spoils_its_column_near_the_rows_that_see_it(name: str) -> None:
    """A weight of 0 times infinity is NaN, in PyTorch as here: it may reach rows whose tile visits the key's block."""
    problem = PROBLEMS[name]
    q, k, v = problem.drawn()
    clean, clean_lse = problem.run(q, k, v)
    must, may = rows_that_see(problem), rows_that_see(problem, problem.near)
    for value in (math.inf, -math.inf, math.nan):
        v[0, 1, KEY, 7] = value
        output, lse = problem.run(q, k, v)
        spoiled = ~output[0, :, :, 7].isfinite().cpu()
        assert not (must & ~spoiled).any() and not (spoiled & ~may).any()
        assert torch.equal(lse, clean_lse)
        output[..., 7] = torch.where(spoiled[None].cuda(), clean[..., 7], output[..., 7])
        assert torch.equal(output, clean)


@pytest.mark.gpu
def test_infinite_keys_are_as_hidden_as_others() -> None:
    problem = PROBLEMS["causal"]
    q, k, v = problem.drawn()
    clean, clean_lse = problem.run(q, k, v)
    k[0, 1, KEY, 3] = math.inf
    output, lse = problem.run(q, k, v)
    good = ~rows_that_see(problem)[None].cuda()
    assert output[good].isfinite().all() and lse[good].isfinite().all()
    torch.testing.assert_close(output[good], clean[good], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse[good], clean_lse[good], rtol=1e-3, atol=1e-3)
    # A score of -inf hides its key, one of inf makes its row none.
    row = q[0, 4, KEY - PAST :, 3]
    assert output[0, 4, KEY - PAST :][row > 0].isnan().all() and output[0, 4, KEY - PAST :][row < 0].isfinite().all()
