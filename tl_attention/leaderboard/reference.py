"""The inputs of a test, and the comparison of an output with attention in fp64.

This file needs nothing but torch, so that its copy beside the submission works alone.
"""

import math

import torch

# What the leaderboard accepts. The mean |output| of the ranked test is 0.015, where 1e-2 passes almost anything, so
# each output is held to a tighter bound as well.
CONTRACT_TOLERANCE = 1e-2
TIGHT_TOLERANCE = 1e-3
SCORE_BYTES = 2**28


def generate_input(
    batch_size: int, num_heads: int, seq_len: int, head_dim: int, seed: int, device: str = "cuda"
) -> tuple[torch.Tensor, ...]:
    """(q, k, v), each standard normal fp16, contiguous, (batch_size, num_heads, seq_len, head_dim)."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (batch_size, num_heads, seq_len, head_dim)
    return tuple(torch.randn(shape, dtype=torch.float16, device=device, generator=generator) for _ in range(3))


@torch.no_grad()
def compare(data: tuple[torch.Tensor, ...], output: torch.Tensor) -> dict:
    """Compare an output with softmax(q k^T / sqrt(head_dim)) v in fp64, where no setting for TF32 matters.

    `accepted` and `tight` say whether |output - expected| <= t + t * |expected| everywhere, with t = 1e-2 and 1e-3.
    `max_abs_error` is None for an output that is not finite, `reason` says why an output is not tight. The scores exist
    for one head and a block of query rows at a time, at most SCORE_BYTES of them.
    """
    q, k, v = data
    not_finite = output.numel() - int(torch.isfinite(output).sum())
    if not_finite:
        reason = f"{not_finite} of {output.numel()} values are not finite"
        return {"accepted": False, "tight": False, "max_abs_error": None, "reason": reason}

    rows = max(1, SCORE_BYTES // (8 * k.shape[2]))
    largest, beyond = 0.0, {CONTRACT_TOLERANCE: 0, TIGHT_TOLERANCE: 0}
    for head in range(q.shape[0] * q.shape[1]):
        queries, keys, values, found = (tensor.flatten(0, 1)[head].double() for tensor in (q, k, v, output))
        for part, block in zip(queries.split(rows), found.split(rows)):
            expected = torch.softmax(part @ keys.mT / math.sqrt(q.shape[3]), dim=-1) @ values
            error = (block - expected).abs()
            largest = max(largest, float(error.max()))
            for tolerance in beyond:
                beyond[tolerance] += int((error > tolerance + tolerance * expected.abs()).sum())

    # The wider bound first: the first that is exceeded is the reason.
    missed = [f"{n} of {output.numel()} values are beyond rtol = atol = {t:g}" for t, n in beyond.items() if n]
    return {
        "accepted": not beyond[CONTRACT_TOLERANCE],
        "tight": not beyond[TIGHT_TOLERANCE],
        "max_abs_error": largest,
        "reason": f"{missed[0]}, max |error| {largest:.3g}" if missed else "",
    }
