"""`attention_varlen` is the compiled kernel for packed sequences, of any lengths, as a PyTorch function.

Where sequences lie, tensors on the GPU say, and the host never reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tl_attention.op import arguments, backward, eager, operator, packed_arguments, varlen_operator
from tl_attention.op.attention import kernel_of, schedule_of, sms_of
from tl_attention.op.few import may_have_parts, packed_parts, packed_variant, work_of_packed_parts
from tl_attention.op.in_memory import ALIGNMENT, share_memory
from tl_attention.op.plan import NO_WINDOW, Plans, Taken, Values, described, features_taken
from tl_attention.op.scalars import length, plain, replaced
from tl_attention.problem.features import Asked
from tl_attention.problem.packed import words_of_list
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.defaults import computed
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

# The plans that earlier calls of this process have left, by call key.
plans: Plans[PackedPlan | eager.Packed] = Plans()
# Up to so many rows, keys and sequences together a plan's calls need no look at the bounds.
FEW = 1 << 22


class VarlenOptions(TypedDict, total=False):
    """VarlenOptions types the keyword arguments of `attention_varlen`, except `return_lse`, which says what comes back."""

    seqused_q: Tensor | None
    seqused_k: Tensor | None
    causal: bool
    scale: float | None
    window_size: tuple[int, int]
    softcap: float
    sinks: Tensor | None
    out: Tensor | None
    schedule: Schedule | str | Path | None
    zero_unused: bool
    check: bool
    invariant: bool | None


@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, return_lse: Literal[False] = ..., **options: Unpack[VarlenOptions],
) -> Tensor: ...  # fmt: skip
@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, return_lse: Literal[True], **options: Unpack[VarlenOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, return_lse: bool, **options: Unpack[VarlenOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *unnamed: Any,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    schedule: Schedule | str | Path | None = None,
    zero_unused: bool = False,
    check: bool = False,
    invariant: bool | None = None,
    **unknown: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes softmax(scale q k^T) v for each of many sequences of any lengths, which lie one behind the other.

    q is (total_q, heads, head_dim), k is (total_k, heads_kv, head_dim) and v is (total_k, heads_kv, head_dim_v), on a
    Hopper GPU; dtypes, head sizes, grouped heads and strides are as for `attention`. Sequence n has the rows
    cu_seqlens_q[n] to cu_seqlens_q[n + 1] of q, and the keys cu_seqlens_k[n] to cu_seqlens_k[n + 1]. Any length may be 0,
    and there may be more sequences than rows.

    Queries and keys of a sequence end together: causal and window_size count from there. A query that sees no key gives
    0, and an LSE of -inf (or its sink). No sequence's rows enter another's result, not even a NaN.

    The offsets stay on the GPU, so their contents are not checked: offsets that fall, or go beyond a tensor, are cut to
    it, and then the output is wrong. `check=True` reads and checks them, which waits for the GPU.

    Args:
        cu_seqlens_q: contiguous int32 (sequences + 1,) on q's GPU; so is cu_seqlens_k.
        max_seqlen_q: at least the longest sequence's queries; max_seqlen_k its keys. Each is an integer, or a tensor on the
            CPU that has one. They choose the schedule and the parts of the keys alone, so larger ones are right, too.
        seqused_q: contiguous int32 (sequences,): only so many of each sequence's rows count, and queries and keys end
            with these; so does seqused_k.
        causal, scale, window_size, softcap, sinks, schedule, invariant: as for `attention`.
        return_lse: return (output, LSE), fp32 (heads, total_q).
        out: a tensor to write the output to, as for `attention`.
        zero_unused: set rows that are no sequence's to 0, and their LSE to -inf; otherwise they are left as they are.
        check: check the contents of offsets and used lengths.

    Under torch.compile and torch.export the call is the operator `torch.ops.tl_attention.forward_varlen`, which takes
    neither `out` nor a Schedule nor `check`. Gradients of q, k, v and sinks come from PyTorch's FlashAttention-2. There are
    none with a softcap, return_lse, out, check, seqused, or a window that is open on the right alone: that backward may
    mask otherwise then. Rows that see no key, and rows that are no sequence's, have a gradient of 0.

    Returns: the output (total_q, heads, head_dim_v) in q's dtype, contiguous, or `out`.
    Raises: InputError (a ValueError) for anything that is not supported, as `attention` does.
    """
    if unnamed:
        raise arguments.without_a_name("attention_varlen", unnamed[0], behind="max_seqlen_k")
    if unknown:
        raise arguments.unknown_argument(
            "attention_varlen", unknown, VarlenOptions.__annotations__ | {"return_lse": bool}
        )
    values: Values = (softcap, sinks)
    offsets = cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
    longest = max_seqlen_q, max_seqlen_k
    key = None
    if check is False and not is_dynamo_compiling():
        try:
            options = causal, window_size, return_lse, zero_unused, invariant
            key = key_of(q, k, v, offsets, longest, values, out, schedule, options)
        except (RuntimeError, AttributeError, TypeError, IndexError):  # No plain tensors: refused below.
            key = None
        plan = plans.get(key)
        if plan is not None:
            scale = arguments.checked_scale(scale, plan.head_dim, plan.asked)
            if plan.serves(q, k, v, offsets, values, out, schedule):
                return plan.run(q, k, v, offsets, longest, values, out, scale, zero_unused)
    given = arguments.by_word(values)
    asked_for: dict[str, Any] = {
        "causal": causal,
        "scale": scale,
        "window_size": window_size,
        "return_lse": return_lse,
        "zero_unused": zero_unused,
        "check": check,
        "invariant": invariant,
    }
    lengths = dict(zip(packed_arguments.LONGEST, longest))
    # Python's own numbers, for another library's scalars.
    ours = replaced(lengths, by=plain if operator.is_traced(q) else length)
    if ours := ours | replaced(asked_for | {"softcap": softcap}):
        where = dict(zip((*packed_arguments.NAMES, *packed_arguments.LONGEST), (*offsets, *longest)))
        others = {"softcap": softcap, "sinks": sinks, "out": out, "schedule": schedule}
        return attention_varlen(q, k, v, **(where | others | asked_for | ours))
    if operator.is_needed(q, k, v, *offsets, *values):
        varlen_operator.check(q, k, v, offsets, longest, given, out, **asked_for)
        if operator.is_traced(q) or not eager.is_plain():
            return varlen_operator.call(q, k, v, offsets, longest, given, schedule, **asked_for)
        own, others = eager.options_of(varlen_operator.OPTIONS, asked_for, schedule)
        gradients = backward.packed, torch.ops.tl_attention.backward_varlen
        graded = eager.Packed(attention_varlen, gradients, own, others, q.shape[2])
        # Whether a window has a gradient depends on the longest sequence, unless it hides all later keys.
        if key is not None and window_size[1] <= 0:
            plans.keep(key, graded)
        scale = arguments.checked_scale(scale, graded.head_dim, graded.asked)
        return graded.run(q, k, v, offsets, longest, values, out, scale, zero_unused)
    mask, asked = packed_arguments.checked_call(q, k, v, offsets, longest, given, out, **asked_for)
    scale = arguments.checked_scale(scale, q.shape[2], asked)
    card = arguments.checked_card(q.device)
    shape = packed_arguments.checked_problem(q, k, v, offsets, longest, mask, asked)
    if check:
        packed_arguments.check_contents(offsets, q.shape[0], k.shape[0], longest)
    packed_arguments.check_out(out, q, k, v, offsets, given)
    if shape is None:
        return _without_tiles(q, v, out, given, return_lse, zero_unused)
    in_parts = invariant is not True
    shape, invariant = computed(shape, card.arch, invariant, by_rules=schedule is None)
    scheduled = schedule_of(schedule, shape, card, invariant)
    plan = PackedPlan.of(shape, scheduled, q.device, card.arch, invariant, in_parts and may_have_parts(scheduled))
    if key is not None:
        plans.keep(key, plan)
    return plan.run(q, k, v, offsets, longest, values, out, scale, zero_unused)


def _without_tiles(
    q: Tensor, v: Tensor, out: Tensor | None, given: arguments.Given, return_lse: bool, zero_unused: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the results of a call that has no row of a sequence to compute."""
    result = q.new_empty((*q.shape[:2], v.shape[2])) if out is None else out
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    if zero_unused:
        result.zero_()
        lse.fill_(-float("inf"))
    return (result, lse) if return_lse else result


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """A PackedPlan launches calls of `attention_varlen` like an earlier one, whatever their lengths, without new checks.

    `kernel` gives the launch. `rows` is how many rows a tile of the kernel has, and `row_heads` of how many heads for each query. `features` are what
    the kernel takes for features besides the LSE, and for a window: a number, or the place of a tensor among the call's
    values, and None for the other. Where the kernel computes keys in parts, `whole` gives the plan of one that does not.
    """

    kernel: Callable[[], Callable[..., None]]
    schedule: Schedule
    device: int | None
    head_dim: int
    asked: Asked
    rows: int
    lse: bool
    columns: int
    features: tuple[Taken, ...]
    row_heads: int
    whole: Callable[[], PackedPlan] | None

    @classmethod
    def of(
        cls, shape: AttentionShape, schedule: Schedule, device: torch.device, arch: str, invariant: bool, in_parts: bool
    ) -> PackedPlan:
        """Makes the plan of calls like this one from its problem, schedule and device, and whether keys may be in parts."""
        there = packed_variant(shape, schedule, in_parts)
        variant = replace(there, sms=sms_of(device), arch=arch, invariant=invariant)
        whole = functools.cache(lambda: cls.of(shape, schedule, device, arch, invariant, False))
        return cls(
            # Not compiled before the first call that runs on it.
            kernel=functools.cache(lambda: kernel_of(schedule, variant).launch),
            schedule=schedule,
            device=device.index,
            head_dim=shape.head_dim,
            asked=shape.asked,
            rows=schedule.block_M * schedule.kernel.cluster,
            lse="lse" in shape.asked,
            columns=shape.head_dim_v,
            features=features_taken(shape.asked, shape.mask.values(variant.mask.names)),
            row_heads=variant.row_heads,
            whole=whole if in_parts else None,
        )

    def serves(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: packed_arguments.Offsets,
        values: Values,
        out: Tensor | None,
        schedule: Schedule | str | Path | None,
    ) -> bool:
        """Says whether this plan may launch a call of its key: lengths fit together, and the schedule's file is as it was."""
        cu_q, cu_k, used_q, used_k = offsets
        bounds = cu_q.shape[0]
        if cu_k.shape[0] != bounds or v.shape[0] != k.shape[0] or bounds < 2 or not q.shape[0]:
            return False
        if any(used is not None and used.shape[0] != bounds - 1 for used in (used_q, used_k)):
            return False
        if q.shape[0] + k.shape[0] + bounds > FEW or not k.shape[0]:
            return False
        together = q.data_ptr() | k.data_ptr() | v.data_ptr()
        if out is not None:
            together |= out.data_ptr()
            read = (q, k, v, *(x for x in (*offsets, *values) if isinstance(x, Tensor)))
            if out.shape[0] != q.shape[0] or any(share_memory(out, x) for x in read):
                return False
        if together % ALIGNMENT:
            return False
        return schedule is None or isinstance(schedule, Schedule) or resolve(schedule).schedule is self.schedule

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: packed_arguments.Offsets,
        longest: tuple[int, int],
        values: Values,
        out: Tensor | None,
        scale: float,
        zero_unused: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Launches the kernel on a call's tensors. Returns the output, or (output, LSE) if the plan has an LSE."""
        total_q, heads, _ = q.shape
        cu_q, cu_k, used_q, used_k = offsets
        sequences, parts = cu_q.shape[0] - 1, 0
        if self.whole is not None:
            most = (max(1, min(longest[0], total_q)), max(1, min(longest[1], k.shape[0])))
            parts = packed_parts(sequences * heads, self.row_heads, most, self.schedule, sms_of(q.device))
            if not parts:
                return self.whole().run(q, k, v, offsets, longest, values, out, scale, zero_unused)
        result = q.new_empty((total_q, heads, self.columns)) if out is None else out
        lse = q.new_empty((heads, total_q), dtype=torch.float32) if self.lse else None
        if zero_unused:
            result.zero_()
            if lse is not None:
                lse.fill_(-float("inf"))
        words = words_of_list(total_q * self.row_heads, sequences, self.rows)
        written: list[Any] = [packed_arguments.taken(result)] if lse is None else [packed_arguments.taken(result), lse]
        merged: list[Any] = []
        if parts:
            # The kernel writes each part's results, and then those of all keys.
            if lse is None:
                written.append(q.new_empty((heads, total_q), dtype=torch.float32))
            merged = [packed_arguments.taken(q), *written]
            q, *written = work_of_packed_parts(q, self.row_heads, self.columns, parts)
        taken: list[Any] = [*map(packed_arguments.taken, (q, k, v)), written[0], scale, *written[1:]]
        for place, value in self.features:
            taken.append(value if place is None else values[place])
        taken += merged
        # Used lengths as long as the offsets stand for none.
        taken += [cu_q, cu_k, cu_q if used_q is None else used_q, cu_k if used_k is None else used_k]
        taken.append(q.new_empty(words, dtype=torch.int32))
        if torch.cuda.current_device() == self.device:
            self.kernel()(*taken)
        else:
            with torch.cuda.device(self.device):
                self.kernel()(*taken)
        return result if lse is None else (result, lse)


def key_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: packed_arguments.Offsets,
    longest: tuple[int, int],
    values: Values,
    out: Tensor | None,
    schedule: Schedule | str | Path | None,
    options: tuple[bool, tuple[int, int], bool, bool, bool | None],
) -> tuple[object, ...] | None:
    """Returns the tuple of all that a call's plan depends on, which has no total and no number of sequences.

    It is None where a type allows no plan.
    """
    causal, window_size, *flags = options
    if not (type(q) is type(k) is type(v) is Tensor and type(causal) is bool):
        return None
    if not all(flag is None or type(flag) is bool for flag in flags):
        return None
    if operator.requires_gradient(out):
        return None
    if window_size is not NO_WINDOW and not (type(window_size) is tuple and all(type(n) is int for n in window_size)):
        return None
    if not type(longest[0]) is type(longest[1]) is int or min(longest) < 0:
        return None
    if schedule is not None and not isinstance(schedule, (str, Path, Schedule)):
        return None
    features = described(values, torch.is_grad_enabled())
    if not features:
        return None
    of_offsets: list[object] = []
    for tensor in offsets:
        if tensor is None:
            of_offsets.append(None)
        elif type(tensor) is Tensor and tensor.dim() == 1 and tensor.is_contiguous():
            of_offsets.append((tensor.dtype, tensor.device))
        else:
            return None
    lies = tuple((x.shape[1:], x.dtype, x.device, x.stride(), x.shape[0] == 1) for x in (q, k, v))
    of_out = None if out is None else (type(out), out.shape[1:], out.dtype, out.device, out.stride(), out.shape[0] == 1)
    class_of = packed_arguments.class_of_lengths(*longest)
    needs = operator.requires_gradient(q, k, v)
    return (*lies, *of_offsets, of_out, schedule, needs, class_of, *options, *features)


operator.implemented_by(attention_varlen, varlen_operator.NAME, varlen_operator.WHERE)
