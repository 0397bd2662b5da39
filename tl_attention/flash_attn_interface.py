"""These functions have the names, arguments and results of FlashAttention-3's `flash_attn_interface`.

Where that is imported, this can be instead: `from tl_attention.flash_attn_interface import flash_attn_func`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError, shown
from tl_attention.op.attention import attention
from tl_attention.op.operator import requires_gradient
from tl_attention.op.varlen import attention_varlen

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


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
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes `attention` of q, k and v, which are (batch, seq, heads, head_dim), as FlashAttention-3's function does.

    Args:
        softmax_scale, causal, window_size, softcap: as `scale` and the others of `attention`.
        num_splits: 0 or 1, which both mean one part here.
        pack_gqa, sm_margin: hints, which change nothing here.
        deterministic: of the gradient. PyTorch's is so where `torch.use_deterministic_algorithms(True)` says so.
        qv, q_descale, k_descale, v_descale, attention_chunk: not supported.
        return_attn_probs: return (output, LSE), the LSE fp32 (batch, heads, seq_q).

    Returns: the output (batch, seq_q, heads, head_dim_v) in q's dtype, or (output, LSE).
    Raises: InputError (a ValueError) for what is not supported, here or by `attention`.
    """
    lacking = {"qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    _check(lacking, attention_chunk, num_splits, deterministic and requires_gradient(q, k, v))
    options = _options(softmax_scale, causal, window_size, softcap, return_attn_probs)
    return attention(q, k, v, layout="bshd", **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
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
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes `attention_varlen` of packed sequences, (rows, heads, head_dim), as FlashAttention-3's function does.

    The arguments are those of `flash_attn_func`, and those of `attention_varlen` that say where sequences lie.

    Returns: the output (rows, heads, head_dim_v) in q's dtype, or (output, LSE), the LSE fp32 (heads, rows). Rows that are
        no sequence's are left as they are.
    Raises: InputError (a ValueError) for what is not supported, here or by `attention_varlen`.
    """
    lacking = {"qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    _check(lacking, attention_chunk, num_splits, deterministic and requires_gradient(q, k, v))
    options = _options(softmax_scale, causal, window_size, softcap, return_attn_probs)
    where = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return attention_varlen(q, k, v, *where, seqused_q=seqused_q, seqused_k=seqused_k, **options)


def _options(
    scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float, lse: bool
) -> dict[str, Any]:
    """Returns the options of a call by the names that they have here."""
    return {"scale": scale, "causal": causal, "window_size": window_size, "softcap": softcap, "return_lse": lse}


def _check(lacking: dict[str, None], attention_chunk: int, num_splits: int, deterministic_gradient: bool) -> None:
    """Raises InputError where a call asks for what there is not here."""
    for name, given in lacking.items():
        if given is not None:
            raise InputError(f"flash_attn: {name} is given, which the kernels do not have, expected None")
    if attention_chunk:
        raise InputError(f"flash_attn: attention_chunk is {shown(attention_chunk)}, expected 0: there are no chunks")
    if num_splits not in (0, 1):
        raise InputError(f"flash_attn: num_splits is {shown(num_splits)}, expected 0 or 1: nothing is split")
    if deterministic_gradient and not torch.are_deterministic_algorithms_enabled():
        raise InputError(
            "flash_attn: deterministic=True where an input requires a gradient, which is PyTorch's: expected "
            "torch.use_deterministic_algorithms(True)"
        )
