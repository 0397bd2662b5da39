"""This reference has attention in fp64, attention in the kernel's own precision, and the error budget between them.

It needs torch only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tl_attention.lab.oracle.features import changes, more_scores, values_of_head
from tl_attention.problem.features import INPUTS, Feature
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape

BUDGET = 2.0
# The absolute rounding of a row's LSE: where all exponentials of a row are off by a part e of them, their logarithm
# is off by e. Polynomials of degree 3 are off by up to 8.6e-5, those of degree 2 by up to 2.1e-3, to either side.
# What else a kernel rounds is less: a score by a part of 1e-6 or so of what it is the sum of, and maximum, scale and
# logarithm in fp32.
LSE_ROUNDING = 2.0**-10
# So many scores, or numbers of an output, are computed at once.
AT_ONCE = 1 << 22


@dataclass(frozen=True)
class ErrorReport:
    """An ErrorReport holds the largest and the rms error of an output against fp64, and the budget of each."""

    max_abs: float
    rms: float  # ||out - ref|| / ||ref||
    # Budgets are twice the error of PyTorch's attention in the same precision. That of the largest error also has one
    # rounding of the largest output.
    budget_max_abs: float
    budget_rms: float
    finite: bool

    @property
    def part(self) -> float:
        """Returns the largest single error divided by its budget."""
        return _part(self.max_abs, self.budget_max_abs)

    @property
    def ok(self) -> bool:
        return self.finite and self.max_abs <= self.budget_max_abs and self.rms <= self.budget_rms

    def __str__(self) -> str:
        if not self.finite:
            return "the output holds NaN or infinity"
        rms = f"rms {self.rms:.2e} (budget {self.budget_rms:.2e})"
        return f"{rms}, max {self.max_abs:.2e} (budget {self.budget_max_abs:.2e})"


def worst_of(reports: Sequence[ErrorReport]) -> ErrorReport:
    """Returns one report with the worst rms and the worst single error, each compared as a part of its budget.

    The two may be of different problems. A report that is not finite is returned as it is.
    """
    unusable = [report for report in reports if not report.finite]
    if unusable:
        return unusable[0]
    rms = max(reports, key=lambda report: _part(report.rms, report.budget_rms))
    largest = max(reports, key=lambda report: report.part)
    return ErrorReport(largest.max_abs, rms.rms, largest.budget_max_abs, rms.budget_rms, True)


def _part(error: float, budget: float) -> float:
    # One query and one key: PyTorch's answer is exact, and so is the budget.
    return 0.0 if error == 0.0 else error / budget if budget else float("inf")


def make_inputs(
    shape: AttentionShape, seed: int, device: str = "cpu", spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws Q, K and V of the shape as normal numbers with mean 0.5, in its dtype.

    With that mean the output's is not zero. Q is multiplied by `spread`. Packed sequences are (rows, heads, columns).
    Raises InputError for others of different lengths.
    """
    if not shape.packed:
        shape.check_one_length()
    generator = torch.Generator(device).manual_seed(seed)
    rows, keys = shape.totals if shape.packed else (shape.seq_q, shape.seq_kv)

    def draw(heads: int, seq: int, columns: int) -> Tensor:
        sizes = (seq, heads, columns) if shape.packed else (shape.batch, heads, seq, columns)
        x = torch.randn(sizes, generator=generator, device=device, dtype=torch.float32)
        return (x + 0.5).to(getattr(torch, shape.dtype))

    q = draw(shape.heads, rows, shape.head_dim)
    k = draw(shape.heads_kv, keys, shape.head_dim)
    return q * spread, k, draw(shape.heads_kv, keys, shape.head_dim_v)


def each_sequence(shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields q, k and v (1, heads, seq, head_dim) of each of a shape's packed sequences."""
    first_q = first_k = 0
    for rows, keys in shape.all_lengths:
        of = (slice(first_q, first_q + rows), slice(first_k, first_k + keys))
        q_of, k_of, v_of = (x[part].transpose(0, 1)[None] for x, part in ((q, of[0]), (k, of[1]), (v, of[1])))
        yield q_of, k_of, v_of
        first_q, first_k = first_q + rows, first_k + keys


def make_asked(shape: AttentionShape, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Returns the inputs of the shape's features by word, numbers as they are and tensors (heads,) drawn in fp32."""
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(feature: Feature) -> Any:
        if feature.is_number:
            return shape.asked[feature.word]
        mean, deviation = feature.drawn
        return torch.randn(shape.heads, generator=generator, device=device) * deviation + mean

    return {feature.word: drawn(feature) for feature in shape.asked.features if feature in INPUTS}


def attention_fp64(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, **asked: Any) -> Tensor:
    """Computes attention in float64, some heads and rows at once.

    The output has the layout of the inputs and v's head size, in float64. Heads of Q, a multiple of K's, share these in
    turn. A query that sees no key gets 0. `asked` are features by word: numbers, or tensors (heads,).
    """
    return attention_and_lse(q, k, v, mask=mask, scale=scale, precise=True, **asked)[0]


def attention_same_precision(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, **asked: Any) -> Tensor:
    """Computes attention as PyTorch does in the inputs' precision, with fp32 sums and rounded probabilities.

    The probabilities are rounded to the inputs' dtype. On a GPU this is `scaled_dot_product_attention`. On the CPU,
    where SDPA keeps fp32 throughout, and for features, which SDPA does not have, the same roundings are written out.
    """
    if q.is_cuda and not values_of_head(asked, 0):
        # SDPA aligns its own causal mask at the top left.
        grouped = q.shape[1] != k.shape[1]
        is_native = mask == FULL or (mask == CAUSAL and q.shape[2] == k.shape[2])
        after = _after(q.shape[2], k.shape[2], 0, q.shape[2], q.device)
        visible = None if is_native else _visible(mask, after)
        output = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=is_native and mask == CAUSAL, scale=scale, enable_gqa=grouped
        )
        return output if visible is None else output.masked_fill(~visible.any(dim=1, keepdim=True), 0)
    return attention_and_lse(q, k, v, mask=mask, scale=scale, precise=False, **asked)[0]


def lse_fp64(q: Tensor, k: Tensor, *, mask: Mask, scale: float, **asked: Any) -> Tensor:
    """Computes each row's LSE in float64, (batch, heads, seq_q).

    The LSE is the natural logarithm of the row's sum of exp(scaled score), sink included. A query that sees no key has
    -inf, or the sink.
    """
    return attention_and_lse(q, k, k, mask=mask, scale=scale, precise=True, **asked)[1]


def lse_same_precision(q: Tensor, k: Tensor, *, mask: Mask, scale: float, **asked: Any) -> Tensor:
    """Computes each row's LSE by PyTorch's products and logsumexp in fp32, in which kernels accumulate."""
    return attention_and_lse(q, k, k, mask=mask, scale=scale, precise=False, **asked)[1]


def attention_and_lse(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, precise: bool, **asked: Any
) -> tuple[Tensor, Tensor]:
    """Computes attention and each row's LSE, in float64 if `precise`, else with the inputs' roundings written out.

    Both come from one pass.
    """
    compute = torch.float64 if precise else torch.float32
    output = q.new_empty(*q.shape[:3], v.shape[3], dtype=compute if precise else q.dtype)
    lse = q.new_empty(q.shape[:3], dtype=compute)
    batch, heads, seq_q = q.shape[:3]
    seq_kv, group = k.shape[2], heads // k.shape[1]
    rows = max(1, AT_ONCE // max(1, seq_kv))
    together = max(1, AT_ONCE // max(1, min(rows, seq_q) * seq_kv))
    every = torch.arange(batch * heads, device=q.device)
    plain = mask == FULL and not values_of_head(asked, 0)
    for first in range(0, seq_q, rows):
        last = min(first + rows, seq_q)
        # A plain problem does not need to know how far keys lie after queries.
        after = torch.empty(0) if plain else _after(seq_q, seq_kv, first, last, q.device)
        visible = None if mask == FULL else _visible(mask, after)
        for some in every.split(together):
            b, h = some // heads, some % heads
            keys, values = (x[b, h // group].to(compute) for x in (k, v))
            scores = q[b, h, first:last].to(compute) @ keys.mT * scale
            of_features = values_of_head(asked, h[:, None, None], compute)
            for change in changes(of_features):
                scores = change(scores, after)
            if visible is not None:
                scores = scores.masked_fill_(~visible, float("-inf"))
            # These are scores of further keys, which have no value.
            more = [score.expand(*scores.shape[:2], 1) for score in more_scores(of_features)]
            everything = torch.cat([scores, *more], dim=2) if more else scores
            # Under autocast products have a dtype of their own.
            lse[b, h, first:last] = everything.logsumexp(dim=-1).to(compute)
            weights = everything.softmax(dim=-1)[..., :seq_kv]
            if visible is not None:
                weights = weights.masked_fill(~visible.any(dim=1, keepdim=True), 0)
            if not precise:
                weights = weights.to(q.dtype).to(compute)
            output[b, h, first:last] = (weights @ values).to(output.dtype)
    return output, lse


def compare_lse(lse: Tensor, exact: Tensor, same_precision: Tensor) -> ErrorReport:
    """Returns the error of `lse` against `exact` (float64), with a budget from `same_precision` and LSE_ROUNDING.

    LSE_ROUNDING counts for each row. A row that sees no key must be -inf, any other finite.
    """
    seen = exact.isfinite()
    finite = torch.equal(lse.isfinite(), seen) and bool(lse[~seen].isneginf().all())
    difference, peer, want = lse[seen] - exact[seen], same_precision[seen] - exact[seen], exact[seen]
    if not finite or not len(want):
        return ErrorReport(0.0, 0.0, 0.0, 0.0, finite)
    rounding, size = torch.full_like(want, LSE_ROUNDING), want.norm().item()
    return ErrorReport(
        difference.abs().max().item(),
        difference.norm().item() / size,
        BUDGET * peer.abs().max().item() + LSE_ROUNDING,
        (BUDGET * peer.norm().item() + rounding.norm().item()) / size,
        finite,
    )


def compare(output: Tensor, exact: Tensor, same_precision: Tensor) -> ErrorReport:
    """Returns the error of `output` against `exact` (float64), with a budget of twice that of `same_precision`.

    One rounding of the largest output is added for the largest single error.
    """
    max_abs, rms, finite = _error(output, exact)
    peer_max, peer_rms, _ = _error(same_precision, exact)
    rounding = torch.finfo(output.dtype).eps / 2 * exact.abs().max().item()
    return ErrorReport(max_abs, rms, BUDGET * peer_max + rounding, BUDGET * peer_rms, finite)


def _error(output: Tensor, exact: Tensor) -> tuple[float, float, bool]:
    # Some heads at once, so that not all differences lie in memory; read back once, as a GPU waits for every number.
    heads = max(1, AT_ONCE // max(1, output[0, 0].numel()))
    sums = []
    for got, want in zip(output.flatten(0, 1).split(heads), exact.flatten(0, 1).split(heads)):
        difference = got.double() - want
        sums.append(torch.stack([difference.abs().max(), difference.square().sum(), want.square().sum()]))
    largest, squares, norm = zip(*torch.stack(sums).tolist())
    # Without a key all of it is 0.
    return max(largest), (sum(squares) / (sum(norm) or 1.0)) ** 0.5, bool(output.isfinite().all())


def _after(seq_q: int, seq_kv: int, first: int, last: int, device: torch.device) -> Tensor:
    """Returns how far each key lies after the place of each query row `first` to `last` - 1, (rows, keys)."""
    places = torch.arange(first, last, device=device)[:, None] + (seq_kv - seq_q)
    return torch.arange(seq_kv, device=device)[None, :] - places


def _visible(mask: Mask, after: Tensor) -> Tensor:
    """Returns True where a query sees the key `after` its own place; `problem.mask` is tested against this function."""
    visible = torch.ones_like(after, dtype=torch.bool)
    if mask.left is not None:
        visible &= after >= -mask.left
    if mask.right is not None:
        visible &= after <= mask.right
    return visible
