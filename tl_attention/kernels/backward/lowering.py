"""`loop: dq` and `loop: dkdv`: a producer warp loads, warpgroups compute gradients with products in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tl_attention.kernels.backward.dialect import dialect
from tl_attention.kernels.shared.base import NO_BOUND_CHECKS, NO_INIT_CHECKS, Lowering
from tl_attention.kernels.shared.wgmma import WGMMA_ARCHS
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.mask import is_window
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.kernels.shared.constants import EmittedConstants
    from tl_attention.kernels.shared.device_code import DeviceCode
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned
    from tl_attention.program.program import Program


HEAD_DIMS = (64, 128)


class Gradient(Lowering):
    """Gradient makes kernels that compute gradients of one loop, without atomics and without what other blocks do.

    Waits, acquires and releases stand where the Program has them.
    """

    archs = WGMMA_ARCHS
    # It loads by TMA, and checks the rows that it stores. A tile's first product clears its accumulators.
    pass_configs: ClassVar[Mapping[str, object]] = {
        **Lowering.pass_configs,
        NO_BOUND_CHECKS: True,
        NO_INIT_CHECKS: True,
    }

    def resources(self, planned: Planned, size: HeadSize, card: Card = HOPPER) -> Resources:
        from tl_attention.kernels.warp_specialized.dialect import resources

        return resources(planned, size, card)

    def check_variant(self, schedule: Schedule, variant: Variant) -> None:
        super().check_variant(schedule, variant)
        lacking = {
            f"head_dim {variant.head_size}": variant.head_size not in HEAD_DIMS,
            "strided tensors": variant.strided and not variant.packed,
            "windows": is_window(variant.mask),
            "a ratio of heads that the launch says": variant.group is None,
            ", ".join(sorted(variant.optional)): variant.optional,
        }
        self._refuse([words for words, asked in lacking.items() if asked])

    def computes_packed(self, schedule: Schedule) -> bool:
        return True

    def prove(self, schedule: Schedule, program: Program) -> Iterator[str]:
        from tl_attention.kernels.backward.roles import GradientRoles

        # The rings go on from a head to the next as from a tile to the next; what is resident stays.
        for group in (1, 2):
            GradientRoles.of(schedule, program, group=group).prove()
        yield "the roles of a thread block neither race nor deadlock"

    def device_code(self, schedule: Schedule, variant: Variant) -> Sequence[DeviceCode]:
        from tl_attention.kernels.backward.packed import LIST_SEQUENCES, apart
        from tl_attention.kernels.shared.device_code import STORE, STRIDED_STORE, read_device_code
        from tl_attention.kernels.warp_specialized.device_code import HAND_OVER, TIME_OF_TILES

        facts = [read_device_code(__file__, "row_facts")] if variant.loop == "dq" else []
        if not variant.packed:
            return [STORE, *facts]
        return [STRIDED_STORE, *map(apart, facts), TIME_OF_TILES, LIST_SEQUENCES, HAND_OVER]

    def constants(self, planned: Planned, variant: Variant) -> EmittedConstants:
        from tl_attention.kernels.backward.constants import constants

        return constants(planned, variant, self.device_code(planned.schedule, variant))

    def launch(self) -> Any:
        from tl_attention.kernels.backward.kernel import launch

        return launch


class Dq(Gradient):
    """Dq makes kernels that compute the gradient of Q, and D = rowsum(dO * O), with tiles of queries."""

    dialect = dialect("dq", "a producer warp loads, products stay in flight; computes the gradient of Q")


class Dkdv(Gradient):
    """Dkdv makes kernels that compute the gradients of K and V, with tiles of keys."""

    dialect = dialect("dkdv", "a producer warp loads, products stay in flight; computes the gradients of K and V")


# Of every loop of gradients.
GRADIENTS = (Dq(), Dkdv())
