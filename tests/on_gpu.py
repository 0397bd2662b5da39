"""Tests of `attention(q, k, v)` on a GPU share these: inputs that no run had before, and the comparison with fp64."""

import random
from typing import Any

from torch import Tensor

from tl_attention.lab.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.problem.mask import OPEN, masked
from tl_attention.problem.shape import AttentionShape

Tensors = tuple[Tensor, Tensor, Tensor]


def fresh(*sizes: int, dtype: str = "float16", device: Any = "cuda", spread: float = 1.0, **others: Any) -> Tensors:
    """q, k and v of so many batches, heads, queries, keys and columns; the seed is printed."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"\nseed {seed}")
    return make_inputs(AttentionShape(*sizes, dtype, **others), seed, device, spread)


def problem(q: Tensor, *, causal: bool = False, window: tuple[int, int] = (OPEN, OPEN), scale: float | None = None):
    """The mask and the scale of a call, as the reference has them."""
    return {"mask": masked(causal, window), "scale": scale or q.shape[-1] ** -0.5}


def check(
    output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (OPEN, OPEN),
    scale: float | None = None,
    **features: Any,
) -> None:
    """The output of a call is inside the error budget."""
    q, k, v, output = (x.contiguous() for x in (q, k, v, output))
    asked = problem(q, causal=causal, window=window, scale=scale) | features
    error = compare(output, attention_fp64(q, k, v, **asked), attention_same_precision(q, k, v, **asked))
    assert error.ok, f"{tuple(q.shape)}, {k.shape[2]} keys, {asked}: {error}"
