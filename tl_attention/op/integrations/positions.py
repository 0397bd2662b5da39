"""The positions of a batch's tokens show packed sequences: they begin anew.

Transformers looks for that where there is neither a mask nor a cache. Layers get the positions in any case, so they are
looked at here, once for all layers of a forward pass.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import torch
from torch import Tensor

from tl_attention.errors import InputError
from tl_attention.op.gradients import is_traced
from tl_attention.op.integrations.sequences import Note, Packing

# This attribute of a tensor of positions is what a forward pass saw in it.
SEEN = "tl_attention_seen"
EXPECTED = "expected neither an attention_mask nor a cache (use_cache=False), or one sequence in each row"


# Its attribute `now` is an object that stands for the forward pass that this thread is in.
_forward = threading.local()


def begin_forward() -> None:
    """Notes that a forward pass begins, as Transformers makes its masks first: its positions are to be looked at."""
    _forward.now = object()


def with_packing(note: Note, positions: object, query: Tensor, key: Tensor) -> Note:
    """Returns a layer's note, with the packing that the positions (1 or batch, seq_q) of the queries' tokens show.

    The GPU's values are looked at once in a forward pass. They are not looked at for one query a row, in code that is
    traced, while a CUDA graph is captured, and for positions of several axes.
    Raises InputError where sequences are packed and a mask, or a cache, does not keep them apart.
    """
    # First, so that traced code depends on no length.
    if is_traced(query) or is_traced(positions) or (query.is_cuda and torch.cuda.is_current_stream_capturing()):
        return note
    cached = key.shape[2] - query.shape[2]
    # A cache that only SDPA reads may have keys that are not filled yet, and other queries see other tokens.
    behind_cache = note.for_kernels and note.causal and cached > 0
    packing = _seen(note, positions, query) if behind_cache or not cached or not note.for_kernels else None
    if packing is None:
        return note
    if behind_cache and packing.lowest < cached and not note.padded:
        raise InputError(
            f"transformers: position_ids begin at {packing.lowest}, but the cache holds {cached} tokens, as of packed "
            f"sequences: {EXPECTED}"
        )
    if packing.is_none:
        return note
    if behind_cache or not note.for_kernels:
        what = "cache" if behind_cache else "mask"
        raise InputError(
            f"transformers: position_ids begin anew within a row, but the {what} does not keep packed sequences apart: {EXPECTED}"
        )
    return replace(note, packing=packing)


def _seen(note: Note, positions: object, query: Tensor) -> Packing | None:
    """Returns what positions show, looked at once a forward pass; None for what is not looked at."""
    batch, _, seq_q, _ = query.shape
    if not isinstance(positions, Tensor) or positions.shape not in ((1, seq_q), (batch, seq_q)) or seq_q == 1:
        return None
    # A tensor that is written to, within one forward pass or from one to the next, is another one.
    now = getattr(_forward, "now", None), None if positions.is_inference() else positions._version
    seen: tuple[object, Packing] | None = getattr(positions, SEEN, None)
    if seen is None or seen[0] != now:
        counted = note.counted if note.padding is None else note.padding.of_queries
        seen = now, Packing(positions.to(query.device, torch.int64).expand(batch, seq_q), counted, _begin_anew)
        setattr(positions, SEEN, seen)
    return seen[1]


def _begin_anew(before: Tensor, here: Tensor) -> Tensor:
    """Says where a sequence begins behind another one."""
    # Positions only grow within a sequence; some grow in steps, or stay for the tokens of an image.
    return (here < before) | (here == 0)
