"""The schedules that run where none is asked for, by head size and mask."""

from __future__ import annotations

from tl_attention.files.named import DEFAULT, DEFAULT_CAUSAL
from tl_attention.problem.head_dims import HeadSize, sizes_of, tile_size

# By columns of the tiles: without and with a causal mask.
DEFAULTS: dict[HeadSize, tuple[str, str]] = {
    64: (DEFAULT, DEFAULT_CAUSAL),
    96: ("d96", "d96_causal"),
    128: (DEFAULT, DEFAULT_CAUSAL),
    192: ("d192", "d192_causal"),
    "192/128": ("d192_128", "d192_128_causal"),
    256: ("d256", "d256_causal"),
}


def default_schedule(size: HeadSize, causal: bool) -> str:
    """The name of the schedule that runs tensors of a head size; where K and V have tiles of two, the larger decides."""
    tile = tile_size(size)
    return DEFAULTS.get(tile, DEFAULTS[max(sizes_of(tile))])[causal]
