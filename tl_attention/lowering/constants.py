"""The namespace `c` that the macros of every kernel read: all that is known when the kernel is traced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tl_attention.problem.variant import Variant


def constants(variant: Variant, **of_schedule: Any) -> SimpleNamespace:
    """What the variant fixes, beside what the schedule does. A tile of a narrow tensor has more columns than the tensor."""
    # Late: it imports tilelang.
    from tl_attention.lowering.features import Places

    return SimpleNamespace(
        features=Places.of(variant.optional),
        dtype=variant.dtype,
        head_dim=variant.tile_dim,
        head_dim_v=variant.tile_dim_v,
        columns_v=variant.head_dim_v,
        narrow=variant.narrow,
        group=variant.group,
        strided=variant.strided,
        sms=variant.sms,
        mask=variant.mask,
        **of_schedule,
    )
