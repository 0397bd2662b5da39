"""`loop: dq` and `loop: dkdv`: a producer warp loads, warpgroups compute gradients with products in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tl_attention.kernels.backward.dialect import dialect
from tl_attention.kernels.shared.base import NO_BOUND_CHECKS, NO_INIT_CHECKS, Lowering
from tl_attention.kernels.shared.wgmma import WGMMA_ARCHS
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.variant import COUNTER, GRADIENT_PARAMETERS, Variant
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.kernels.shared.constants import EmittedConstants
    from tl_attention.kernels.shared.device_code import DeviceCode
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned
    from tl_attention.program.program import Program


# Accumulators of more columns do not fit beside the fragments.
WIDEST = 128
# Makes D of rowsum(dO * O) and the gradient of the LSE: no row without an LSE, nor behind the last, has one.
LESS_D_LSE = (
    "D is rowsum(dO * O) less the gradient of the LSE.",
    (
        "float* row_d, int rows)",
        "float* row_d, const float* d_lse,\n                                                       int rows)",
    ),
    ("    lse[half] =", "    if (exponent < __int_as_float(0x7f800000)) sum -= d_lse[row];\n    lse[half] ="),
)


def _capped(schedule: Schedule) -> bool:
    """Says whether scores are changed, masked and made P with nothing in between, so that one macro may do it all."""
    groups = [{*map(whole, group)} for group in schedule.group]
    of_scores = [group for group in groups if group & {"mask", "exp", "cast_p"}]
    return len(of_scores) == 1 and "ds" not in of_scores[0]


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
        unknown = variant.optional - {p.name for p in GRADIENT_PARAMETERS[variant.loop] if p.optional}
        lacking = {
            f"head_dim {variant.head_size}": max(variant.head_dim, variant.head_dim_v) > WIDEST,
            "a ratio of heads that the launch says": variant.group is None,
            ", ".join(sorted(unknown)): unknown,
            "softcap where mask, exp and cast_p are not in one group": (
                "softcap" in variant.optional and not _capped(schedule)
            ),
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

    def asked_by(self, schedule: Schedule) -> tuple[str, ...]:
        return (COUNTER.name,) * (schedule.kernel.tile_scheduler == "dynamic")

    def device_code(self, schedule: Schedule, variant: Variant) -> Sequence[DeviceCode]:
        from tl_attention.kernels.backward.packed import LIST_SEQUENCES, apart
        from tl_attention.kernels.shared.device_code import STORE, STRIDED_STORE, code_of_features, read_device_code
        from tl_attention.kernels.warp_specialized.device_code import (
            HAND_OVER,
            STORE_COLUMNS,
            STRIDED_STORE_COLUMNS,
            TIME_OF_TILES,
        )

        strided = variant.strided
        facts = read_device_code(__file__, "row_facts")
        facts = facts.replaced(*LESS_D_LSE) if "dLSE" in variant.optional else facts
        return [
            STRIDED_STORE if strided else STORE,
            *([STRIDED_STORE_COLUMNS if strided else STORE_COLUMNS] if variant.narrow else []),
            *([apart(facts) if strided else facts] if variant.loop == "dq" else []),
            *((TIME_OF_TILES, LIST_SEQUENCES, HAND_OVER) if variant.packed else ()),
            *code_of_features(variant),
        ]

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
