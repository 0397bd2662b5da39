"""This module makes the masks of Transformers' models that run on the kernels.

Transformers makes a mask once for a forward pass, and passes it to the attention of each layer. None stands for a causal
mask whose queries and keys end together, or for no mask where a layer is not causal. Others carry a Note, which says
what they stand for: a window, padding, packed sequences, or what SDPA alone takes.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getclosurevars
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tl_attention.op.gradients import is_traced
from tl_attention.op.integrations.positions import masks_are_made
from tl_attention.op.integrations.sequences import Note, Packing, Padding


def mask_for(
    masks: Any,
    *,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **others: Any,
) -> Tensor | None:
    """Returns None for a causal mask without padding, a mask with a Note for what else the kernels have, else SDPA's mask.

    SDPA's is (batch, 1, q_length, kv_length). A batch's padding is `attention_mask` (batch, keys) itself, and packed
    sequences are their numbers (batch, tokens). `masks` is Transformers' module `masking_utils`.
    """
    if not is_traced(None):
        masks_are_made()
    # A static cache counts in a tensor, and has keys that are not filled yet.
    end_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    window = local_size if local_size == _window_of(config) else None
    hides = window if window is not None and kv_length > window else None
    causal = mask_function is masks.causal_mask_function or window is not None
    bidirectional = mask_function is getattr(masks, "bidirectional_mask_function", None) and local_size is None
    given: dict[str, Any] = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
    given |= {"mask_function": mask_function, "attention_mask": attention_mask, "local_size": local_size}
    given |= {"allow_is_bidirectional_skip": allow_is_bidirectional_skip, "config": config, **others}
    if attention_mask is None:
        ids = _packed(masks, mask_function, window) if end_together and not is_traced(None) else None
        if ids is not None and not is_traced(ids):
            return Note(True, hides, packing=Packing(ids, None, torch.ne)).put(ids.view_as(ids))
        ours = allow_is_causal_skip and end_together and causal
        if ours and hides is None:
            return None
        # Where SDPA says None, queries and keys may begin together: never that, if it is causal.
        mask = masks.sdpa_mask(**given, allow_is_causal_skip=False)
        return Note(True, hides).put(mask) if ours else _noted_for_sdpa(masks, mask, given)
    end = kv_offset + kv_length
    # In compiled code the host cannot see what is padded.
    if attention_mask.shape[-1] == end and not is_traced(attention_mask):
        here = attention_mask[:, kv_offset:].bool()
        if allow_is_causal_skip and end_together and causal:
            return Note(True, hides, Padding(here, q_length)).put(here)
        if allow_is_bidirectional_skip and bidirectional:
            return Note(False, None, Padding(here, None)).put(here)
    return _noted_for_sdpa(masks, masks.sdpa_mask(**given, allow_is_causal_skip=False), given)


def _noted_for_sdpa(masks: Any, mask: Tensor | None, given: dict[str, Any]) -> Tensor | None:
    """Returns SDPA's mask, which was made of these arguments, with a note unless it keeps packed sequences apart."""
    if mask is None or given["q_length"] == 1 or is_traced(mask) or _keeps_apart(masks, given["mask_function"]):
        return mask
    counted = given["attention_mask"]
    if counted is not None:
        own = given["q_offset"] + torch.arange(given["q_length"], device=mask.device)
        counted = counted[:, own.clamp(max=counted.shape[1] - 1)].bool()
    return Note(True, for_kernels=False, counted=counted).put(mask)


def _keeps_apart(masks: Any, part: Any) -> bool:
    """Says whether a mask function, or one of those that it is made of, is Transformers' own of packed sequences."""
    if isinstance(part, tuple):
        return any(_keeps_apart(masks, one) for one in part)
    if not isinstance(part, FunctionType):
        return False
    of_ids = masks.packed_sequence_mask_function(None).__code__
    return part.__code__ is of_ids or _keeps_apart(masks, (*getclosurevars(part).nonlocals.values(),))


def _window_of(config: Any) -> int | None:
    """Returns the `sliding_window` of a model's config; None without one, or beside an `attention_chunk_size`.

    With chunks `local_size` may be their size.
    """
    chunks = getattr(config, "attention_chunk_size", None)
    return None if chunks is not None else getattr(config, "sliding_window", None)


def _packed(masks: Any, mask_function: Callable[..., Any], window: int | None) -> Tensor | None:
    """Returns the numbers of packed sequences, (batch, tokens), if this mask is causal, or a window, in each of them.

    Transformers finds packed sequences in the tokens' positions, and makes the mask function of a few known ones. They are
    known by their code; a function that is not leaves the mask to SDPA.
    """
    try:
        parts, code_of_ids = _parts(masks, mask_function), masks.packed_sequence_mask_function(None).__code__
        (ids,) = (part for part in parts if part.__code__ is code_of_ids)
        (within,) = (part for part in parts if part is not ids)
        # Newer ones count the positions of each sequence from 0, which changes no mask.
        counted = getattr(masks, "remap_positions_for_packed_sequence", None)
        if counted and within.__code__ is counted(None, None).__code__:
            within = getclosurevars(within).nonlocals["mask_function"]
        if window is not None:
            overlay, within = _parts(masks, within)
            if overlay.__code__ is not masks.sliding_window_overlay(window).__code__:
                return None
            if getclosurevars(overlay).nonlocals["sliding_window"] != window:
                return None
        return getclosurevars(ids).nonlocals["packed_sequence_mask"] if within is masks.causal_mask_function else None
    except (AttributeError, KeyError, TypeError, ValueError):  # Another Transformers.
        return None


def _parts(masks: Any, mask_function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Returns the functions that Transformers' `and_masks` has put together; raises ValueError for another function."""
    if mask_function.__code__ is not masks.and_masks().__code__:
        raise ValueError("it is not made of others")
    return getclosurevars(mask_function).nonlocals["mask_functions"]
