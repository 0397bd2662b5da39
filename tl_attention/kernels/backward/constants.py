"""A kernel of gradients knows these constants, which its schedule and its variant determine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tl_attention.kernels.backward.operations import macro_of
from tl_attention.kernels.shared.constants import EmittedConstants, variant_values
from tl_attention.kernels.shared.device_code import DeviceCode
from tl_attention.kernels.shared.loop import emitted
from tl_attention.kernels.warp_specialized.dialect import split_registers
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.loop.table import Statement, symbol


@dataclass(frozen=True, kw_only=True)
class GradientConstants(EmittedConstants):
    """GradientConstants are an emitted kernel's constants, with the facts of its loop's Table that macros ask for."""

    statements: Mapping[str, Statement]
    products: Sequence[str]
    rings: Sequence[str]  # names of buffers
    residents: Sequence[str]  # likewise
    ring_of: Mapping[str, str]  # by load, the name in the kernel's state of the ring that it fills
    resident_of: Mapping[str, str]  # by load, likewise of what is resident
    columns: Mapping[str, int]  # of accumulators
    members: int  # heads of Q that add to the accumulators of one tile


def constants(planned: Planned, variant: Variant, device_code: Sequence[DeviceCode]) -> GradientConstants:
    """Returns the constants of the planned schedule's kernel for a variant. Imports tilelang."""
    schedule = planned.schedule
    table = schedule.table
    of_keys = table.rows == "keys"
    of_schedule = emitted(planned, rings_of_a_tile=False, registers=split_registers(schedule), cluster=1)
    of_variant = variant_values(variant, device_code)
    sizes = {"block_N": schedule.block_N, "head_dim": variant.tile_dim, "head_dim_v": variant.tile_dim_v}
    return GradientConstants(
        **of_variant | {"mask": variant.mask.transposed if of_keys else variant.mask},
        **of_schedule,
        macro_of=macro_of,
        statements=table.by_name,
        products=table.products,
        rings=tuple(table.rings),
        residents=tuple(buffer.name for buffer in table.residents),
        ring_of={load: symbol(table.ring_of(load)) for load in table.loads},
        resident_of={buffer.load: buffer.symbol for buffer in table.residents},
        columns={
            buffer.name: sizes[str(buffer.columns)] for buffer in table.buffers if buffer.name in table.accumulators
        },
        members=variant.some_group if of_keys else 1,
    )
