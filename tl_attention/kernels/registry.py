"""All lowerings stand here by name. To add one: its folder, a line here, and its proof in `codeproof/registry.py`."""

from __future__ import annotations

from tl_attention.kernels.backward.lowering import GRADIENTS
from tl_attention.kernels.mma_sync.lowering import MmaSync
from tl_attention.kernels.pipelined.inferred import Inferred
from tl_attention.kernels.pipelined.lowering import Pipelined
from tl_attention.kernels.shared.base import Lowering
from tl_attention.kernels.warp_specialized.lowering import WarpSpecialized
from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import register
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule

LOWERINGS: dict[str, Lowering] = {
    lowering.dialect.name: lowering for lowering in (Pipelined(), WarpSpecialized(), MmaSync(), Inferred())
}
# Of every loop by its name; the lowerings above are the forward's.
OF_LOOPS: dict[str, dict[str, Lowering]] = {
    FORWARD: LOWERINGS,
    **{lowering.dialect.loop: {lowering.dialect.name: lowering} for lowering in GRADIENTS},
}
for _lowerings in OF_LOOPS.values():
    for _lowering in _lowerings.values():
        register(_lowering.dialect)


def lowering_of(schedule: Schedule) -> Lowering:
    """Returns the Lowering that the schedule names, for its loop.

    Raises InputError that lists the known ones, where its name was not checked.
    """
    return OF_LOOPS[schedule.loop][schedule.dialect.name]


def parameters_of(schedule: Schedule, variant: Variant) -> tuple[Parameter, ...]:
    """Returns the parameters of the schedule's kernel for a variant, with those that its schedule asks for."""
    return variant.parameters(*lowering_of(schedule).asked_by(schedule))
