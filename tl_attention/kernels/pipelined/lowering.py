"""`lowering: pipelined`: T.Pipelined with the schedule's order and stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tl_attention.kernels.shared.base import Lowering
from tl_attention.kernels.shared.wgmma import WGMMA_ARCHS, plain_resources, threads_fit_the_tile
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.kernels.pipelined.constants import PipelinedConstants
    from tl_attention.kernels.shared.device_code import DeviceCode
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned


class Pipelined(Lowering):
    """Pipelined makes kernels out of T.Pipelined with the schedule's order and stage; TileLang places the waits.

    It is the baseline: every product is waited for at once.
    """

    dialect = Dialect(
        "pipelined", "T.Pipelined with this order and stage", model="synchronous", rules=(threads_fit_the_tile,)
    )
    archs = WGMMA_ARCHS

    def resources(self, planned: Planned, size: HeadSize, card: Card = HOPPER) -> Resources:
        return plain_resources(planned, size, card)

    def device_code(self, schedule: Schedule, variant: Variant) -> Sequence[DeviceCode]:
        from tl_attention.kernels.shared.device_code import code_of_totals

        return code_of_totals(variant)

    def constants(self, planned: Planned, variant: Variant) -> PipelinedConstants:
        from tl_attention.kernels.pipelined.constants import constants

        return constants(planned, variant, self.device_code(planned.schedule, variant))

    def launch(self) -> Any:
        from tl_attention.kernels.pipelined.kernel import launch

        return launch
