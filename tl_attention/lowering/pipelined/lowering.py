"""`lowering: pipelined`: T.Pipelined with the schedule's order and stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tl_attention.hardware.card import HOPPER, Card
from tl_attention.lowering.base import COMMON_FILES, Lowering
from tl_attention.lowering.wgmma import THREADS_FIT_THE_TILE, WGMMA_ARCHS, plain_resources
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.program.program import Program
    from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
    from tl_attention.proof.limits import Resources


class Pipelined(Lowering):
    """The plain form, and the baseline: every product is waited for at once, and TileLang places the waits."""

    dialect = Dialect(
        "pipelined", "T.Pipelined with this order and stage", model="synchronous", rules=THREADS_FIT_THE_TILE
    )
    archs = WGMMA_ARCHS
    files = (
        "lowering/pipelined/kernel.py",
        "lowering/pipelined/macros.py",
        "lowering/softmax.py",
        "lowering/device_code.py",
        *COMMON_FILES,
    )

    def resources(self, schedule: Schedule, size: HeadSize, card: Card = HOPPER) -> Resources:
        return plain_resources(schedule, size, card)

    def arguments(self, schedule: Schedule) -> dict[str, Any]:
        from tl_attention.lowering.pipelined.arguments import arguments

        return arguments(schedule)

    def prim_func(self, arguments: Mapping[str, Any], variant: Variant) -> Any:
        from tl_attention.lowering.pipelined.kernel import attention_kernel

        return attention_kernel(variant=variant, **arguments)

    def check_generated(self, schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
        from tl_attention.lowering.pipelined import generated

        return generated.check(schedule, program, code)
