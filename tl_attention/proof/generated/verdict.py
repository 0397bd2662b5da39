"""What the checks of generated code share: what is read, the verdict, and the lengths of the loops that are unrolled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.variant import Parameter, Sizes, Variant
from tl_attention.program.program import Program
from tl_attention.proof.generated.expression import UNREADABLE
from tl_attention.proof.generated.host_plan import parse_host_source
from tl_attention.proof.generated.reader import allocated_slots
from tl_attention.schedule.schedule import Schedule

# (seq_q, seq_kv) that fit no tile, so that blocks at the diagonal and at the end of the keys are masked: a loop of
# their own in the generated code, which multiples of the tile never enter.
RAGGED = ((700, 2500), (640, 740), (129, 192), (1, 300), (5, 7), (1000, 1777), (1, 1), (63, 63))

SIGNATURE = re.compile(r"__launch_bounds__\(\d+, \d+\) \w+\((.*)\) \{")


@dataclass(frozen=True)
class GeneratedCode:
    """What TileLang made of a schedule, and for what: the device's CUDA and the host's C, each whole."""

    source: str
    host_source: str
    variant: Variant
    parameters: tuple[Parameter, ...]

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one block, off the launch. Raises InputError where that cannot be read."""
        return parse_host_source(self.host_source).shared_bytes


@dataclass(frozen=True)
class Verdict:
    """Of generated code that is accepted; a refusal is ScheduleRefused.

    `kinds` says of every line of the source what it is read as, and is "" outside the kernel's body; `unreached` has
    the numbers, from 0, of the lines that can never run. `digest` is that of all events, coordinates and bytes.
    """

    kinds: tuple[str, ...]
    unreached: tuple[int, ...]
    digest: str


def lengths(schedule: Schedule, program: Program) -> list[tuple[int, int]]:
    """(seq_q, seq_kv) of loops from one block to beyond the Program's span, and of ragged ones, causal or not."""
    counts = [*range(1, program.span + 2), 2 * program.span + 2]
    return [*((min(schedule.block_M, n * schedule.block_N), n * schedule.block_N) for n in counts), *RAGGED]


def sizes_to_prove(
    schedule: Schedule, program: Program, variant: Variant, heads: int = 1, longer: Sequence[tuple[int, int]] = ()
) -> Iterator[Sizes]:
    """The sizes that the variant is fixed to; else this many heads of all `lengths`, and of `longer` ones."""
    if variant.sizes:
        yield variant.sizes
        return
    for seq_q, seq_kv in (*lengths(schedule, program), *longer):
        yield Sizes(1, heads, seq_q, seq_kv)


def check_buffers(schedule: Schedule, program: Program, code: GeneratedCode) -> None:
    """The generated code gives each ring the buffers that the Program has."""
    rings, slot_bytes = program.table.rings, schedule.block_N * code.variant.head_dim * DTYPE_BYTES
    found = allocated_slots(code.source, code.shared_bytes, slot_bytes, rings)
    for buffer, load in rings.items():
        slots, expected = found[buffer], program.buffers[load]
        require(slots == expected, f"it has {slots} buffers for {load}, the Program has {expected}")


def check_parameters(code: GeneratedCode) -> None:
    """The kernel takes its parameters, a tensor by address or by TMA descriptor, and sizes, but nothing else."""
    match = SIGNATURE.search(code.source)
    names = re.findall(r"(\w+)(?:,|$)", match[1]) if match else []
    found = {name.removesuffix("_desc") for name in names} - {*Sizes._fields}
    expected = {parameter.name for parameter in code.parameters}
    require(found == expected, f"it takes {', '.join(sorted(found))}, expected {', '.join(sorted(expected))}")


@contextmanager
def readable() -> Iterator[None]:
    """Refuses code that cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        raise refusal(f"its structure cannot be read: {error}") from None


def refusal(what: str) -> ScheduleRefused:
    """What generated code does wrong."""
    return ScheduleRefused(f"the kernel that TileLang 0.1.15 generates is not safe: {what}")


def require(condition: bool, what: str) -> None:
    """Refuse generated code unless the condition holds."""
    if not condition:
        raise refusal(what)
