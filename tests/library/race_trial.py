"""Gives faulty event programs to the proof and to the simulator: an accepted program must run in every order."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from event_programs import EventProgram, event_programs, mutant
from mbarrier_simulator import Machine
from simulated_orders import TooMany, explore, tried

from tl_attention.program.mbarrier import Rule, Unsafe
from tl_attention.program.races import prove

# Programs that are small enough for all orders have so many events in all warps, and come to so many states, at most.
SMALL, STATES = 130, 2000
ORDERS = 200


@dataclass(frozen=True)
class Trial:
    """A trial has what the proof says of a program in each of its own orders, and what some order does."""

    program: EventProgram
    refusals: tuple[Unsafe | None, ...]  # None for accepted
    fault: str | None
    all_orders: bool

    @property
    def rule(self) -> Rule | None:
        return self.refusals[0].rule if self.refusals[0] else None

    @property
    def wrong(self) -> str:
        """Says what the proof has wrong, if anything."""
        accepted = [refusal is None for refusal in self.refusals]
        if any(accepted) != all(accepted):
            return f"the verdict depends on the order: {[str(refusal) for refusal in self.refusals]}"
        return f"accepted, and {self.fault}" if accepted[0] and self.fault else ""


def mutants(number: int, seed: int, largest: int = 10**9) -> Iterator[EventProgram]:
    """Yields `number` programs with faults, none twice, and none that is like a program without faults."""
    rng = random.Random(seed)
    sound = [program for program in event_programs() if program.size <= largest]
    seen = {_contents(program) for program in sound}
    while number:
        program = mutant(rng.choice(sound), rng)
        contents = _contents(program)
        if contents not in seen:
            seen.add(contents)
            number -= 1
            yield program


def _contents(program: EventProgram) -> int:
    runs = [(process, [(event, event.step, event.reads) for event in run]) for process, run in program.roles.items()]
    return hash(repr((runs, program.counts)))


def proved(program: EventProgram) -> tuple[Unsafe | None, ...]:
    """Returns what the proof says in each of its orders; None where it accepts the program."""
    refusals: list[Unsafe | None] = []
    for reverse, late in product((False, True), repeat=2):
        try:
            prove(program.roles, program.counts, reverse=reverse, late=late)
        except Unsafe as refusal:
            refusals.append(refusal)
        else:
            refusals.append(None)
    return tuple(refusals)


def trial(program: EventProgram, seed: int) -> Trial:
    refusals = proved(program)
    fault, all_orders = simulated(program, seed, quick=refusals[0] is not None)
    return Trial(program, refusals, fault, all_orders)


def simulated(program: EventProgram, seed: int, quick: bool = False) -> tuple[str | None, bool]:
    """Returns (what goes wrong in some order, whether all orders were tried); `quick` tries a likely fault first."""
    machine, rng = Machine(program.roles, program.counts), random.Random(seed)
    if quick and (fault := tried(machine, ORDERS // 10, rng)):
        return str(fault), False
    if program.size <= SMALL:
        try:
            fault = explore(machine, STATES)
            return (str(fault) if fault else None), True
        except TooMany:
            pass
    fault = tried(machine, ORDERS, rng)
    return (str(fault) if fault else None), False
