"""`attention_varlen` is the compiled kernel for packed sequences, of any lengths, as a PyTorch function."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from tl_attention.op.attend import first_call
from tl_attention.op.call import NO_WINDOW, Call, Keywords, Pair, Result, made, values_of
from tl_attention.op.packed import Packed
from tl_attention.op.pages import pages_of
from tl_attention.op.run import run
from tl_attention.op.unknown import without_a_name
from tl_attention.schedule.schedule import Schedule


class VarlenOptions(Keywords, total=False):
    """VarlenOptions types the keyword arguments of `attention_varlen`, except `return_lse`."""

    seqused_q: Tensor | None
    seqused_k: Tensor | None
    block_table: Tensor | None
    zero_unused: bool
    check: bool
    backward: Pair | None


@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
    *, return_lse: Literal[False] = ..., **options: Unpack[VarlenOptions],
) -> Tensor: ...  # fmt: skip
@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
    *, return_lse: Literal[True], **options: Unpack[VarlenOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
    *, return_lse: bool, **options: Unpack[VarlenOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *unnamed: Any,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    return_lse: bool = False,
    out: Tensor | None = None,
    schedule: Schedule | str | Path | None = None,
    zero_unused: bool = False,
    check: bool = False,
    invariant: bool | None = None,
    backward: Pair | None = None,
    **features: Any,
) -> Result:
    """Computes softmax(scale q k^T) v for each of many sequences of any lengths, which lie one behind the other.

    q is (total_q, heads, head_dim), k is (total_k, heads_kv, head_dim) and v is (total_k, heads_kv, head_dim_v), on a
    Hopper GPU; dtypes, head sizes, grouped heads and strides are as for `attention`. Sequence n has the rows
    cu_seqlens_q[n] to cu_seqlens_q[n + 1] of q, and the keys cu_seqlens_k[n] to cu_seqlens_k[n + 1]. Any length may be
    0, and there may be more sequences than rows.

    Queries and keys of a sequence end together: causal and window_size count from there. A query that sees no key gives
    0, and an LSE of -inf (or its sink). No sequence's rows enter another's result, not even a NaN.

    The offsets stay on the GPU, so their contents are not checked: offsets that fall, or go beyond a tensor, are cut to
    it, and then the output is wrong. `check=True` reads and checks them, which waits for the GPU.

    Args:
        cu_seqlens_q: contiguous int32 (sequences + 1,) on q's GPU; so is cu_seqlens_k.
        max_seqlen_q: at least the longest sequence's queries; max_seqlen_k its keys. Each is an integer, or a tensor on
            the CPU that has one. They only choose the schedule and the parts of the keys, so larger ones are right.
        seqused_q: contiguous int32 (sequences,): only so many of each sequence's rows count, and queries and keys end
            with these; so does seqused_k.
        causal, scale, window_size, softcap, sinks, schedule, invariant: as for `attention`.
        return_lse: return (output, LSE), fp32 (heads, total_q).
        out: a tensor to write the output to, as for `attention`.
        block_table: contiguous int32 (sequences, pages) on q's GPU: sequence n's keys lie in the pages that row n
            names, in order, seqused_k[n] of them, and cu_seqlens_k is None. Then k is (pages, page_size, heads_kv,
            head_dim) and v (pages, page_size, heads_kv, head_dim_v), and pages may lie any number of rows apart. Pages
            that are not named are not read. There is no gradient.
        zero_unused: set rows that are no sequence's to 0, and their LSE to -inf; otherwise they are left as they are.
        check: check the contents of offsets and used lengths.
        backward: a pair (dq, dkdv) of schedules, as for `attention`.

    Under torch.compile and torch.export the call is the operator `torch.ops.tl_attention.forward_varlen`, which takes
    neither `out` nor a Schedule nor `check`. Gradients of q, k, v and sinks come from the pair (dq, dkdv), or else from
    PyTorch's FlashAttention-2. That has none with a softcap, return_lse, seqused, or a window that is open on the right
    alone, where it may mask otherwise. There are none with out or check. Rows that see no key, and rows that are no
    sequence's, have a gradient of 0.

    Returns: the output (total_q, heads, head_dim_v) in q's dtype, contiguous, or `out`.
    Raises: InputError (a ValueError) for anything that is not supported, as `attention` does.
    """
    if unnamed:
        raise without_a_name("attention_varlen", unnamed[0], behind="max_seqlen_k")
    values = values_of(features, "attention_varlen", VarlenOptions)
    pages = None
    if block_table is not None:
        pages, cu_seqlens_k = pages_of(k, v, block_table, cu_seqlens_k, seqused_k)
    where = made(Packed, (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, pages, None))
    return run(made(Call, (
        q, k, v, where, values, out, schedule, scale,
        causal, window_size, return_lse, invariant, False, zero_unused, check, True, backward,
    )), first_call)  # fmt: skip
