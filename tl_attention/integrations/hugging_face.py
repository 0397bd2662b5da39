"""This module runs Transformers' models on this package's kernels.

It registers an attention function and, under the same name, a function that makes masks. Transformers makes a mask once
for a model, and passes it to the attention of each layer. None stands for a causal mask whose queries and keys end
together, or for no mask where a layer is not causal. The mask of a window is a tensor that carries the window's size as
an attribute. A layer with any other tensor as its mask runs on SDPA.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.integrations import NAME
from tl_attention.op.attention import attention
from tl_attention.oracle.tile import TENSORS
from tl_attention.problem.features import BY_WORD, INPUTS
from tl_attention.problem.mask import CAUSAL, FULL, Mask, fitted, sides

# This attribute of a mask says how many keys a query sees in its window, the query's own included.
WINDOW = "tl_attention_window"
# Layers pass these arguments besides, which change no number.
WITHOUT_EFFECT = ("position_ids", "cache_position", "num_items_in_batch")


def register_transformers() -> str:
    """Registers the kernels with Transformers under the name "tl_attention", and returns that name.

    Registering changes no model yet. `model.set_attn_implementation(name)`, or
    `from_pretrained(..., attn_implementation=name)`, switches a model to the kernels. They run causal and full attention,
    cached generation, windows, and the other arguments of `attention` that layers have, on fp16 and bf16 tensors on a GPU.

    SDPA runs all other cases: padding, static caches, dropout, and tensors that `attention` refuses. A warning says so once
    for each case. A layer that has such an argument raises InputError then, because SDPA has none of them.

    Returns: "tl_attention".
    Raises: InputError (a ValueError) if Transformers is not installed.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import causal_mask_function, sdpa_mask
    except ImportError as error:
        raise InputError(
            f"transformers: {error}, expected what `pip install 'tl-attention[transformers]'` has"
        ) from None
    AttentionInterface.register(NAME, partial(attend, sdpa_attention_forward))
    AttentionMaskInterface.register(NAME, partial(mask_for, sdpa_mask, causal_mask_function))
    return NAME


def mask_for(
    sdpa_mask: Callable[..., Tensor | None],
    causal_mask_function: Callable[..., Any],
    *,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **others: Any,
) -> Tensor | None:
    """Returns None for a causal mask without padding, else SDPA's mask (batch, 1, q_length, kv_length).

    None needs queries and keys that end together. It is also for a window that hides no key. `attention_mask`
    (batch, keys) is False at padding.
    """
    # A static cache counts in a tensor, and has keys that are not filled yet.
    end_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    ours = allow_is_causal_skip and end_together and not _padded(attention_mask, kv_offset + kv_length)
    window = local_size if local_size == _window_of(config) else None
    if ours and (mask_function is causal_mask_function or (window is not None and kv_length <= window)):
        return None
    given: dict[str, Any] = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
    given |= {"mask_function": mask_function, "attention_mask": attention_mask, "local_size": local_size}
    # Where SDPA says None, queries and keys may begin together: never that, if it is causal.
    mask = sdpa_mask(**given, allow_is_causal_skip=False, config=config, **others)
    if ours and window is not None:
        setattr(mask, WINDOW, window)
    return mask


def _padded(attention_mask: Tensor | None, keys: int) -> bool:
    """Says whether a given `attention_mask` hides a key or is not `keys` long. In compiled code any mask counts.

    Without a mask nothing is padded.
    """
    if attention_mask is None:
        return False
    return torch.compiler.is_compiling() or attention_mask.shape[-1] != keys or not bool(attention_mask.all())


def _window_of(config: Any) -> int | None:
    """Returns the `sliding_window` of a model's config; None without one, or beside an `attention_chunk_size`.

    With chunks `local_size` may be their size.
    """
    chunks = getattr(config, "attention_chunk_size", None)
    return None if chunks is not None else getattr(config, "sliding_window", None)


def attend(
    sdpa: Callable[..., tuple[Tensor, None]],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Computes the attention of a layer on the kernels or, with a warning, on SDPA if they do not support it.

    Returns (batch, seq_q, heads, head_dim) for tensors (batch, heads, seq, head_dim), and no weights.
    """
    noted = getattr(attention_mask, WINDOW, None)
    causal = bool(noted or (getattr(module, "is_causal", True) if is_causal is None else is_causal))
    window = sliding_window if noted is None else noted
    mask = Mask(left=None if window is None else window - 1, right=0) if causal else FULL
    mask = fitted(mask, query.shape[2], key.shape[2])
    asked = _features(others)
    case = _not_ours(attention_mask, noted, dropout, window if not causal else None, others)
    if case is None:
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        try:
            left, right = sides(mask)
            return attention(q, k, v, scale=scaling, window_size=(left, right), layout="bshd", **asked), None
        except InputError as error:
            case = str(error)
    if asked:
        lacking = BY_WORD[next(iter(asked))].words
        raise InputError(
            f"transformers: {case}, and SDPA, which would run instead, has no {lacking}: use attn_implementation='eager'"
        )
    _warn(case)
    if attention_mask is None and others.get("cache") is None:
        attention_mask = _for_sdpa(mask, query, key)
    return sdpa(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
    )


def _features(others: dict[str, Any]) -> dict[str, Any]:
    """Removes features, such as softcap, from a layer's arguments, and returns a dict of the set ones by word."""
    given = {feature: others.pop(feature.transformers, None) for feature in INPUTS if feature.transformers}
    there = {feature: value for feature, value in given.items() if value is not None}
    return {f.word: value if f.is_number else value.float() for f, value in there.items() if not f.is_number or value}


def _not_ours(
    attention_mask: Tensor | None, noted: int | None, dropout: float, window: int | None, others: dict[str, Any]
) -> str | None:
    """Returns words on what a layer's call has that `attention` lacks, such as dropout; None if it has nothing."""
    if attention_mask is not None and noted is None:
        return "the mask is a tensor: padding, a static cache, or neither causal nor a window"
    if dropout:
        return "dropout"
    if window is not None:
        return "a window that is not causal"
    for name, given in others.items():
        if name not in WITHOUT_EFFECT and (
            isinstance(given, Tensor) or (name in ("cache", "output_attentions") and given)
        ):
            return f"the layer passes {name}"
    return None


def _for_sdpa(mask: Mask, query: Tensor, key: Tensor) -> Tensor | None:
    """Returns the bool tensor with which SDPA computes this mask; None where SDPA needs no tensor for it.

    Without a tensor SDPA lets causal queries and keys begin together.
    """
    seq_q, seq_kv = query.shape[2], key.shape[2]
    if mask == FULL or (mask == CAUSAL and seq_q in (1, seq_kv)):
        return None
    keys = torch.arange(seq_kv, device=query.device)
    own_keys = torch.arange(seq_kv - seq_q, seq_kv, device=query.device)[:, None]
    return ~mask.hidden(keys, own_keys, seq_kv, TENSORS)[None, None]


def _warn(case: str) -> None:
    """Warns, once for each case, that SDPA runs instead of the kernels.

    Cases that differ in numbers alone, such as a length that grows, count as one case.
    """
    if re.sub(r"\d+", "#", case) not in _said:
        _said.add(re.sub(r"\d+", "#", case))
        warnings.warn(f"tl_attention: SDPA runs instead: {case}", stacklevel=3)


_said: set[str] = set()
