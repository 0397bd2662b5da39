"""`attention(q, k, v)` is the compiled kernel as a PyTorch function."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tl_attention.compiler.compile import CompiledKernel, compile_kernel
from tl_attention.errors import InputError
from tl_attention.op import arguments, backward, eager, operator
from tl_attention.op.few import parts_of, put_together
from tl_attention.op.in_memory import BHSD, in_one_head, other_way, placed
from tl_attention.op.plan import NO_WINDOW, Plan, Plans, key_of
from tl_attention.op.scalars import replaced
from tl_attention.problem.card import Card
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.defaults import computed, default_schedule
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

# The plans that earlier calls of this process have left, by call key.
plans: Plans[Plan | eager.Dense] = Plans()
_compile_lock = threading.Lock()


class Options(TypedDict, total=False):
    """Options types the keyword arguments of `attention`, except `return_lse`, which says what comes back."""

    causal: bool
    scale: float | None
    window_size: tuple[int, int]
    softcap: float
    sinks: Tensor | None
    layout: str
    out: Tensor | None
    schedule: Schedule | str | Path | None
    specialize: bool
    invariant: bool | None


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *unnamed: Any,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    layout: str = BHSD,
    return_lse: bool = False,
    out: Tensor | None = None,
    schedule: Schedule | str | Path | None = None,
    specialize: bool = False,
    invariant: bool | None = None,
    **unknown: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes softmax(scale q k^T) v on the current CUDA stream of q's device.

    q is (batch, heads, seq_q, head_dim), k is (batch, heads_kv, seq_kv, head_dim) and v is (batch, heads_kv, seq_kv,
    head_dim_v). All three are fp16 or all three are bf16, and they lie on one GPU. Lengths may be anything, 0 included.
    heads is a multiple of heads_kv: head h of q uses head h // (heads / heads_kv) of k and v. head_dim and head_dim_v are
    multiples of 8 up to 256. Products accumulate in fp32. GPUs other than Hopper support the cases that
    schedule/files/defaults.yaml names for them.

    Nothing is copied: views are read as they lie. The last dimension must be contiguous, and the address and the stride
    of every other dimension longer than 1 must be multiples of 16 bytes and not 0.

    The first call with certain sizes, strides and options is checked in full; later calls like it take a short way.
    Numbers and flags may be NumPy's scalars. Arguments behind v have no place, only a name.

    Queries and keys end together: query i stands at key i + seq_kv - seq_q. A query that sees no key gives 0.

    Args:
        causal: hide the keys after a query's own.
        scale: the factor of the scores, from 2^-126 to 2.35e38; 1 / sqrt(head_dim) by default.
        window_size: (left, right), the number of keys that a query sees before and after its own; -1 means all. With
            causal, a query sees the keys that both allow.
        softcap: turn each score into softcap * tanh(score / softcap), after the scale and before the mask; 0 means off.
        sinks: fp32 of shape (heads,): one more score in each row of a head, which is neither scaled nor capped and has
            no value, so it only enters the denominator.
        layout: "bhsd" as above, or "bshd" where q, k, v and the output are (batch, seq, heads, head_dim).
        return_lse: return (output, LSE). The LSE (log-sum-exp) is each row's natural logarithm of the sum of exp(score),
            its sink included: fp32 of shape (batch, heads, seq_q), -inf for a row that sees no key and has no sink.
        out: a tensor to write the output to, which is also returned. It may be strided as the inputs may, and must not
            share an element with them or with sinks.
        schedule: a name (`tl-attention list` shows them), a file, a label or a Schedule. By default the case decides, as
            `tl-attention which` shows. A file is read again only after it has changed.
        specialize: compile for exactly these sizes instead of for all sizes.
        invariant: give a row of the output the same bits whatever the batch, the lengths and the number of queries, here
            and in `attention_varlen`. The schedule is then one that computes rows as that for any length does, a window
            that hides no key is left out only where rows stay as they are, and a softcap is computed row by row. None:
            where there is no softcap, no keys may be in parts, and the default rules choose no other schedules for it.

    Under torch.compile and torch.export the call is the operator `torch.ops.tl_attention.forward`, which takes neither
    `out` nor a Schedule. Gradients of q, k, v and sinks come from cuDNN's backward or PyTorch's FlashAttention-2, as
    `tl-attention which` shows. There are none with a softcap, return_lse or out. Rows that see no key have a gradient of 0.

    Returns: the output (batch, heads, seq_q, head_dim_v) in q's dtype, contiguous in its layout, or `out`.
    Raises: InputError (a ValueError) for anything that is not supported. A schedule that cannot run raises
        ScheduleRefused, an unknown keyword an error that is a TypeError as well; both are InputErrors.
    """
    if unnamed:
        raise arguments.without_a_name("attention", unnamed[0], behind="v")
    if unknown:
        raise arguments.unknown_argument("attention", unknown, Options.__annotations__ | {"return_lse": bool})
    # As INPUTS has them.
    values, key = (softcap, sinks), None
    if not is_dynamo_compiling():
        try:
            options = causal, window_size, layout, return_lse, specialize, invariant
            key = key_of(q, k, v, values, out, schedule, options)
        except RuntimeError:  # A tensor without sizes or strides, which is refused below.
            key = None
        plan = plans.get(key)
        if plan is not None:
            scale = arguments.checked_scale(scale, plan.head_dim, plan.asked)
            if plan.serves(q, k, v, values, out, schedule):
                return plan.run(q, k, v, values, out, scale)
    given = arguments.by_word(values)
    asked_for: dict[str, Any] = {
        "causal": causal,
        "scale": scale,
        "window_size": window_size,
        "layout": layout,
        "return_lse": return_lse,
        "specialize": specialize,
        "invariant": invariant,
    }
    if ours := replaced(asked_for | {"softcap": softcap}):
        return attention(q, k, v, sinks=sinks, out=out, schedule=schedule, **({"softcap": softcap} | asked_for | ours))
    if operator.is_needed(q, k, v, *values):
        operator.check(q, k, v, given, out, **asked_for)
        if operator.is_traced(q) or not eager.is_plain():
            return operator.call(q, k, v, given, schedule, **asked_for)
        own, others = eager.options_of(operator.OPTIONS, asked_for, schedule)
        gradients = backward.dense, torch.ops.tl_attention.backward
        graded = eager.Dense(attention, gradients, own, others, q.shape[3])
        output = graded.run(q, k, v, values, out, arguments.checked_scale(scale, graded.head_dim, graded.asked))
        if key is not None:
            with torch.no_grad():
                options = causal, window_size, layout, True, specialize, invariant
                graded.plan = plans.get(key_of(q, k, v, values, None, schedule, options))
            plans.keep(key, graded)
        return output
    q, k, v, mask, asked = arguments.checked_call(q, k, v, given, out, **asked_for)
    per_head = arguments.tensors_of(given)
    rows, shape = arguments.checked_problem(q, k, v, mask, asked)
    scale = arguments.checked_scale(scale, q.shape[3], asked)
    card = arguments.checked_card(q.device)
    output = arguments.output_for(out, (*q.shape[:3], v.shape[3]), {"q": q, "k": k, "v": v, **per_head}, layout)
    result = other_way(output, layout) if out is None else out
    lse_of_computed = None
    if shape is not None:
        parts = {"q": rows.computed(q), "k": k, "v": v, "out": rows.computed(output)}
        strided, tensors = placed(parts, layout)
        in_parts = invariant is not True and not specialize
        shape, invariant = computed(shape, card.arch, invariant, by_rules=schedule is None)
        views = in_one_head(tensors, shape.heads_kv) if shape.group > 1 else {}
        # Heads whose rows cannot lie in one tile have the schedule of heads that share nothing.
        scheduled = schedule_of(schedule, shape if views else replace(shape, heads_kv=shape.heads), card, invariant)
        if views and (together := put_together(shape, scheduled, in_parts)) != shape:
            shape, tensors = together, views
        sms = sms_of(q.device)
        of_keys = parts_of(shape, scheduled, sms) if in_parts else None
        there = shape.variant(specialize, parts=of_keys is not None)
        variant = replace(there, strided=strided, sms=sms, arch=card.arch, invariant=invariant)
        kernel, numbers = kernel_of(scheduled, variant).launch, shape.mask.values(variant.mask.names)
        numbers |= {"head_rows": shape.head_rows} if variant.together else {}
        numbers |= {"part_blocks": of_keys.blocks} if of_keys else {}
        plan = Plan.of(
            *(kernel, scheduled, parts, tensors, asked, per_head, numbers, layout), of_keys.number if of_keys else 0
        )
        of_q, of_k, of_v, of_output = (other_way(part, layout) for part in parts.values())
        found = plan.run(of_q, of_k, of_v, values, of_output if rows.hidden else result, scale)
        if not rows.hidden:
            if key is not None:
                plans.keep(key, plan)
            return found
        lse_of_computed = found[1] if return_lse else None
    rows.without_keys(output).zero_()
    if not return_lse:
        return result
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    rows.without_keys(lse).copy_(arguments.lse_without_keys(given, lse))
    if lse_of_computed is not None:
        rows.computed(lse).copy_(lse_of_computed)
    return result, lse


# --- its schedule and kernel -------------------------------------------------------------------------------------------


def kernel_of(schedule: Schedule, variant: Variant) -> CompiledKernel:
    """Returns the compiled kernel of a schedule for a variant, compiled once in a process. Raises ScheduleRefused."""
    # TileLang's tracer keeps state in globals, so two threads may not compile at once.
    with _compile_lock:
        return _compiled(schedule, variant)


@functools.cache
def _compiled(schedule: Schedule, variant: Variant) -> CompiledKernel:
    return compile_kernel(schedule, variant)


@functools.cache
def sms_of(device: torch.device) -> int:
    """Returns the number of SMs of a CUDA device. A MIG slice has its own number."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def schedule_of(
    schedule: Schedule | str | Path | None, shape: AttentionShape, card: Card, invariant: bool = False
) -> Schedule:
    """Returns the Schedule of a name, file, label or Schedule, or for None the default of the problem and card.

    Raises InputError for a value of another type.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if schedule is None:
        schedule = default_schedule(shape, card.arch, invariant)
    if not isinstance(schedule, (str, Path)):
        found = type(schedule).__name__
        raise InputError(f"attention: schedule is {found}, expected a name, a file, a label or a Schedule")
    return resolve(schedule).schedule


operator.implemented_by(attention)
