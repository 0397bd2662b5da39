"""These functions have the names, arguments and results of FlashAttention-3's `flash_attn_interface`.

Where that is imported, this can be instead: `from tl_attention.flash_attn_interface import flash_attn_func`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from operator import is_
from typing import Any

from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.op.attend import first_call
from tl_attention.op.backward import deterministic as is_asked_for
from tl_attention.op.batch import BATCHES
from tl_attention.op.call import Call, Result, made, values_of
from tl_attention.op.gradients import is_traced, requires_gradient
from tl_attention.op.kv_cache import cache_of, check_queries
from tl_attention.op.packed import Packed
from tl_attention.op.pages import offsets_of, pages_of
from tl_attention.op.run import run
from tl_attention.op.scalars import plain
from tl_attention.op.unknown import unknown_argument

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
# Arguments that the kernels have nothing for; FlashAttention-2 has others of these.
LACKING = ("qv", "q_descale", "k_descale", "v_descale", "attention_chunk", "num_splits")
FLASH_ATTENTION_2 = ("dropout_p", "alibi_slopes", "block_table")
# What else only the function of a cache has, and the kernels have nothing for.
OF_CACHE = ("rotary_cos", "rotary_sin", "cache_leftpad", "rotary_seqlens", "cu_seqlens_k_new")
# The numbers among them, with the values that ask for nothing. Of the others None does.
NUMBERS = {"attention_chunk": (0,), "num_splits": (0, 1), "dropout_p": (0.0,)}
# What most calls give for LACKING and `deterministic`, compared by identity: Python has one object per small integer.
USUAL = (None, None, None, None, 0, 1, False)
# The same with splits as many as take the least time.
SPLIT = (*USUAL[:5], 0, False)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    dropout_p: float = 0.0,
    s_aux: Tensor | None = None,
    **others: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes `attention` of q, k and v, which are (batch, seq, heads, head_dim), as FlashAttention-3's function does.

    Args:
        softmax_scale, causal, window_size, softcap: as `scale` and the others of `attention`.
        num_splits: 1 for all keys at once, 0 for as many parts of them as take the least time.
        pack_gqa, sm_margin: hints, which change nothing here.
        deterministic: of the gradient. PyTorch's is so where `torch.use_deterministic_algorithms(True)` says so.
        qv, q_descale, k_descale, v_descale, attention_chunk: not supported.
        return_attn_probs: return (output, LSE), the LSE fp32 (batch, heads, seq_q).
        s_aux: the sinks of `attention`, (heads,), in any dtype.
        dropout_p, others: FlashAttention-2's dropout_p, alibi_slopes and block_table, which are 0.0 or None.

    Returns: the output (batch, seq_q, heads, head_dim_v) in q's dtype, or (output, LSE).
    Raises: InputError (a ValueError) for what is not supported, here or by `attention`.
    """
    checked = qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, deterministic
    settings = None, None, softmax_scale, causal, window_size, return_attn_probs
    return _attend(flash_attn_func, (q, k, v, BATCHES["bshd"]), softcap, s_aux, settings, checked, dropout_p, others)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    dropout_p: float = 0.0,
    s_aux: Tensor | None = None,
    block_table: Tensor | None = None,
    out: Tensor | None = None,
    scheduler_metadata: object = None,
    fa_version: object = None,
    **others: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes `attention_varlen` of packed sequences, (rows, heads, head_dim), as FlashAttention-3's function does.

    The arguments are those of `flash_attn_func`, and those of `attention_varlen` that say where sequences lie, as vLLM
    gives them too: with a block_table k and v are pages. scheduler_metadata and fa_version change nothing here.

    Returns: the output (rows, heads, head_dim_v) in q's dtype, or (output, LSE), the LSE fp32 (heads, rows). Rows of no
        sequence are left as they are.
    Raises: InputError (a ValueError) for what is not supported, here or by `attention_varlen`.
    """
    checked = qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, deterministic
    pages = None
    if block_table is not None:
        pages, cu_seqlens_k = pages_of(k, v, block_table, cu_seqlens_k, seqused_k)
    most_q, most_k = _waited_for(max_seqlen_q), _waited_for(max_seqlen_k)
    # What is of another type is told below.
    where = made(Packed, (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, most_q, most_k, pages, None))
    settings = out, None, softmax_scale, causal, window_size, return_attn_probs
    return _attend(flash_attn_varlen_func, (q, k, v, where), softcap, s_aux, settings, checked, dropout_p, others)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: None = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: object = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: Tensor | None = None,
    check: bool = False,
    **others: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes attention of queries over a KV cache, to which it first adds new keys, as FlashAttention-3's function.

    Args:
        q: (batch, seq_q, heads, head_dim), or (total_q, heads, head_dim) with cu_seqlens_q and max_seqlen_q.
        k_cache, v_cache: (batch, seq_k, heads_kv, head_dim), or with a page_table (pages, page_size, heads_kv,
            head_dim); V's head_dim may be another.
        k, v: new keys (batch, new, heads_kv, head_dim), written to the cache behind each sequence's own.
        cache_seqlens: each sequence's keys before, int32 (batch,) or an integer; by default the cache is full.
        cache_batch_idx: which of the cache's sequences those of q are, (batch,).
        page_table: int32 (batch, pages): the pages of each sequence, in order.
        softmax_scale, causal, window_size, softcap, num_splits: as in `flash_attn_func`; 0 splits is the default here.
        scheduler_metadata, pack_gqa, sm_margin, rotary_interleaved: hints, which change nothing here.
        s_aux: as in `flash_attn_func`.
        check: check the contents of cache_seqlens and page_table, for which the call waits for the GPU.
        The others are not supported, and None.

    Nothing is written where a call is refused, nor are keys for which a sequence has no room.

    Returns: the output, of q's shape but for V's head_dim, or (output, LSE): fp32 (batch, heads, seq_q), or (heads,
        total_q).
    Raises: InputError (a ValueError) for what is not supported, here or by `attention_varlen`.
    """
    lacking = rotary_cos, rotary_sin, cache_leftpad, rotary_seqlens, cu_seqlens_k_new
    for name, value in zip(OF_CACHE, lacking):
        _check_none(name, value)
    if (k is None) is not (v is None):
        raise InputError("flash_attn: one of k and v is given, expected both new keys or none")
    check_queries(q, cu_seqlens_q)
    rows, sequences = q, len(q if cu_seqlens_q is None else cu_seqlens_q[1:])
    if cu_seqlens_q is None:
        rows, max_seqlen_q = q.flatten(0, 1), q.shape[1]
        cu_seqlens_q = offsets_of(sequences, max_seqlen_q, q)
    cache = cache_of(q, k_cache, v_cache, cache_seqlens, page_table, cache_batch_idx, sequences)
    write = None
    if k is not None and v is not None:
        cache.check_append(k, v, check)
        write, cache = functools.partial(cache.append, k, v), cache.longer(k.shape[1])
    if write is not None and is_traced(q):
        write()
        write = None
    keys, values, begins, pages = cache.laid_out()
    where = made(Packed, (cu_seqlens_q, begins, None, cache.lengths, max_seqlen_q, cache.longest, pages, write))
    settings = None, None, softmax_scale, causal, window_size, return_softmax_lse
    checked = qv, q_descale, k_descale, v_descale, attention_chunk, num_splits, False
    tensors = rows, keys, values, where
    found = _attend(flash_attn_with_kvcache, tensors, softcap, s_aux, settings, checked, 0.0, others, check)
    if q.dim() == 3:
        return found
    output, lse = found if isinstance(found, tuple) else (found, None)
    output = output.view(*q.shape[:3], output.shape[-1])
    return output if lse is None else (output, lse.view(-1, *q.shape[:2]).transpose(0, 1))


def _attend(
    function: Callable[..., Any], tensors: tuple[Any, ...], softcap: float, s_aux: Any, settings: tuple[Any, ...],
    checked: tuple[Any, ...], dropout_p: Any, others: dict[str, Any], check: bool = False,
) -> Result:  # fmt: skip
    """Computes a call of one of the functions above, if the arguments `checked` and `others` ask for nothing else."""
    # Models have sinks in their own dtype.
    values = values_of({"softcap": softcap, "sinks": s_aux.float() if isinstance(s_aux, Tensor) else s_aux})
    if type(dropout_p) is not float or dropout_p:
        others["dropout_p"] = dropout_p
    in_parts = checked[5] is SPLIT[5]
    call: Call = made(Call, (*tensors, values, *settings, None, False, False, check, in_parts, None))
    try:
        if others or not all(map(is_, checked, SPLIT if in_parts else USUAL)):
            *lacking, deterministic = checked
            _check_given(dict(zip(LACKING, lacking)) | others, function)
            _check_deterministic(deterministic, *call[:3])
            call = call._replace(in_parts=plain(lacking[-1]) == 0)
        return run(call, first_call)
    except InputError:
        # Every argument at a wrong place is refused, so only refused calls are asked for their places.
        _check_places(call)
        raise


def _waited_for(value: Any) -> Any:
    """Returns the number in a GPU's tensor without dimensions, as FlashAttention reads it; another value unchanged."""
    return value.item() if type(value) is Tensor and value.is_cuda and value.dim() == 0 else value


def _check_given(given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raises InputError for an argument that is unknown, or that asks for what there is not here."""
    for name, value in given.items():
        if name not in LACKING + FLASH_ATTENTION_2:
            known = [*inspect.signature(function).parameters][:-1]
            raise unknown_argument("flash_attn", [name], [*dict.fromkeys((*known, *FLASH_ATTENTION_2))])
        if name not in NUMBERS:
            _check_none(name, value)
        # Not True, which equals 1.
        elif type(number := plain(value)) not in (int, float) or number not in NUMBERS[name]:
            expected = " or ".join(map(str, NUMBERS[name]))
            raise InputError(f"flash_attn: {name} is {shown(value)}, expected {expected}: the kernels have no other")


def _check_none(name: str, value: object) -> None:
    """Raises InputError for an argument that asks for what there is not here, as all but None does."""
    if value is not None:
        raise InputError(f"flash_attn: {name} is given, which the kernels do not have, expected None")


def _check_places(call: Call) -> None:
    """Raises InputError if arguments seem to be in FlashAttention-2's order, which has dropout_p before the scale."""
    seqused_q, number = call.where.tensors.get("seqused_q"), plain(call.scale)
    is_number = not isinstance(number, bool) and (not isinstance(number, (int, float)) or number != 0)
    for name, value, is_right, expected in (
        ("seqused_q", seqused_q, seqused_q is None or isinstance(seqused_q, Tensor), "None or a tensor"),
        ("softmax_scale", call.scale, is_number, "None or a number above 0"),
        ("causal", call.causal, isinstance(plain(call.causal), bool), "True or False"),
    ):
        if not is_right:
            raise InputError(
                f"flash_attn: {name} is {shown(value)}, expected {expected}: places are FlashAttention-3's, without "
                "dropout_p; write dropout_p=0.0, softmax_scale=... and causal=..."
            ) from None


def _check_deterministic(flag: object, *inputs: Tensor) -> None:
    """Raises InputError for what is no flag, and for one of a gradient if PyTorch was not asked for such gradients."""
    flag = plain(flag)
    if not isinstance(flag, bool):
        raise InputError(f"flash_attn: deterministic is {shown(flag)}, expected True or False")
    if flag and requires_gradient(*inputs) and not is_asked_for():
        raise InputError(
            "flash_attn: deterministic=True where an input requires a gradient, which is PyTorch's: expected "
            "torch.use_deterministic_algorithms(True)"
        )
