"""`lowering: mma_sync`: every thread loads and computes, fragment by fragment, on any card from Ampere on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tl_attention.kernels.mma_sync.dialect import PASSES, RULES, TABLE, absent
from tl_attention.kernels.shared.base import NO_BOUND_CHECKS, NO_INIT_CHECKS, Lowering
from tl_attention.problem.card import ARCHS, HOPPER, Card
from tl_attention.problem.features import Feature
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.loop.attention import INNER, SOURCE
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.kernels.mma_sync.resources import FragmentConstants
    from tl_attention.kernels.shared.device_code import DeviceCode
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned
    from tl_attention.program.program import Program

OPTIONS = (
    *(f"kernel.{key}" for key in ("k_stages", "v_stages", "blocks_per_sm", "q_operand", "swizzle", "ldmatrix")),
    *(f"softmax.{key}" for key in ("fused_scale", "rescale_threshold")),
    *(f"split.{statement}" for statement in (*SOURCE.splittable, *INNER)),
    *(f"wait_before.{load}" for load in TABLE.loads),
)
# TileLang would place barriers of its own, load by TMA, and give the loads to a warp of their own.
# It would have V in Q's place where Q is dead to it, which the Program does not know of.
NO_SYNC, NO_TMA, NO_WARP_SPECIALIZATION, NO_REUSE = (
    "tl.disable_thread_storage_sync",
    "tl.disable_tma_lower",
    "tl.disable_warp_specialized",
    "tl.disable_shared_memory_reuse",
)


class MmaSync(Lowering):
    """MmaSync makes kernels whose threads all load and multiply by mma.sync, on every card from Ampere on.

    Waits and barriers stand where the Program has them; statements load what is multiplied from shared memory.
    """

    dialect = Dialect(
        "mma_sync",
        "every thread loads and computes, fragments by ldmatrix, products by mma.sync",
        model="synchronous",
        table=TABLE,
        own_statements=("frag_q", "frag_k", "frag_v"),
        absent=absent,
        options=OPTIONS,
        rules=RULES,
        passes=PASSES,
        emitted=True,
    )
    archs = ARCHS
    pass_configs: ClassVar[Mapping[str, object]] = {
        **Lowering.pass_configs,
        NO_BOUND_CHECKS: True,
        NO_INIT_CHECKS: True,
        NO_SYNC: True,
        NO_TMA: True,
        NO_WARP_SPECIALIZATION: True,
        NO_REUSE: True,
    }

    def computes(self, schedule: Schedule, feature: Feature) -> bool:
        # Its scores and totals lie in plain registers, and nothing changes them yet.
        return feature.acts == "result"

    def resources(self, planned: Planned, size: HeadSize, card: Card = HOPPER) -> Resources:
        from tl_attention.kernels.mma_sync.resources import resources

        return resources(planned, size, card)

    def prove(self, schedule: Schedule, program: Program) -> Iterator[str]:
        from tl_attention.kernels.mma_sync import replay

        # Another model's Program is not what its kernel runs.
        if program.model == self.dialect.model:
            replay.prove(program)
            yield "every copy has arrived where it is read, and none writes over what a warp may still read"

    def device_code(self, schedule: Schedule, variant: Variant) -> Sequence[DeviceCode]:
        from tl_attention.kernels.mma_sync.device_code import device_code

        return device_code(schedule, variant)

    def constants(self, planned: Planned, variant: Variant) -> FragmentConstants:
        from tl_attention.kernels.mma_sync.operations import macro_of
        from tl_attention.kernels.mma_sync.resources import FragmentConstants, schedule_values
        from tl_attention.kernels.shared.constants import variant_values

        device_code = self.device_code(planned.schedule, variant)
        return FragmentConstants(**variant_values(variant, device_code), **schedule_values(planned), macro_of=macro_of)

    def launch(self) -> Any:
        from tl_attention.kernels.mma_sync.kernel import launch

        return launch
