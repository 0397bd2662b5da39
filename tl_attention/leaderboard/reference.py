"""Inputs of a test, and the check of an output. Stands beside the submission as reference.py.

Needs nothing but torch, so that the copy beside the submission works alone.
"""

import math
from dataclasses import dataclass

import torch

# What the leaderboard accepts, and the tighter bound that is held beside it: the mean |output| of the ranked test is
# 0.015, where 1e-2 passes almost anything.
CONTRACT_TOLERANCE = 1e-2
TIGHT_TOLERANCE = 1e-3
# The wider first: the first that is exceeded gives the reason.
TOLERANCES = (CONTRACT_TOLERANCE, TIGHT_TOLERANCE)
SCORE_BYTES = 2**28


@dataclass(frozen=True)
class Comparison:
    """How an output compares with the fp64 reference.

    `accepted` and `tight`: |output - expected| <= t + t * |expected| everywhere, with t = 1e-2 and 1e-3.
    `max_abs_error` is None when no error could be computed; `reason` is "" when the output is tight.
    """

    accepted: bool
    tight: bool
    max_abs_error: float | None
    reason: str


def generate_input(
    batch_size: int, num_heads: int, seq_len: int, head_dim: int, seed: int, device: str = "cuda"
) -> tuple[torch.Tensor, ...]:
    """(q, k, v), each standard normal fp16, contiguous, (batch_size, num_heads, seq_len, head_dim)."""
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    shape = (batch_size, num_heads, seq_len, head_dim)
    return tuple(torch.randn(shape, dtype=torch.float16, device=device, generator=generator) for _ in range(3))


@torch.no_grad()
def compare(data: tuple[torch.Tensor, ...], output: torch.Tensor) -> Comparison:
    """Compare an output with softmax(q k^T / sqrt(head_dim)) v, computed in fp64.

    fp64, so that no setting for TF32 matters. The scores exist for one head and a block of query rows at a time, at
    most SCORE_BYTES of them.

    Args:
        data: (q, k, v) as `generate_input` makes them; pass a fresh copy, since a submission can write to its own.
        output: a tensor like q.
    """
    q, k, v = data
    # Before any comparison: NaN is beyond no bound.
    not_finite = output.numel() - int(torch.isfinite(output).sum())
    if not_finite:
        reason = f"{not_finite} of {output.numel()} values are not finite"
        return Comparison(accepted=False, tight=False, max_abs_error=None, reason=reason)

    batch, heads, seq, head_dim = q.shape
    rows = max(1, min(seq, SCORE_BYTES // (8 * k.shape[2])))
    largest = torch.zeros((), dtype=torch.float64, device=q.device)
    beyond = {tolerance: torch.zeros((), dtype=torch.int64, device=q.device) for tolerance in TOLERANCES}
    for b in range(batch):
        for h in range(heads):
            keys, values = k[b, h].double(), v[b, h].double()
            for first in range(0, seq, rows):
                part = slice(first, first + rows)
                scores = q[b, h, part].double() @ keys.mT
                expected = torch.softmax(scores.mul_(1 / math.sqrt(head_dim)), dim=-1) @ values
                error = (output[b, h, part].double() - expected).abs_()
                largest = torch.maximum(largest, error.max())
                for tolerance, count in beyond.items():
                    count += (error > tolerance + tolerance * expected.abs()).sum()

    outside = {tolerance: int(count) for tolerance, count in beyond.items()}
    reason = next(
        (f"{n} of {output.numel()} values are beyond rtol = atol = {t:g}" for t, n in outside.items() if n), ""
    )
    return Comparison(
        accepted=not outside[CONTRACT_TOLERANCE],
        tight=not outside[TIGHT_TOLERANCE],
        max_abs_error=float(largest),
        reason=reason and f"{reason}, max |error| {float(largest):.3g}",
    )
