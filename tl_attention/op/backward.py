"""The gradients of q, k, v and sinks: which of PyTorch's operators, or pair of schedules, computes them.

A pair that the call names computes its gradients. For other calls the first rule of schedule/files/backward.yaml that
serves the call names the operator or the pair. A shape's first calls take FlashAttention-2 before cuDNN, which builds a
plan for each new shape.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op import aten, checks, pair, trial
from tl_attention.op.aten import Saved
from tl_attention.op.in_memory import BHSD
from tl_attention.op.plan import MOST_KEPT
from tl_attention.op.rows import Rows
from tl_attention.problem.features import NOTHING, FeatureValues
from tl_attention.problem.mask import CAUSAL, FULL, Mask, fitted, masked
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.backward import (
    CUDNN,
    FLASH2,
    PAIR,
    BackwardRule,
    backward_rules,
    case_of,
    masks_alike,
    packed_masks_alike,
)

NO_ROWS = Rows(0, 0)
# Those of q, k, v and sinks; None of sinks that are not there, or need none.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(slots=True)
class GradShape:
    """A GradShape says which operator computes the gradients of calls of one shape, and counts cuDNN's calls."""

    operator: str = ""  # serves all calls but the first `after`; "" if no query sees a key
    after: int = 0
    versions: tuple[str, ...] = ()  # cuDNN's that it is known to be right with
    rows: Rows = NO_ROWS  # the queries that see a key
    mask: Mask = FULL  # of these queries
    pair: tuple[str, ...] = ()  # the names of its schedules, if the operator is a pair
    calls: int = 0
    has_plan: bool = False  # whether cuDNN has served the shape

    def count(self, device: torch.device) -> str:
        """Counts a call on this device, and returns the operator that computes its gradients."""
        self.calls += 1
        if self.operator != CUDNN or not torch.backends.cudnn.enabled:
            return FLASH2 if self.operator == CUDNN else self.operator
        if self.has_plan:
            return CUDNN
        # What cuDNN loads for the first plan of a kind breaks the capture of a graph. Steps before a capture run on a
        # stream of their own: a graph is captured for many launches, which are worth a plan's time.
        on_gpu = device.type == "cuda"
        is_new = self.calls <= self.after and not (on_gpu and _is_aside(device))
        if is_new or (on_gpu and torch.cuda.is_current_stream_capturing()) or trial.why_not(device, self.versions):
            return FLASH2
        self.has_plan = True
        return CUDNN


def _is_aside(device: torch.device) -> bool:
    """Says whether a GPU's current stream is none that programs use unless they ask for another one."""
    return torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


# The shapes that this process has had, by all that a plan of cuDNN's depends on, and the mask.
_shapes: dict[object, GradShape] = {}
_taken: list[str | None] = []


@contextmanager
def force_operator(operator: str | None = None) -> Iterator[None]:
    """Has every dense call inside the block that this operator of PyTorch serves, in any thread, take its gradients.

    None is the rule's. A shape's first calls take it, too, as measurements and tests need it.
    """
    _taken.append(operator)
    _shapes.clear()
    try:
        yield
    finally:
        _taken.pop()
        _shapes.clear()


def deterministic() -> bool:
    """Says whether PyTorch is asked for the same bits twice, and not only for warnings."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def shape_of(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int], asked: FeatureValues = NOTHING
) -> GradShape:
    """Returns the GradShape of a call, whose tensors are (batch, heads, seq, head_dim).

    `asked` has the features that change scores, and the LSE if it has a gradient.
    """
    where = q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()
    key = (*where, q.dtype, q.device, causal, window_size, deterministic(), asked)
    shape = _shapes.get(key)
    if shape is None:
        shape = _kept(key, _new_shape(q, k, v, masked(causal, window_size), asked))
    return shape


def _kept(key: object, shape: GradShape) -> GradShape:
    """Keeps a new shape for later calls, and returns it."""
    if len(_shapes) >= MOST_KEPT:
        _shapes.clear()
    _shapes[key] = shape
    return shape


def _new_shape(q: Tensor, k: Tensor, v: Tensor, mask: Mask, asked: FeatureValues) -> GradShape:
    (batch, heads, seq_q, head_dim), (heads_kv, seq_kv) = q.shape, k.shape[1:3]
    rows = Rows.of(mask, seq_q, seq_kv)
    if 0 in (batch, heads, rows.count):
        return GradShape(rows=rows)
    whole, mask, by_torch = mask, fitted(mask, rows.count, seq_kv), masks_alike(mask, seq_q, seq_kv)
    if _taken and (operator := _taken[-1]) and by_torch and not asked:
        # Whoever names it gets it, without a trial.
        return GradShape(operator, 0, (trial.cudnn_version(),), rows, mask)
    dtype = str(q.dtype).removeprefix("torch.")
    problem = AttentionShape(batch, heads, rows.count, seq_kv, head_dim, dtype, mask, v.shape[3], heads_kv, asked)
    rule = _rule_of(problem, (q, k, v), whole, by_torch)
    return GradShape(rule.operator, 0 if _taken else rule.after, rule.versions, rows, mask, rule.schedules)


def packed_pair(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, longest: tuple[int, int], asked: FeatureValues, has_used: bool
) -> tuple[str, ...]:
    """Returns the names of the pair that rules take for packed sequences, () for FlashAttention-2.

    `has_used` says whether only some rows of the sequences count.
    """
    sizes = q.shape[1:], k.shape[1:], v.shape[1:], longest
    key = (*sizes, q.dtype, q.device, mask, deterministic(), asked, has_used)
    shape = _shapes.get(key)
    if shape is None:
        by_torch = not has_used and packed_masks_alike(mask, longest[1])
        seq_q, seq_kv = (max(1, min(most, x.shape[0])) for most, x in zip(longest, (q, k)))
        problem = replace(pair.problem_of((q, k, v), mask, asked), seq_q=seq_q, seq_kv=seq_kv)
        rule = _rule_of(problem, (q, k, v), mask, by_torch)
        shape = _kept(key, GradShape(rule.operator, pair=rule.schedules))
    return shape.pair


def _rule_of(problem: AttentionShape, tensors: Sequence[Tensor], mask: Mask, by_torch: bool) -> BackwardRule:
    """Returns the first rule that serves the gradients of a problem whose q, k and v are these. The mask is the call's.

    `by_torch` says whether operators of PyTorch hide the same keys. Raises InputError where no rule serves.
    """
    by_torch = by_torch and all(feature.has_gradient for feature in problem.asked.features)
    arch, strided = checks.checked_card(tensors[0].device).arch, pair.is_strided(tensors)
    # Kernels serve all lengths.
    of_any, rules = pair.problem_of(tensors, mask, problem.asked), backward_rules()
    number = rules.find(
        case_of(problem, arch, deterministic()),
        lambda rule: _may(rule.schedules, of_any, strided, arch) if rule.schedules else by_torch,
    )
    if number is None:
        raise InputError(f"attention: neither PyTorch nor a pair that can be made here has gradients of {problem}")
    return rules.rules[number]


@functools.lru_cache(MOST_KEPT)
def _may(names: tuple[str, ...], problem: AttentionShape, strided: bool, arch: str) -> bool:
    """Says whether a rule's pair computes the gradients of a problem here, and compiles its kernels then.

    Warns of a pair whose kernels cannot be made.
    """
    if pair.why_not(names, problem, strided, arch):
        return False
    try:
        pair.kernels(names, problem, strided, arch)
    except InputError as error:
        of = f"{', '.join(names)} have no gradients of head_dim {problem.head_size} in {problem.dtype}"
        warnings.warn(f"tl_attention: {of}, and other rules decide: {error}", stacklevel=2)
        return False
    return True


def dense(
    given: Saved, sinks: Tensor | None, d_lse: Tensor | None = None, *, causal: bool, scale: float | None,
    window_size: Sequence[int], layout: str, backward: Sequence[str] | None = None, **features: float,
) -> Gradients:  # fmt: skip
    """Returns the gradients of `attention`'s q, k, v and sinks, with 0 for queries that see no key.

    Tensors are in the layout of the call. `sinks` are None if no gradient of them is needed, though the LSE has them.
    `backward` has the texts of a pair of schedules. `d_lse` is the LSE's gradient, and `features` are those that change
    scores, by word, which only a pair takes.
    """
    if layout != BHSD:
        given = given.but(_swapped)
    (q, k, v), window = given[1:4], (window_size[0], window_size[1])
    if backward:
        shape = GradShape(PAIR, pair=tuple(backward))
    else:
        shape = shape_of(q, k, v, causal, window, _asked(d_lse, features))
    # Where no query sees a key no kernel is launched.
    if shape.operator in (PAIR, ""):
        *found, products = pair.gradients(shape.pair, given, d_lse, masked(causal, window), scale, **features)
        dq, dk, dv = found if layout == BHSD else map(_swapped, found)
        if sinks is None:
            return dq, dk, dv, None
        # A row with neither a key nor a sink has an LSE of -inf, and no weights.
        lse = given.lse.masked_fill(given.lse.isneginf(), float("inf"))
        return dq, dk, dv, _of_sinks(sinks, lse, products)
    # The output of a row without keys is 0 whatever its sink.
    seen = Saved(*(x if x is k or x is v else shape.rows.computed(x) for x in given)) if shape.rows.hidden else given
    gradients = _of_rows_with_keys(seen._replace(lse=seen.lse.contiguous()), shape, scale)
    if shape.rows.hidden:
        whole = torch.zeros_like(q)
        shape.rows.computed(whole).copy_(gradients[0])
        gradients = (whole, *gradients[1:])
    dq, dk, dv = gradients if layout == BHSD else map(_swapped, gradients)
    if sinks is None:
        return dq, dk, dv, None
    return dq, dk, dv, _of_sinks(sinks, seen.lse, (seen.grad.float() * seen.output).sum(dim=3))


def _asked(d_lse: Tensor | None, features: Mapping[str, float]) -> FeatureValues:
    """Returns what a call's gradients ask for beside its mask."""
    return FeatureValues(lse=d_lse is not None, **features) if features or d_lse is not None else NOTHING


def _swapped(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _of_rows_with_keys(given: Saved, shape: GradShape, scale: float | None) -> tuple[Tensor, ...]:
    """Returns the gradients of q, k and v, (batch, heads, seq, head_dim), of which every query sees a key."""
    q = given.q
    if shape.count(q.device) == CUDNN:
        try:
            return aten.cudnn(given, shape.mask == CAUSAL, scale)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # cuDNN has no plan for some shapes, which no list names.
            shape.operator = FLASH2
            said = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"tl_attention: FlashAttention-2 has the gradients of q {tuple(q.shape)}: {said}", stacklevel=2
            )
    return tuple(map(_swapped, aten.flash2(given.but(_swapped), shape.mask, scale)))


def packed(
    given: Saved, sinks: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seqused_q: Tensor | None,
    seqused_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, d_lse: Tensor | None = None, *, causal: bool,
    scale: float | None, window_size: Sequence[int], backward: Sequence[str] | None = None, **features: float,
) -> Gradients:  # fmt: skip
    """Returns the gradients of `attention_varlen`'s q, k, v and sinks, as `dense` does of `attention`'s.

    They are 0 for rows that see no key, or no query, or are no sequence's, of which FlashAttention-2 writes none.
    """
    grad, q, k, v, output, lse = given
    if 0 in (q.shape[0], q.shape[1], k.shape[0], cu_seqlens_q.shape[0] - 1):
        dq, dk, dv = map(torch.zeros_like, (q, k, v))
        return dq, dk, dv, None if sinks is None else torch.zeros_like(sinks)
    mask, offsets = masked(causal, (window_size[0], window_size[1])), (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    if not backward:
        asked, has_used = _asked(d_lse, features), seqused_q is not None or seqused_k is not None
        backward = packed_pair(q, k, v, mask, (max_seqlen_q, max_seqlen_k), asked, has_used)
    if backward:
        dq, dk, dv = pair.packed_gradients(backward, given, d_lse, mask, scale, offsets, **features)
        if sinks is None:
            return dq, dk, dv, None
    # FlashAttention-2 takes the LSE of a row without keys for +inf, so that every exponential is 0.
    of_rows, unused = lse.masked_fill(lse.isneginf(), float("inf")), _unused(cu_seqlens_q, q, seqused_q)
    if not backward:
        without_queries = _unused(cu_seqlens_k, k)
        gradients = aten.flash2(given._replace(lse=of_rows), mask, scale, offsets[:2], (max_seqlen_q, max_seqlen_k))
        dq, dk, dv = (x.masked_fill_(of, 0) for x, of in zip(gradients, (unused, without_queries, without_queries)))
        dq.masked_fill_(of_rows.isposinf().t()[..., None], 0)
    if sinks is None:
        return dq, dk, dv, None
    # What such rows have in memory is nobody's.
    products = (grad.float() * output).sum(dim=2).masked_fill_(unused[..., 0], 0).t()
    if d_lse is not None:
        products = products - d_lse.masked_fill(unused[..., 0].t(), 0)
    return dq, dk, dv, _of_sinks(sinks, of_rows.masked_fill(unused[..., 0].t(), float("inf")), products)


def _of_sinks(sinks: Tensor, lse: Tensor, products: Tensor) -> Tensor:
    """Returns the sinks' gradient, fp32 (heads,), from LSEs and products D of rows, ([batch,] heads, rows).

    D is dO . O, less the LSE's gradient if it has one.
    """
    # -sum over rows of exp(sink - LSE) D. A sink's weight in a row, exp(sink - LSE), is also the LSE's derivative. It
    # has no value, so its score's gradient P (dP - D) lacks dP, the product of dO with one.
    gradient = ((sinks[:, None] - lse).exp() * products).sum(dim=-1).neg()
    return gradient.sum(dim=0) if gradient.dim() == 2 else gradient


def _unused(cu_seqlens: Tensor, rows: Tensor, used: Tensor | None = None) -> Tensor:
    """Returns which rows are no sequence's, or not `used` of it, as bools (total, 1, 1)."""
    number = torch.arange(rows.shape[0], device=rows.device, dtype=torch.int32)
    found = (number < cu_seqlens[0]) | (number >= cu_seqlens[-1])
    if used is not None:
        own = (torch.searchsorted(cu_seqlens, number, right=True) - 1).clamp(0, used.shape[0] - 1)
        found |= number >= (cu_seqlens[:-1] + used)[own]
    return found[:, None, None]
