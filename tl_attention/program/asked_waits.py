"""A schedule places each product's wait, counted here in exponentials, for comparison with the machine code's waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tl_attention.errors import InputError
from tl_attention.program.planned import Planned
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.options import Exp2Polynomial
from tl_attention.schedule.schedule import Schedule

# A thread has two rows of its warpgroup's 64, and of these every fourth pair of columns.
ROWS_OF_A_THREAD = 2
COLUMNS_PER_EXPONENTIAL = 2


@dataclass(frozen=True)
class AskedWaits:
    """AskedWaits count an iteration's exponentials, computed by MUFU, in all and before each product's wait."""

    exponentials: int  # in all
    product_waits: tuple[int, ...]  # before each wait for a product


def asked_waits(planned: Planned) -> AskedWaits | None:
    """Returns how many exponentials a schedule puts before each product's wait; None without a Program.

    Raises ScheduleRefused where no Program can be derived.
    """
    schedule, program = planned.schedule, planned.program
    if program is None:
        return None
    done = 0
    waits: list[int] = []
    for op in program.phases.steady.operations:
        if op.kind == "wait" and op.statement in program.table.products:
            waits.append(done)
        if op.kind == "run":
            done += _exponentials(schedule, op.statement)
    return AskedWaits(done, tuple(waits))


@cache
def asked_waits_of(label: str) -> AskedWaits | None:
    """Returns the AskedWaits of the schedule with this label; None if there is none, or it has no Program."""
    try:
        return asked_waits(Planned(Schedule.from_label(label)))
    except InputError:
        return None


def _exponentials(schedule: Schedule, statement: str) -> int:
    """Returns how many exponentials a thread computes by MUFU in a statement, 0 for one that computes none."""
    if statement == "scale":
        return ROWS_OF_A_THREAD
    if whole(statement) != "exp":
        return 0
    first, end = schedule.table.by_name[statement].columns or (0, schedule.block_N)
    places = range(first // COLUMNS_PER_EXPONENTIAL, end // COLUMNS_PER_EXPONENTIAL)
    return sum(not _by_polynomial(place, schedule.softmax.exp2_polynomial) for place in places)


def _by_polynomial(place: int, polynomial: Exp2Polynomial | None) -> bool:
    return polynomial is not None and place >= polynomial.first and (place - polynomial.first) % polynomial.every == 0
