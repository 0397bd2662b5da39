"""`lowering: warp_specialized`: a producer warp loads, warpgroups compute with products in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tl_attention.kernels.shared.base import NO_BOUND_CHECKS, NO_INIT_CHECKS, Lowering
from tl_attention.kernels.shared.wgmma import WGMMA_ARCHS
from tl_attention.kernels.warp_specialized.dialect import PASSES, RULES, TABLE
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.kernels.shared.constants import EmittedConstants
    from tl_attention.kernels.shared.device_code import DeviceCode
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned
    from tl_attention.program.program import Program

OPTIONS = (
    *(f"kernel.{key}" for key in ("k_stages", "v_stages", "tile_scheduler", "tile_order", "blocks_per_sm", "cluster")),
    *(f"kernel.{key}" for key in ("early", "rows_of", "part_blocks")),
    *(f"kernel.{key}" for key in ("ping_pong", "q_operand", "p_operand", "output", "waits", "registers")),
    "softmax",
    *(f"split.{statement}" for statement in ("exp", "row_sum", "cast", "rescale")),
    *(f"wait_before.{product}" for product in TABLE.products),
    *(f"release_before.{load}" for load in TABLE.loads),
)


class WarpSpecialized(Lowering):
    """WarpSpecialized makes kernels in which a producer warp loads and warpgroups compute with products in flight.

    It is the fast one: waits, acquires and releases stand where the Program has them.
    """

    dialect = Dialect(
        "warp_specialized",
        "a producer warp loads, products stay in flight",
        model="asynchronous",
        table=TABLE,
        options=OPTIONS,
        rules=RULES,
        passes=PASSES,
        emitted=True,
    )
    archs = WGMMA_ARCHS
    # It loads by TMA, which checks bounds itself, and checks the rows that it stores; TileLang would check every index
    # of every store again. Its first MMA1 clears acc_o, which may have been scaled before.
    pass_configs: ClassVar[Mapping[str, object]] = {
        **Lowering.pass_configs,
        NO_BOUND_CHECKS: True,
        NO_INIT_CHECKS: True,
    }

    def computes_packed(self, schedule: Schedule) -> bool:
        # A grid of one block for each tile would need to know how many there are.
        return schedule.kernel.tile_scheduler != "one_tile"

    def resources(self, planned: Planned, size: HeadSize, card: Card = HOPPER) -> Resources:
        from tl_attention.kernels.warp_specialized.dialect import resources

        return resources(planned, size, card)

    def prove(self, schedule: Schedule, program: Program) -> Iterator[str]:
        from tl_attention.kernels.warp_specialized.roles import Roles

        # Another model's Program is not what its kernel runs.
        if program.model == self.dialect.model:
            Roles.of(schedule, program).prove()
            yield "the roles of a cluster neither race nor deadlock"

    def device_code(self, schedule: Schedule, variant: Variant) -> Sequence[DeviceCode]:
        from tl_attention.kernels.warp_specialized.device_code import device_code

        return device_code(schedule, variant)

    def constants(self, planned: Planned, variant: Variant) -> EmittedConstants:
        from tl_attention.kernels.shared.constants import EmittedConstants, variant_values
        from tl_attention.kernels.shared.loop import emitted
        from tl_attention.kernels.warp_specialized.dialect import split_registers
        from tl_attention.kernels.warp_specialized.operations import macro_of

        device_code = self.device_code(planned.schedule, variant)
        # Rings go on from tile to tile.
        of_schedule = emitted(planned, rings_of_a_tile=False, registers=split_registers(planned.schedule))
        of_schedule["tile_rows"] = variant.rows_of(planned.schedule.block_M)
        return EmittedConstants(**variant_values(variant, device_code), **of_schedule, macro_of=macro_of)

    def launch(self) -> Any:
        from tl_attention.kernels.warp_specialized.kernel import launch

        return launch

    def asked_by(self, schedule: Schedule) -> tuple[str, ...]:
        kernel = schedule.kernel
        reads_workers = kernel.tile_scheduler != "one_tile" or kernel.tile_order == "tapered"
        return ("workers",) * reads_workers + ("TileCounter",) * (kernel.tile_scheduler == "dynamic")
