"""Warp-specialised kernels that show every option of the lowering, for tests of what is generated."""

from __future__ import annotations

from typing import Any

from once import Given
from overlap import overlap

from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Variant

# Form, mask, kernel options.
OPTIONS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "ping-pong": ("overlap", CAUSAL, {"ping_pong": True}),
    "dynamic": (
        "overlap",
        CAUSAL,
        {"ping_pong": True, "cluster": 1, "tile_scheduler": "dynamic", "tile_order": "tapered"},
    ),
    "registers": ("one warpgroup", FULL, {"q_operand": "registers", "tile_scheduler": "one_tile"}),
    "three stages": ("three stages", CAUSAL, {"tile_order": "sections", "k_stages": 1}),
    "three warpgroups": ("three warpgroups", FULL, {"v_stages": 1}),
    "P in shared memory": ("three warpgroups", CAUSAL, {"p_operand": "shared", "cluster": 1}),
    "output through Q": ("one warpgroup", FULL, {"output": "tma"}),
}
KERNELS = {
    name: Given(overlap(form, **options), Variant(128, "float16", mask))
    for name, (form, mask, options) in OPTIONS.items()
}
