"""A Call is what one call of `attention` or `attention_varlen` was given: from here on the two are one path.

What differs stands in the classes of where tensors lie, `Batch` and `Packed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from tl_attention.op.unknown import unknown_argument
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import OPEN
from tl_attention.schedule.schedule import Schedule

# A NamedTuple's own constructor takes twice the host's time.
made = tuple.__new__
# The window of a call that names none, known by its identity.
NO_WINDOW = (OPEN, OPEN)
# A call's value for each feature that it gives to the kernel, in the order of INPUTS: a number, or a tensor or None.
Values = tuple[Any, ...]
OFF: Values = tuple(feature.off if feature.is_number else None for feature in INPUTS)
PLACES = {feature.word: place for place, feature in enumerate(INPUTS)}
# The schedules of loops dq and dkdv, which compute gradients.
Pair = tuple[Schedule | str | Path, Schedule | str | Path]
# The output, or (output, LSE).
Result = Tensor | tuple[Tensor, Tensor]


class Keywords(TypedDict, total=False):
    """Keywords types the keyword arguments that `attention` and `attention_varlen` share.

    `return_lse` is none of them, as it says what comes back.
    """

    causal: bool
    scale: float | None
    window_size: tuple[int, int]
    softcap: float
    sinks: Tensor | None
    out: Tensor | None
    schedule: Schedule | str | Path | None
    invariant: bool | None


class Call(NamedTuple):
    """A Call holds the arguments of one call as they were given."""

    q: Tensor
    k: Tensor
    v: Tensor
    # A `Batch`, and then q, k and v are (batch, heads, rows, columns) in its layout; or a `Packed`, and they are (rows,
    # heads, columns).
    where: Any
    values: Values = OFF
    out: Tensor | None = None
    schedule: Schedule | str | Path | None = None
    scale: float | None = None
    causal: bool = False
    window_size: tuple[int, int] = NO_WINDOW
    return_lse: bool = False
    invariant: bool | None = None
    specialize: bool = False
    zero_unused: bool = False
    check: bool = False
    in_parts: bool = True  # False: all keys are computed at once
    backward: Pair | None = None

    def results(self, has_lse: bool, like_q: bool = False) -> tuple[Tensor, Tensor | None]:
        """Returns tensors for the output, which is `out` if it is given, and for the LSE, None without one.

        With `like_q` the output has the sizes and strides of q.
        """
        q, out = self.q, self.out
        if out is None:
            # The first takes less of the host's time.
            out = torch.empty_like(q) if like_q else q.new_empty((*q.shape[:-1], self.v.shape[-1]))
        return out, q.new_empty(self.where.sizes_of_lse(q), dtype=torch.float32) if has_lse else None

    @property
    def tensors_of_features(self) -> dict[str, Tensor]:
        """Returns a dict of the tensors that the call gives for features, such as `sinks`, by the feature's word."""
        values = zip(INPUTS, self.values, strict=True)
        return {f.word: value for f, value in values if not f.is_number and value is not None}


def values_of(features: dict[str, Any], function: str = "attention", keywords: type = Keywords) -> Values:
    """Returns the values of the features that a function was given by name; unknown keywords raise an error.

    Raises InputError for the first name that is no feature; `keywords` types all that the function has.
    """
    if not features:
        return OFF
    values = [*OFF]
    for word, value in features.items():
        if word not in PLACES:
            raise unknown_argument(function, [word], [*keywords.__annotations__, "return_lse"])
        values[PLACES[word]] = value
    return tuple(values)
