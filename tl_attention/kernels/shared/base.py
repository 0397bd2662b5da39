"""A lowering is everything that turns a schedule, and its Program, into a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.features import Feature, features_of, keep_heads_apart
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.shape import AttentionShape, Unusual
from tl_attention.problem.variant import Variant
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.kernels.shared.constants import Constants
    from tl_attention.kernels.shared.device_code import DeviceCode
    from tl_attention.program.limits import Resources
    from tl_attention.program.planned import Planned
    from tl_attention.program.program import Program

# Options of TileLang's compiler.
FAST_MATH = "tl.enable_fast_math"
NO_BOUND_CHECKS = "tl.disable_safe_memory_legalize"
NO_INIT_CHECKS = "tl.disable_buffer_init_check"


class Lowering(ABC):
    """A Lowering is one way to turn a schedule into a TileLang kernel.

    `registry.py` lists all of them, and `codeproof/registry.py` the proof of what each generates.

    Every process imports the lowerings, for their dialects, also one that calls a kernel which was finished before. So
    only the methods that make kernels import what they need for that.
    """

    dialect: ClassVar[Dialect]  # how schedules see it
    archs: ClassVar[tuple[str, ...]]  # the cards that it is compiled for
    pass_configs: ClassVar[Mapping[str, object]] = {FAST_MATH: True}  # TileLang's options for its kernels

    @abstractmethod
    def resources(self, planned: Planned, size: HeadSize, card: Card = HOPPER) -> Resources:
        """Returns the registers, shared memory and mbarriers that one block of the kernel takes of the card's SM."""

    def computes(self, schedule: Schedule, feature: Feature) -> bool:
        """Returns True if the schedule's kernel computes this feature of a call, such as softcap, sinks or the LSE.

        The default is True.
        """
        return True

    def computes_lengths(self, schedule: Schedule, unusual: Unusual) -> bool:
        """Returns True if the schedule's kernel computes problems of an unusual kind, such as rows without a key.

        The default is False.
        """
        return False

    def check_lengths(self, schedule: Schedule, shape: AttentionShape) -> None:
        """Raises ScheduleRefused if the kernel does not compute the shape's unusual lengths, or its rows without a key.

        Unusual lengths are different ones, and 0; `computes_lengths` says which of these the schedule's kernel
        computes.
        """
        if shape.packed:
            self.check_packed(schedule)
            return
        self._refuse([unusual for unusual in shape.unusual if not self.computes_lengths(schedule, unusual)])

    def computes_packed(self, schedule: Schedule) -> bool:
        """Returns True if the schedule's kernel computes packed sequences, and with these any lengths."""
        return False

    def check_packed(self, schedule: Schedule) -> None:
        """Raises ScheduleRefused if the schedule's kernel does not compute packed sequences."""
        self._refuse([] if self.computes_packed(schedule) else ["packed sequences"])

    def check_variant(self, schedule: Schedule, variant: Variant) -> None:
        """Raises ScheduleRefused if the schedule's kernel does not compute the variant's loop, features or sizes."""
        if schedule.loop != variant.loop:
            raise ScheduleRefused(f"it orders loop {schedule.loop}, expected a schedule of loop {variant.loop}", "loop")
        if variant.packed:
            self.check_packed(schedule)
            self._refuse(["packed sequences of fixed sizes"] if variant.sizes else [])
        asked = features_of(variant.optional)
        kernel = schedule.kernel
        of_group = variant.tile_heads > 1
        grouped, split = kernel.rows_of == "group", kernel.part_blocks is not None
        if variant.packed:
            grouped, split = schedule.groups_heads, schedule.splits_sequences
        if (of_group and not grouped) or (variant.parts and not split):
            raise ValueError(f"{variant} of {schedule.label}, expected what its rows_of and part_blocks allow")
        if of_group and keep_heads_apart(asked):
            per_head = ", ".join(feature.words for feature in asked if keep_heads_apart([feature]))
            self._refuse([f"{per_head} with rows of several heads in a tile"])
        self._refuse(["fixed sizes in parts of the keys"] if variant.sizes and variant.parts else [])
        self._refuse([f.words for f in asked if not self.computes(schedule, f)])
        if variant.sizes:
            self.check_lengths(schedule, AttentionShape.of(variant, variant.sizes))

    def _refuse(self, lacking: Sequence[str]) -> None:
        """Raises ScheduleRefused that lists the words in `lacking`; does nothing if `lacking` is empty."""
        if lacking:
            raise ScheduleRefused(
                f"{', '.join(lacking)}, which lowering {self.dialect.name} does not compute", "lowering"
            )

    def prove(self, schedule: Schedule, program: Program) -> Iterator[str]:
        """Proves the lowering's own safety conditions of a Program, and yields each that holds as a phrase in words.

        They come on top of the Program's dependences; by default there are none. Raises ScheduleRefused where one does
        not hold.
        """
        yield from ()

    @abstractmethod
    def device_code(self, schedule: Schedule, variant: Variant) -> Sequence[DeviceCode]:
        """Returns the CUDA device functions that stand before the schedule's kernel for a variant, in their order.

        The kernel and its proof both ask for them here.
        """

    @abstractmethod
    def constants(self, planned: Planned, variant: Variant) -> Constants:
        """Returns the Constants that a schedule and a variant determine for the kernel, such as tile sizes and mask.

        Imports tilelang.
        """

    @abstractmethod
    def launch(self) -> Any:
        """Returns the TileLang macro that launches the kernel; it takes the kernel's parameters and its constants.

        Imports tilelang.
        """

    def prim_func(self, planned: Planned, variant: Variant) -> Any:
        """Returns the TileLang prim_func of the kernel for a planned schedule and a variant. Imports tilelang."""
        from tl_attention.kernels.shared.signature import prim_func

        return prim_func(self.launch(), self.constants(planned, variant), variant, self.asked_by(planned.schedule))

    def asked_by(self, schedule: Schedule) -> tuple[str, ...]:
        """Returns the names of the optional parameters that a schedule's kernels take, () by default."""
        return ()
