"""`attention(q, k, v)` is the compiled kernel as a PyTorch function."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from tl_attention.op.attend import first_call
from tl_attention.op.batch import batch_of
from tl_attention.op.call import NO_WINDOW, Call, Keywords, Pair, Result, made, values_of
from tl_attention.op.in_memory import BHSD
from tl_attention.op.run import run
from tl_attention.op.unknown import without_a_name
from tl_attention.schedule.schedule import Schedule


class Options(Keywords, total=False):
    """Options types the keyword arguments of `attention`, except `return_lse`."""

    layout: str
    specialize: bool
    backward: Pair | None


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
    layout: str = BHSD,
    return_lse: bool = False,
    out: Tensor | None = None,
    schedule: Schedule | str | Path | None = None,
    specialize: bool = False,
    invariant: bool | None = None,
    backward: Pair | None = None,
    **features: Any,
) -> Result:
    """Computes softmax(scale q k^T) v on the current CUDA stream of q's device.

    q is (batch, heads, seq_q, head_dim), k is (batch, heads_kv, seq_kv, head_dim) and v is (batch, heads_kv, seq_kv,
    head_dim_v). All three are fp16 or all three are bf16, and they lie on one GPU. Lengths may be anything, 0 included.
    heads is a multiple of heads_kv: head h of q uses head h // (heads / heads_kv) of k and v. head_dim and head_dim_v
    are multiples of 8 up to 256. Products accumulate in fp32. GPUs other than Hopper support the cases that
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
        return_lse: return (output, LSE). The LSE (log-sum-exp) is each row's natural logarithm of the sum of
            exp(score), its sink included: fp32 of shape (batch, heads, seq_q), -inf for a row without a key or a sink.
        out: a tensor to write the output to, which is also returned. It may be strided as the inputs may, and must not
            share an element with them or with sinks.
        schedule: a name (`tl-attention list` shows them), a file, a label or a Schedule. By default the case decides,
            as `tl-attention explain --call` shows. A file is read again only after it has changed.
        specialize: compile for exactly these sizes instead of for all sizes.
        invariant: give a row of the output the same bits whatever the batch, the lengths and the number of queries,
            here and in `attention_varlen`. The schedule is then one that computes rows as that for any length does, a
            window that hides no key is left out only where rows stay as they are, and a softcap is computed row by row.
            None: where there is no softcap, no keys may be in parts, and the default rules choose no other schedules
            for it.
        backward: a pair (dq, dkdv) of schedules, each named as `schedule` is, such as ("dq", "dkdv"): their two kernels
            compute the gradients, with the same bits for the same call. They serve head_dim and head_dim_v up to 128;
            where a gradient is needed, a larger one is an InputError. By default rules choose between this pair and
            operators of PyTorch.

    Under torch.compile and torch.export the call is the operator `torch.ops.tl_attention.forward`, which takes neither
    `out` nor a Schedule. Gradients of q, k, v and sinks come from cuDNN's backward, from PyTorch's FlashAttention-2, or
    from the pair of schedules, as `tl-attention explain --call` shows. Only the pair has them with a softcap, and of
    the LSE of return_lse. There are none with out. Rows that see no key have gradient 0.

    Returns: the output (batch, heads, seq_q, head_dim_v) in q's dtype, contiguous in its layout, or `out`.
    Raises: InputError (a ValueError) for anything that is not supported. A schedule that cannot run raises
        ScheduleRefused, an unknown keyword an error that is a TypeError as well; both are InputErrors.
    """
    if unnamed:
        raise without_a_name("attention", unnamed[0], behind="v")
    values = values_of(features, "attention", Options)
    where = batch_of(layout)
    return run(made(Call, (
        q, k, v, where, values, out, schedule, scale,
        causal, window_size, return_lse, invariant, specialize, False, False, True, backward,
    )), first_call)  # fmt: skip
