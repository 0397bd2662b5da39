"""This module runs Transformers' models on this package's kernels.

It registers an attention function and, under the same name, a function that makes masks. A layer whose mask is a tensor
runs on SDPA, unless the mask's Note says what it stands for.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tl_attention.errors import InputError
from tl_attention.op.attention import attention
from tl_attention.op.integrations import NAME
from tl_attention.op.integrations.hugging_face_masks import mask_for
from tl_attention.op.integrations.positions import with_packing
from tl_attention.op.integrations.sequences import Note, Padding, Sequences, given_sequences, note_of
from tl_attention.problem.features import BY_WORD, INPUTS
from tl_attention.problem.mask import CAUSAL, FULL, TENSORS, Mask, fitted, sides

# Layers pass these arguments besides, which change no number.
WITHOUT_EFFECT = ("position_ids", "cache_position", "num_items_in_batch")
# What layers call a feature, its word, and whether it is a number: torch.compile traces no dict with features as keys.
PASSED = tuple((feature.transformers, feature.word, feature.is_number) for feature in INPUTS if feature.transformers)


def register_transformers() -> str:
    """Registers the kernels with Transformers under the name "tl_attention", and returns that name.

    Registering changes no model yet. `model.set_attn_implementation(name)`, or
    `from_pretrained(..., attn_implementation=name)`, switches a model to the kernels. They run causal and full
    attention, cached generation, windows, padded and packed batches, and the other arguments of `attention` that layers
    have, on fp16 and bf16 tensors on a GPU. Under autocast tensors are taken in its dtype. Training works; with a
    softcap up to head_dim 128.

    SDPA runs all other cases: static caches, dropout, and tensors that `attention` refuses. A warning says so once for
    each case. A layer that has a softcap or sinks raises InputError then, because SDPA has none of them. So does a row
    of packed sequences, which `position_ids` show, with a static cache: its mask would let them see each other.

    Returns: "tl_attention".
    Raises: InputError (a ValueError) if Transformers is not installed.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
    except ImportError as error:
        raise InputError(
            f"transformers: {error}, expected what `pip install 'tl-attention[transformers]'` has"
        ) from None
    AttentionInterface.register(NAME, partial(attend, sdpa_attention_forward))
    AttentionMaskInterface.register(NAME, partial(mask_for, masking_utils))
    return NAME


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

    Tensors are (batch, heads, seq, head_dim). Packed sequences lie where a collator says (`cu_seq_lens_q` and its
    fellows), or where the tokens' positions begin anew.

    Returns (batch, seq_q, heads, head_dim), 0 for queries of padding, and no weights.
    Raises InputError for packed sequences that would see each other: behind a cache, or with a mask of SDPA's only.
    """
    query, key, value = _of_autocast(query, key, value)
    packed = given_sequences(others)
    note = _note(attention_mask, query, module, is_causal, sliding_window)
    if note is not None and note.packing is None and packed is None and others.get("cache") is None:
        note = with_packing(note, others.get("position_ids"), query, key)
    asked = _features(others)
    mask, case = _mask_of(note, query, key), _not_ours(note, dropout, others)
    if note is not None and not case:
        try:
            return _on_kernels(query, key, value, note, mask, packed, {"scale": scaling, **asked}), None
        except InputError as error:
            case = str(error)
    if asked or packed:
        lacking = BY_WORD[next(iter(asked))].words if asked else "packed sequences"
        raise InputError(
            f"transformers: {case}, and SDPA, which would run instead, has no {lacking}: use attn_implementation='eager'"
        )
    _warn(case)
    if note is not None and note.for_kernels and others.get("cache") is None:
        attention_mask = _for_sdpa(note, mask, query, key)
    return sdpa(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
    )


def _of_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns the tensors in autocast's dtype where it is on, as SDPA does: rotated queries and keys are fp32 there."""
    device = tensors[0].device.type
    # Meta tensors have no autocast to ask for.
    if tensors[0].is_meta or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def _note(
    attention_mask: Tensor | None, query: Tensor, module: Any, is_causal: bool | None, sliding_window: int | None
) -> Note | None:
    """Returns what a layer's mask stands for; None for a mask that somebody else made."""
    if noted := note_of(attention_mask):
        return noted
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is None:
        return Note(causal, sliding_window)
    # A mask that was moved to another GPU has lost its note.
    if attention_mask.dim() == 2 and attention_mask.dtype == torch.bool:
        return Note(causal, sliding_window, Padding(attention_mask, query.shape[2] if causal else None))
    return None


def _mask_of(note: Note | None, query: Tensor, key: Tensor) -> Mask:
    """Returns the Mask of a note, without what hides no key at these lengths."""
    if note is None or not note.causal:
        return FULL
    left = None if note.window is None else note.window - 1
    return fitted(Mask(left, 0), query.shape[2], key.shape[2])


def _on_kernels(
    query: Tensor, key: Tensor, value: Tensor, note: Note, mask: Mask, packed: Sequences | None, options: dict[str, Any]
) -> Tensor:
    """Computes the attention of a layer with this note, or raises InputError for what the kernels do not have."""
    padding = note.padded
    if padding and packed:
        raise InputError("the batch is padded and packed")
    if padding and mask.left is not None and padding.has_gaps:
        raise InputError("a window over padding that lies between the tokens of a sequence")
    left, right = sides(mask)
    sequences = packed or (note.packing and note.packing.sequences)
    if padding and not sequences:
        sequences = padding.sequences(query, key, value)
    if sequences:
        return sequences.attention(query, key, value, window_size=(left, right), **options)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return attention(q, k, v, layout="bshd", window_size=(left, right), **options)


def _features(others: dict[str, Any]) -> dict[str, Any]:
    """Removes features, such as softcap, from a layer's arguments, and returns a dict of the set ones by word."""
    asked = {}
    for name, word, is_number in PASSED:
        value = others.pop(name, None)
        if value is not None and (not is_number or value):
            asked[word] = value if is_number else value.float()
    return asked


def _not_ours(note: Note | None, dropout: float, others: dict[str, Any]) -> str:
    """Returns words on what a layer's call has that `attention` lacks, such as dropout; none if it has nothing."""
    if note is None or not note.for_kernels:
        return "the mask is a tensor: a static cache, or neither causal nor a window"
    if dropout:
        return "dropout"
    if note.window is not None and not note.causal:
        return "a window that is not causal"
    for name, given in others.items():
        has_effect = isinstance(given, Tensor) or (name in ("cache", "output_attentions") and given)
        if has_effect and name not in WITHOUT_EFFECT:
            return f"the layer passes {name}"
    return ""


def _for_sdpa(note: Note, mask: Mask, query: Tensor, key: Tensor) -> Tensor | None:
    """Returns SDPA's bool tensor of this mask, (1 or batch, 1, seq_q, seq_kv); None where SDPA needs none."""
    seq_q, seq_kv = query.shape[2], key.shape[2]
    padding, packing = note.padded, note.packing
    # Without a tensor SDPA lets causal queries and keys begin together.
    if not padding and not packing and (mask == FULL or (mask == CAUSAL and seq_q in (1, seq_kv))):
        return None
    keys = torch.arange(seq_kv, device=query.device)
    own_keys = torch.arange(seq_kv - seq_q, seq_kv, device=query.device)[:, None]
    seen = ~mask.hidden(keys, own_keys, seq_kv, TENSORS)[None, None]
    if padding:
        seen = seen & padding.mask[:, None, None]
    if packing:
        seen = seen & (packing.ids[:, None, :, None] == packing.ids[:, None, None])
    return seen


def _warn(case: str) -> None:
    """Warns, once for each case, that SDPA runs instead of the kernels."""
    # Cases that differ in numbers alone, such as a length that grows, count as one case. Compiled code cannot warn.
    if is_dynamo_compiling() or (kind := re.sub(r"\d+", "#", case)) in _said:
        return
    _said.add(kind)
    warnings.warn(f"tl_attention: SDPA runs instead: {case}", stacklevel=3)


_said: set[str] = set()
