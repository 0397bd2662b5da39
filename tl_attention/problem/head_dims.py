"""Kernels have tiles of a few head sizes; a tensor of any other head size is loaded into the next larger tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from tl_attention.errors import InputError, shown

# The head size of a whole case: a number, or `192/128` where V and the output have another one than Q and K.
HeadSize = int | str
# The head sizes that schedules may be meant for, in columns of tiles. DeepSeek's latent attention has 192/128.
TileSize = Literal[64, 96, 128, 192, "192/128", 256]
TILE_SIZES: tuple[TileSize, ...] = get_args(TileSize)
# Columns of a tile in shared memory. A column beyond the tensor's is 0: TMA fills it.
TILE_DIMS = tuple(size for size in TILE_SIZES if isinstance(size, int))
# What a schedule is meant for unless it says so.
DEFAULT_HEAD_DIMS: tuple[TileSize, ...] = (64, 128)
# A tensor's head size is a multiple of this: its rows are multiples of 16 bytes, as TMA and 16-byte copies need.
MULTIPLE = 8
SUPPORTED = f"a multiple of {MULTIPLE} up to {TILE_DIMS[-1]}"


def check_head_dim(head_size: HeadSize) -> None:
    """Raises InputError unless both head dimensions are multiples of 8 from 8 to 256."""
    for name, head_dim in zip(("head_dim", "head_dim_v"), sizes_of(head_size)):
        if isinstance(head_dim, bool) or not 0 < head_dim <= TILE_DIMS[-1] or head_dim % MULTIPLE:
            raise InputError(f"{name} {shown(head_dim)} is not supported, expected {SUPPORTED}")


def head_size(head_dim: int, head_dim_v: int) -> HeadSize:
    """Returns the head size of two head dimensions, a number if they are equal, else a text such as `192/128`."""
    return head_dim if head_dim == head_dim_v else f"{head_dim}/{head_dim_v}"


def sizes_of(head_size: HeadSize) -> tuple[int, int]:
    """Returns (head_dim, head_dim_v) of a head size, which is a number or a text such as `192/128`."""
    if isinstance(head_size, int):
        return head_size, head_size
    head_dim, _, head_dim_v = head_size.partition("/")
    return int(head_dim), int(head_dim_v)


def parse_head_size(text: str) -> HeadSize:
    """Returns the head size that a text, such as `128` or `192/128`, names. Raises ValueError."""
    head_dim, slash, head_dim_v = text.partition("/")
    size = head_size(int(head_dim), int(head_dim_v if slash else head_dim))
    if min(sizes_of(size)) < 1:
        raise ValueError(text)
    return size


def tile_dim(head_dim: int) -> int:
    """Returns how many columns the narrowest tile has that holds a tensor of this head dimension."""
    return next(columns for columns in TILE_DIMS if head_dim <= columns)


def tile_size(size: HeadSize) -> HeadSize:
    """Returns the head size of the narrowest tiles that hold tensors of this head size."""
    head_dim, head_dim_v = sizes_of(size)
    return head_size(tile_dim(head_dim), tile_dim(head_dim_v))


def is_meant(size: HeadSize, meant: Sequence[HeadSize]) -> bool:
    """Returns True if a schedule that is meant for the tile sizes `meant` serves tensors of this head size.

    A schedule for 192 runs 192/128 too.
    """
    tile = tile_size(size)
    return tile in meant or max(sizes_of(tile)) in meant


def named_head_dims(sizes: Sequence[HeadSize]) -> str:
    """Returns head sizes in words, such as `head_dim 64 and 128`, or `head_dim 64, 96 and 128`."""
    *others, last = map(str, sizes)
    return f"head_dim {', '.join(others)} and {last}" if others else f"head_dim {last}"
