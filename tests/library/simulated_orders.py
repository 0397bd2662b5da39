"""Runs a simulated program in all orders, or in random and biased ones."""

import random

from mbarrier_simulator import Machine
from simulated_state import Fault, State, nothing

Masks = tuple[int, int, int]
FLIGHT = -1


class TooMany(Exception):
    """Raised where there are more states than were asked for."""


def explore(machine: Machine, states: int) -> Fault | None:
    """Tries all orders, and returns a fault that some order has. Raises TooMany beyond so many states.

    States that were seen are not entered again. No other order is tried where what happens next commutes with all that
    anybody else may ever do.
    """
    futures = _futures(machine)
    seen: set[tuple[int, ...]] = set()
    stack: list[State] = [machine.first[:]]
    while stack:
        state = stack.pop()
        try:
            choices = _run_alone(machine, futures, state)
        except Fault as fault:
            return fault
        if len(choices) < 2:
            continue
        key = tuple(state)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > states:
            raise TooMany
        for choice in choices:
            after = state[:]
            try:
                machine.take(after, choice)
            except Fault as fault:
                return fault
            stack.append(after)
    return None


def _run_alone(machine: Machine, futures: list[list[Masks]], state: State) -> list[int]:
    """Goes on while one choice is enough, and returns the choices where one is not, or raises Fault."""
    while True:
        choices = machine.choices(state)
        if not choices:
            machine.check_the_end(state)
            return []
        if len(choices) > 1:
            lone = _commuting(machine, futures, state, choices)
            if lone is None:
                return choices
            choices = [lone]
        machine.take(state, choices[0])


def _commuting(machine: Machine, futures: list[list[Masks]], state: State, choices: list[int]) -> int | None:
    """Finds a choice that commutes with all that others may ever do."""
    warps = len(machine.warps)
    others: dict[int, Masks] = {warp: futures[warp][state[warp]] for warp in range(warps)}
    others |= {choice: machine.operation(state, choice).touches for choice in choices if choice >= warps}
    for choice in choices:
        reads, changes, adds = machine.operation(state, choice).touches
        for other, (other_reads, other_changes, other_adds) in others.items():
            if other != choice and (
                changes & (other_reads | other_changes | other_adds)
                or reads & (other_changes | other_adds)
                or adds & (other_reads | other_changes)
            ):
                break
        else:
            return choice
    return None


def _futures(machine: Machine) -> list[list[Masks]]:
    """Returns, by warp and place in its run, all that the warp may touch from there on."""
    futures = []
    for run in machine.runs:
        masks: list[Masks] = [(0, 0, 0)]
        for operation in reversed(run):
            masks.append(_either(masks[-1], *(each.touches for each in (operation, *operation.landings))))
        futures.append(masks[::-1])
    return futures


def _either(*masks: Masks) -> Masks:
    reads = changes = adds = 0
    for mask in masks:
        reads, changes, adds = reads | mask[0], changes | mask[1], adds | mask[2]
    return reads, changes, adds


def tried(machine: Machine, orders: int, rng: random.Random) -> Fault | None:
    """Tries so many random and biased orders, and returns a fault that one of them has."""
    for _ in range(orders):
        try:
            if rng.random() < 0.2:
                _run_by_chance(machine, rng)
            else:
                _run_ranked(machine, _ranking(machine, rng), rng.choice((0, 0.01, 0.05)), rng)
        except Fault as fault:
            return fault
    return None


def _run_by_chance(machine: Machine, rng: random.Random) -> None:
    state = machine.first[:]
    while choices := machine.choices(state):
        machine.take(state, rng.choice(choices))
    machine.check_the_end(state)


def _ranking(machine: Machine, rng: random.Random) -> list[int]:
    """Ranks the choices, of which the first that is ready is taken; FLIGHT is any that is in flight and not named."""
    ranking = [*range(machine.lasting)]
    rng.shuffle(ranking)
    ranking.insert(rng.choice((0, len(ranking), rng.randrange(len(ranking)))), FLIGHT)
    if rng.random() < 0.5:
        # All warps of one process get ahead of the others, or fall behind.
        process = rng.choice(machine.warps)[0]
        own = {warp for warp, (of, _) in enumerate(machine.warps) if of == process}
        ahead = rng.random() < 0.5
        ranking.sort(key=lambda choice: (choice in own) != ahead)
    # Some of what is in flight lands when nothing else can go on.
    held = rng.sample(range(len(machine.landings)), min(len(machine.landings), rng.choice((0, 1, 3))))
    ranking += [machine.lasting + number for number in held]
    return ranking


def _run_ranked(machine: Machine, ranking: list[int], changes: float, rng: random.Random) -> None:
    """Runs a program by a ranking; `changes` is how likely a step moves one choice to another rank."""
    state = machine.first[:]
    while True:
        for choice in ranking:
            if _taken(machine, ranking, state, choice, rng):
                break
        else:
            return machine.check_the_end(state)
        if changes and rng.random() < changes:
            moved = ranking.pop(rng.randrange(len(ranking)))
            ranking.insert(rng.randrange(len(ranking) + 1), moved)


def _taken(machine: Machine, ranking: list[int], state: State, choice: int, rng: random.Random) -> bool:
    """Makes a choice happen if it is ready, and says whether it was."""
    if choice == FLIGHT:
        flights = [flight for flight in machine.flights(state) if flight not in ranking]
        if flights:
            machine.take(state, rng.choice(flights))
        return bool(flights)
    if choice >= len(machine.warps):
        if not machine.operation(state, choice):
            return False
        machine.take(state, choice)
        return True
    # Past waits at once, which let nobody else go on.
    run, went = machine.runs[choice], False
    while True:
        operation = run[state[choice]]
        if operation.ready is not None and not operation.ready(state):
            return went
        state[choice] += 1
        operation.do(state)
        if operation.do is not nothing:
            return True
        went = True
