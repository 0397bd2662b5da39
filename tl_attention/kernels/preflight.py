"""A schedule is checked here without a compiler: the limits of the SM, the dependences, and how the roles interact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.card import CARDS, HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, check_head_dim
from tl_attention.program import legality
from tl_attention.program.derivation import PLACE_KEYS
from tl_attention.program.limits import buffers_text, check_fits, of_other_card
from tl_attention.program.planned import Planned
from tl_attention.program.program import Program
from tl_attention.schedule.schedule import Schedule

# Of a broken dependence.
BLAMED = (
    *PLACE_KEYS,
    ("wait_before",),
    ("release_before",),
    ("num_stages",),
    ("kernel",),
    ("kv_order",),
    ("split",),
    ("softmax",),
    ("block_N",),
    ("block_M",),
    ("lowering",),
)


def refuse_unless_safe(planned: Planned, size: HeadSize, card: Card = HOPPER) -> None:
    """Raises ScheduleRefused if a schedule exceeds the SM's limits, or if a proof of its Program fails."""
    check_limits(planned, size, card)
    if planned.program:
        for _ in proofs(planned.schedule, planned.program):
            pass


def proofs(schedule: Schedule, program: Program) -> Iterator[str]:
    """Proves a Program's dependences and its lowering's conditions, and yields a phrase for each that holds.

    Raises ScheduleRefused where one does not hold.
    """
    try:
        legality.check(program)
        yield "every read sees the value that source order gives it"
        yield from lowering_of(schedule).prove(schedule, program)
    except ScheduleRefused as refusal:
        # A dependence is broken by the order as a whole, unless a key of its own was found to blame.
        if not refusal.key:
            refusal.key, refusal.others = BLAMED[0], BLAMED[1:]
        raise


def verdicts(planned: Planned, sizes: Sequence[HeadSize], card: Card = HOPPER) -> Iterator[str]:
    """Proves the schedule's Program, then checks the SM's limits at each size; yields a line of text for what holds.

    Raises ScheduleRefused for what does not. `refuse_unless_safe` asks the same. The Program comes first:
    its proof is worth seeing where only the tile is too large.
    """
    if program := planned.program:
        yield from (f"proved: {proved}" for proved in proofs(planned.schedule, program))
    for size in sizes:
        check_limits(planned, size, card)
        yield f"fits the SM{of_other_card(card)} at head_dim {size}"


def check_limits(planned: Planned, size: HeadSize, card: Card = HOPPER) -> None:
    """Raises ScheduleRefused where a card's SM cannot hold the schedule's tile and buffers.

    It does so too for a card that the lowering is not compiled for, and for a num_stages that the loads' places do not
    give.
    """
    schedule = planned.schedule
    check_card(schedule, card)
    check_head_dim(size)
    check_fits(schedule, size, lowering_of(schedule).resources(planned, size, card), card)
    if schedule.has_program and not schedule.producers and schedule.num_stages != max(planned.rings.values()):
        (first, k), *others = planned.rings.items()
        given = " and ".join([f"{buffers_text(k)} of {first}", *(f"{count} of {ring}" for ring, count in others)])
        raise ScheduleRefused(
            f"num_stages is {schedule.num_stages}, but no load is a producer and the places of the loads give "
            f"{given}: expected num_stages {max(planned.rings.values())}",
            "num_stages",
            others=PLACE_KEYS,
        )


def check_card(schedule: Schedule, card: Card) -> None:
    """Raises ScheduleRefused unless the schedule's lowering is compiled for the card."""
    archs = lowering_of(schedule).archs
    if card.arch not in archs:
        runs_on = ", ".join(str(CARDS[arch]) for arch in archs)
        raise ScheduleRefused(f"lowering: {schedule.lowering} runs on {runs_on}, not on {card}", "lowering")
