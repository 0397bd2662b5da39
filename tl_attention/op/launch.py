"""A launch's arguments have the names of the kernel's parameters: NAMES lists and `Launch.arguments` lays them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from tl_attention.kernels.registry import parameters_of
from tl_attention.op.call import Values
from tl_attention.op.few import KeySplit, result_places, results_of_parts, tensors_for_parts
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import WINDOW
from tl_attention.problem.packed import words_of_list
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import OFFSETS, PAGES, Variant
from tl_attention.schedule.schedule import Schedule

# What a launch finds by itself, and no caller gives.
FOUND = ("counter", "trace")
# The numbers that a launch's problem and GPU give.
NUMBERS = (*WINDOW, "part_blocks", "group", "workers")
# By parameter, what `arguments` lays out: where all keys are computed at once, no other kernel merges anything.
TENSORS, MERGED, WHOLE = ("Q", "K", "V", "Output"), ("Merged", "MergedLSE"), (None, None)
NAMES = (
    *TENSORS,
    "softmax_scale",
    "LSE",
    *(f.name for f in INPUTS),
    *NUMBERS,
    *MERGED,
    *(p.name for p in (*OFFSETS, *PAGES)),
)
# Where packed sequences lie, as OFFSETS have it; a launch finds room for the list of tiles by its length.
Offsets = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A Launch is a compiled kernel with those of its arguments that do not depend on a call's tensors."""

    kernel: Callable[..., None]  # launches it, with arguments in its own order
    chosen: Callable[[tuple[Any, ...]], tuple[Any, ...]]  # takes these out of all arguments
    known: Values  # the numbers that features have, in the order of INPUTS, and those of NUMBERS
    of_call: tuple[int, ...]  # the places of features that are tensors of the call
    has_lse: bool  # whether the kernel writes an LSE, which a call need not ask for
    parts: int = 0  # parts of the keys that the kernel computes, 0 if it computes all at once
    rows: int = 0  # queries of a tile of packed sequences
    places: int = 0  # each head's places for results of parts, if packed sequences may be split
    rows_of_parts: int = 0  # rows of these results

    @classmethod
    def of(
        cls, kernel: Callable[..., None], schedule: Schedule, variant: Variant, shape: AttentionShape, sms: int,
        parts: KeySplit | None = None,
    ) -> Launch:  # fmt: skip
        """Makes the Launch of a schedule's kernel, on a GPU of so many SMs, which computes problems like this one."""
        taken = (NAMES.index(p.name) for p in parameters_of(schedule, variant) if p.kind not in FOUND)
        features = [(place, f) for place, f in enumerate(INPUTS) if f.word in shape.asked]
        number, part_blocks = parts or (0, None)
        heads = variant.heads_of_tiles(shape.heads)
        room = result_places(heads, schedule, sms) if variant.packed and variant.parts else 0
        numbers = {**shape.mask.values(variant.mask.names), "part_blocks": part_blocks, "group": shape.group}
        numbers["workers"] = schedule.workers(sms)
        return cls(
            kernel=kernel,
            chosen=itemgetter(*taken),
            known=(*(shape.asked[f.word] if f.is_number else None for f in INPUTS), *map(numbers.get, NUMBERS)),
            of_call=tuple(place for place, f in features if not f.is_number),
            has_lse="LSE" in variant.optional,
            parts=number,
            rows=variant.rows_of(schedule.block_M) * schedule.kernel.cluster,
            places=room,
            rows_of_parts=room * heads * schedule.block_M,
        )

    def offsets(
        self, cu_q: Tensor, cu_k: Tensor, used_q: Tensor | None, used_k: Tensor | None, total_q: int
    ) -> Offsets:
        """Returns the arguments that say where packed sequences lie, and the length of the list of their tiles."""
        words = words_of_list(total_q, cu_q.shape[0] - 1, self.rows, self.places)
        # Used lengths as long as the offsets stand for none.
        return cu_q, cu_k, cu_q if used_q is None else used_q, cu_k if used_k is None else used_k, words

    def arguments(
        self, tensors: Sequence[Tensor], lse: Tensor | None, scale: float, values: Values,
        offsets: Offsets | tuple[()] = (),
    ) -> tuple[Any, ...]:  # fmt: skip
        """Returns a launch's arguments in the order of the kernel's parameters.

        `tensors` are q, k, v and the output, (batch, heads, rows, columns) or packed (rows, heads, columns), which lie
        as kernels read them. `offsets` say where packed sequences lie.
        """
        q, k, v, output = tensors
        known: Sequence[Any] = self.known
        if self.of_call:
            known = [*known]
            for place in self.of_call:
                known[place] = values[place]
        if lse is None and self.has_lse:
            lse = q.new_empty(output.shape[1::-1] if offsets else output.shape[:3], dtype=torch.float32)
        merged: tuple[Any, ...] = WHOLE
        if self.parts or self.places:
            # The kernel writes each part's results, and another one those of all keys.
            merged = output, lse
            if offsets:
                output, lse = tensors_for_parts(q, self.rows_of_parts, output.shape[2])
            else:
                output, lse = results_of_parts(output, self.parts)
        return self.chosen((q, k, v, output, scale, lse, *known, *merged, *offsets))
