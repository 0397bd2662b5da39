"""This module makes the masks of Transformers' models that run on the kernels.

Transformers makes a mask once for a forward pass, and passes it to the attention of each layer. None stands for a
causal mask whose queries and keys end together, or for no mask where a layer is not causal. Others carry a Note, which
says what they stand for: a window, padding, packed sequences, or what SDPA alone takes.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getclosurevars
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tl_attention.op.gradients import is_traced
from tl_attention.op.integrations.positions import begin_forward
from tl_attention.op.integrations.sequences import Note, Packing, Padding


def mask_for(masks: Any, **given: Any) -> Tensor | None:
    """Returns None for a causal mask without padding, a mask with a Note for others of the kernels', else SDPA's mask.

    SDPA's is (batch, 1, q_length, kv_length). A batch's padding is `attention_mask` (batch, keys) itself, and packed
    sequences are their numbers (batch, tokens). `masks` is Transformers' module `masking_utils`, and `given` is what
    its `sdpa_mask` would get.
    """
    if not is_traced(None):
        begin_forward()
    q_length, kv_length = given["q_length"], given["kv_length"]
    q_offset, kv_offset = given["q_offset"], given["kv_offset"]
    mask_function, attention_mask = given["mask_function"], given["attention_mask"]
    config, local_size = given["config"], given.get("local_size")
    end = kv_offset + kv_length
    # A static cache counts in a tensor, and has keys that are not filled yet.
    end_together = isinstance(q_offset, int) and q_offset + q_length == end
    # Beside an `attention_chunk_size`, `local_size` may be that.
    has_chunks = getattr(config, "attention_chunk_size", None) is not None
    window = local_size if not has_chunks and local_size == getattr(config, "sliding_window", None) else None
    hides = window if window is not None and kv_length > window else None
    causal = mask_function is masks.causal_mask_function or window is not None
    causal = causal and end_together and given["allow_is_causal_skip"]
    bidirectional = mask_function is masks.bidirectional_mask_function and local_size is None
    bidirectional = bidirectional and given.get("allow_is_bidirectional_skip", False)
    if attention_mask is None:
        ids = _packed(masks, mask_function, window) if end_together and not is_traced(None) else None
        if ids is not None and not is_traced(ids):
            return Note(True, hides, packing=Packing(ids, None, torch.ne)).put(ids.view_as(ids))
        if causal and hides is None:
            return None
    # In compiled code the host cannot see what is padded.
    elif attention_mask.shape[-1] == end and not is_traced(attention_mask) and (causal or bidirectional):
        here = attention_mask[:, kv_offset:].bool()
        return Note(causal, hides, Padding(here, q_length if causal else None)).put(here)
    # Where SDPA says None, queries and keys may begin together: never that, if it is causal.
    mask = masks.sdpa_mask(**given | {"allow_is_causal_skip": False})
    if attention_mask is None and causal:
        return Note(True, hides).put(mask)
    return _noted_for_sdpa(masks, mask, given)


def _noted_for_sdpa(masks: Any, mask: Tensor | None, given: dict[str, Any]) -> Tensor | None:
    """Returns SDPA's mask, which was made of these arguments, with a note unless it keeps packed sequences apart."""
    if mask is None or given["q_length"] == 1 or is_traced(mask) or _keeps_apart(masks, given["mask_function"]):
        return mask
    counted = given["attention_mask"]
    if counted is not None:
        queries = given["q_offset"] + torch.arange(given["q_length"], device=mask.device)
        counted = counted[:, queries.clamp(max=counted.shape[1] - 1)].bool()
    return Note(True, for_kernels=False, counted=counted).put(mask)


def _keeps_apart(masks: Any, mask_function: Callable[..., Any]) -> bool:
    """Says whether a mask function, or one of those that it is made of, is Transformers' own of packed sequences."""
    of_ids = masks.packed_sequence_mask_function(None).__code__
    return any(part is of_ids for part in _parts(mask_function))


def _packed(masks: Any, mask_function: Callable[..., Any], window: int | None) -> Tensor | None:
    """Returns the numbers of packed sequences, (batch, tokens), if this mask is causal, or a window, in each."""
    # Transformers finds packed sequences in the tokens' positions, and composes their mask function from a few known
    # ones. A function that is composed from others leaves the mask to SDPA.
    if not _keeps_apart(masks, mask_function):
        return None
    parts = _parts(mask_function)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    positions, ids = tensors[0], tensors[-1]
    within = masks.causal_mask_function if window is None else masks.sliding_window_causal_mask_function(window)
    # Newer ones count the positions of each sequence from 0, which changes no mask.
    if counted := getattr(masks, "remap_positions_for_packed_sequence", None):
        within = counted(within, positions)
    known = masks.and_masks(within, masks.packed_sequence_mask_function(ids))
    return ids if parts == _parts(known) else None


def _parts(part: Any) -> list[Any]:
    """Returns what a mask function is made of: its code and what it holds, and so of each function among that."""
    if isinstance(part, FunctionType):
        part = (part.__code__, *getclosurevars(part).nonlocals.values())
    if isinstance(part, tuple):
        return [inner for one in part for inner in _parts(one)]
    return [part]
