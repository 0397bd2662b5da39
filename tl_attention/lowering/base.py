"""A lowering is everything that turns a schedule, and its Program, into a kernel that is proved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tl_attention.errors import ScheduleRefused
from tl_attention.hardware.card import HOPPER, Card
from tl_attention.problem.features import Feature, features_of
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.shape import AttentionShape, Unusual
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.lowering.constants import Constants
    from tl_attention.program.planned import Planned
    from tl_attention.program.program import Program
    from tl_attention.proof.code.verdict import GeneratedCode, Verdict
    from tl_attention.proof.limits import Resources

# Options of TileLang's compiler.
FAST_MATH = "tl.enable_fast_math"
NO_BOUND_CHECKS = "tl.disable_safe_memory_legalize"
NO_INIT_CHECKS = "tl.disable_buffer_init_check"


class Lowering(ABC):
    """A lowering is one way from a schedule to a kernel. `registry.py` has them all; nothing else knows one by its name.

    `dialect` is how schedules see it. `pass_configs` are TileLang's options for its kernels, `archs` the cards that it is
    compiled for.

    Every process imports the lowerings, for their dialects, also one that calls a kernel which was finished before: what
    makes and proves kernels is imported by the methods that do so.
    """

    dialect: ClassVar[Dialect]
    archs: ClassVar[tuple[str, ...]]
    pass_configs: ClassVar[Mapping[str, object]] = {FAST_MATH: True}

    @abstractmethod
    def resources(self, planned: Planned, size: HeadSize, card: Card = HOPPER) -> Resources:
        """Returns what one thread block of the schedule's kernel takes of an SM of the card."""

    def computes(self, schedule: Schedule, feature: Feature) -> bool:
        """Says whether the schedule's kernel computes a feature."""
        return True

    def computes_lengths(self, schedule: Schedule, unusual: Unusual) -> bool:
        """Says whether the schedule's kernel computes what the lengths of a problem ask."""
        return False

    def check_lengths(self, schedule: Schedule, shape: AttentionShape) -> None:
        """Raises ScheduleRefused for a problem whose lengths ask what the schedule's kernel does not compute."""
        self._refuse([unusual for unusual in shape.unusual if not self.computes_lengths(schedule, unusual)])

    def check_variant(self, schedule: Schedule, variant: Variant) -> None:
        """Raises ScheduleRefused for features or fixed sizes of a variant that the schedule's kernel does not compute."""
        self._refuse([f.words for f in features_of(variant.optional) if not self.computes(schedule, f)])
        if variant.sizes:
            self.check_lengths(schedule, AttentionShape.of(variant, variant.sizes))

    def _refuse(self, lacking: Sequence[str]) -> None:
        """Raises ScheduleRefused with what the lowering does not compute, unless `lacking` is empty."""
        if lacking:
            raise ScheduleRefused(
                f"{', '.join(lacking)}, which lowering {self.dialect.name} does not compute", "lowering"
            )

    def prove(self, schedule: Schedule, program: Program) -> Iterator[str]:
        """Proves what must hold of the kernel beyond the dependences of the Program, and yields each in words.

        Raises ScheduleRefused where something does not.
        """
        yield from ()

    @abstractmethod
    def constants(self, planned: Planned, variant: Variant) -> Constants:
        """Returns what schedule and variant fix of the kernel: plain values, which a submission carries. Imports tilelang."""

    @abstractmethod
    def launch(self) -> Any:
        """Returns the macro in which kernels begin, which takes the tensors and the constants. Imports tilelang."""

    def prim_func(self, planned: Planned, variant: Variant) -> Any:
        """Returns the TileLang program of a schedule's kernel. Imports tilelang."""
        from tl_attention.lowering.signature import prim_func

        return prim_func(self.launch(), self.constants(planned, variant), variant, self.counters(planned.schedule))

    def counters(self, schedule: Schedule) -> tuple[str, ...]:
        """Returns the names of the counters among the parameters of the schedule's kernel."""
        return ()

    @abstractmethod
    def check_generated(self, schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
        """Proves the generated code. Raises ScheduleRefused where it is not what the Program says, or races.

        Arithmetic on registers, which scores a mask hides, and which register is which element, are not read: that is
        for the numbers to show. docs/DESIGN.md has the list.
        """
