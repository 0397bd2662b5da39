"""Macros of a kernel know its constants as `c`: they are all that is known when the kernel is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tl_attention.kernels.shared.device_code import DeviceCode, prelude
from tl_attention.problem.mask import Mask
from tl_attention.problem.variant import Variant
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions

if TYPE_CHECKING:
    from tl_attention.kernels.shared.features import FeaturePlaces
    from tl_attention.kernels.shared.loop import EmittedLoop


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants are the values that a kernel is traced with, such as its dtype, mask and tile sizes.

    They are fixed by the variant, and by the schedule's tile.
    """

    variant: Variant
    device_code: Sequence[DeviceCode]  # stands before the kernel
    features: FeaturePlaces
    dtype: str
    head_dim: int  # the tile's columns of Q and K
    head_dim_v: int  # its columns of V
    columns_v: int  # V's own
    narrow: bool  # whether a tensor has fewer columns than its tile
    group: int | None
    strided: bool
    packed: bool
    parts: bool
    tile_heads: int
    box: int
    idle_rows: int
    key_box: int
    traced: bool
    invariant: bool
    mask: Mask
    block_M: int
    block_N: int

    @property
    def prelude(self) -> str:
        """Returns the CUDA text that stands before the kernel."""
        return prelude(self.device_code)


@dataclass(frozen=True, kw_only=True)
class EmittedConstants(Constants):
    """EmittedConstants are Constants with the loop and options of a kernel that is emitted operation by operation."""

    loop: EmittedLoop
    kernel: KernelOptions  # no option is left open
    softmax: SoftmaxOptions
    rings_of_a_tile: bool  # whether rings of several buffers begin anew with each tile
    tile_rows: int  # rows that a tile has of each of its heads
    macro_of: Callable[..., Any]  # called with (op, c), gives an operation's macro


def variant_values(variant: Variant, device_code: Sequence[DeviceCode]) -> dict[str, Any]:
    """Returns, by name, the constants of a kernel that its variant determines, such as the mask. Imports tilelang."""
    from tl_attention.kernels.shared.features import FeaturePlaces

    of_kernel = {
        "variant": variant,
        "device_code": device_code,
        "features": FeaturePlaces.of(variant.acting),
        "head_dim": variant.tile_dim,
        "head_dim_v": variant.tile_dim_v,
        "columns_v": variant.head_dim_v,
        "traced": bool(variant.trace),
    }
    # The others are the variant's own, by its name for them.
    names = (field.name for field in fields(Constants) if hasattr(variant, field.name))
    return {name: getattr(variant, name) for name in names} | of_kernel
