"""This module holds what the proofs of all lowerings' generated code share.

That is what is read, at which sizes, what ran, and the verdict.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from tl_attention.codeproof.frame import (
    check_alone,
    check_early,
    check_memory,
    check_prelude,
    check_scalars,
    check_signature,
    check_strides,
)
from tl_attention.codeproof.read.calls import CALLS
from tl_attention.codeproof.read.text import Kernel, read
from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.run.thread_slice import Reading
from tl_attention.codeproof.terms.term import Refused
from tl_attention.codeproof.tiles.row_tiles import Cut
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.tiles.tiles import Product, Tile
from tl_attention.codeproof.verdict import GeneratedCode, Unsafe, Verdict
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.shared.device_code import prelude
from tl_attention.launch.plan import HostPlan
from tl_attention.problem.variant import Sizes
from tl_attention.program.events import Event
from tl_attention.program.program import Program
from tl_attention.schedule.schedule import Schedule


class Proof(ABC):
    """A Proof shows that one generated kernel does what its schedule's Program says at all sizes, or refuses it."""

    def __init__(self, schedule: Schedule, program: Program, code: GeneratedCode):
        self.schedule, self.program, self.code = schedule, program, code
        self.digest = hashlib.sha256()
        self.coverage = Coverage()
        self.at: Any = None

    @cached_property
    def kernel(self) -> Kernel:
        return read(self.code.source, CALLS)

    @property
    def plan(self) -> HostPlan:
        return self.code.plan

    @property
    def workers(self) -> int:
        """Returns how many blocks, or clusters, of a persistent kernel work at once where its problem has numbers."""
        variant = self.code.variant
        return self.schedule.workers(variant.sms or variant.card.sms)

    @property
    def lse(self) -> bool:
        """Says whether the kernel also stores the LSE, the logarithm of each row's sum of exponentials."""
        return "LSE" in self.code.variant.optional

    @property
    @abstractmethod
    def tiles(self) -> dict[str, Tile]:
        """Returns the tiles that the kernel must have as buffers in shared memory, by name."""

    @property
    def operands(self) -> tuple[Tile | str, Tile | str]:
        """Returns the left operands of Q K^T and of P V, each a tile or the name of registers."""
        return self.tiles["Q"], "acc_s_cast"

    @cached_property
    def products(self) -> dict[str, Product]:
        """Returns the kernel's two products, Q K^T and P V, by the names of their accumulators."""
        (q, p), variant, block_N = self.operands, self.code.variant, self.schedule.block_N
        return {
            "acc_s": Product("acc_s", q, self.tiles["K"], block_N, variant.tile_dim, False),
            "acc_o": Product("acc_o", p, self.tiles["V"], variant.tile_dim_v, block_N, True),
        }

    @property
    def rows_are_queries(self) -> bool:
        """Says whether a tile's rows are queries, as they are by default, or keys."""
        return True

    @property
    def results(self) -> dict[str, str]:
        """Returns, by each result of a kernel of gradients, the accumulators that are stored there; {} by default."""
        return {}

    @property
    def barriers(self) -> dict[str, int]:
        """Returns how many mbarriers the kernel must have under each name."""
        return {}

    @property
    def numbers(self) -> dict[str, int]:
        """Returns how many integers the kernel must have in shared memory under each name, mbarriers aside."""
        return {}

    @property
    @abstractmethod
    def rows(self) -> int:
        """Returns how many rows the tiles that share KV blocks have together."""

    @property
    def cut(self) -> Cut:
        """Returns the Cut, by which the kernel cuts problems into row tiles and KV blocks."""
        variant = self.code.variant
        tile = variant.rows_of(self.schedule.block_M), self.schedule.block_N
        return Cut(variant, self.rows, *tile, self.program.least_blocks, self.schedule.kv_order)

    @abstractmethod
    def sizes(self) -> Iterator[Sizes]:
        """Yields the sizes at which the kernel is proved, where sizes are not fixed."""

    @abstractmethod
    def check_terms(self) -> Coverage:
        """Returns the Coverage of runs with terms; raises Unsafe or Refused unless the kernel is right at all sizes."""

    @abstractmethod
    def check_at(self, sizes: Any) -> None:
        """Raises Unsafe or Refused unless blocks make the right events at these sizes, down to registers."""

    def check_code(self) -> None:  # noqa: B027
        """Raises Unsafe for faults that a lowering finds in its kernel without a run; by default checks nothing."""

    def verdict(self) -> Verdict:
        """Runs all checks of the kernel, and returns the verdict; raises ScheduleRefused if one fails."""
        try:
            self._check_frame()
            self.check_code()
            fixed = self.code.variant.sizes
            self.coverage = self.check_terms()
            for sizes in [fixed] if fixed else self.sizes():
                self.at = sizes
                self.check_at(sizes)
            self.at = None
            # Last: a kernel that does not wait is refused for what it does too early.
            check_early(self.kernel, self.plan)
            return self._verdict(fixed is not None)
        except SyntaxError as error:
            raise refusal(f"it cannot be read: {error}") from None
        except InputError as error:
            raise refusal(str(error)) from None
        except (Unsafe, Refused) as error:
            at = "" if self.at is None else f" (batch, heads, seq_q, seq_kv = {', '.join(map(str, self.at[:4]))})"
            raise refusal(f"{error}{at}") from None

    # --- before any run ----------------------------------------------------------------------------------------

    def _check_frame(self) -> None:
        lowering = lowering_of(self.schedule)
        lowering.check_variant(self.schedule, self.code.variant)
        check_alone(self.kernel, self.plan, self.code.variant, self.schedule.kernel.early)
        check_prelude(self.kernel, prelude(lowering.device_code(self.schedule, self.code.variant)))
        check_signature(self.kernel, self.plan, self.code.parameters, self.code.variant.dtype)
        check_scalars(self.kernel, self.code.parameters)
        blocks, wanted = self.kernel.signature.blocks, self.schedule.kernel.blocks_per_sm
        if blocks != wanted:
            raise Unsafe(f"its registers are those of {blocks} blocks on an SM, expected {wanted}")
        check_strides(self.plan, self.code.parameters, self.code.variant.strided)
        check_memory(self.kernel, self.plan, self.tiles)
        declared = self.kernel.declared
        if declared.barriers != self.barriers:
            raise Unsafe(f"its mbarriers are {declared.barriers}, expected {self.barriers}")
        if declared.numbers != self.numbers:
            raise Unsafe(f"its numbers in shared memory are {declared.numbers}")

    # --- for the runs ------------------------------------------------------------------------------------------

    def reading(self, tensors: Mapping[str, Tensor]) -> Reading:
        """Returns how a run with these tensors is read as events: its tiles, its products and its TMA boxes."""
        boxes = {descriptor.name: descriptor.box[0] for descriptor in self.plan.descriptors}
        variant = self.code.variant
        heads, split = (variant.tile_heads, variant.box), variant.parts and variant.packed
        return Reading(
            self.tiles, self.products, tensors, variant.dtype, boxes, variant.parts, split, heads, self.results
        )

    def note(self, run: Run, *streams: Iterable[Event]) -> None:
        """Adds to the coverage a run whose events were all checked, and to the digest its streams of events."""
        self.coverage.note(run)
        self._digest(streams)

    def _digest(self, streams: Iterable[Iterable[Event]]) -> None:
        for stream in streams:
            shown = [(e.kind, e.name, e.index, e.value, e.blocks, e.place, e.reads) for e in stream]
            self.digest.update(repr(shown).encode())

    # --- behind the runs ---------------------------------------------------------------------------------------

    def _verdict(self, fixed: bool) -> Verdict:
        kinds = self.kernel.kinds
        unreached = self.coverage.unreached(self.kernel, fixed)
        lines = range(len(self.kernel.lines))
        return Verdict(tuple(kinds.get(line, "") for line in lines), unreached, self.digest.hexdigest())


def refusal(what: str) -> ScheduleRefused:
    """Returns the ScheduleRefused which says that a generated kernel is not safe, and `what` is wrong."""
    return ScheduleRefused(f"the kernel that TileLang 0.1.15 generates is not safe: {what}")
