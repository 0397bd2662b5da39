"""Random changes to schedules and Programs, and the small problem on which they are run."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch

from tl_attention.interpret import interpret
from tl_attention.machine import Policy
from tl_attention.program import Op, Program
from tl_attention.reference import ErrorReport, attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.schedule import PRODUCER, Schedule
from tl_attention.schedule_file import load
from tl_attention.statements import LOADS

SCHEDULES = Path(__file__).parent.parent / "schedules"
HEAD_DIM = 64
BLOCK_M, BLOCK_N = 64, 8
SCALE = HEAD_DIM**-0.5

# Tiles are so small that threads only cost.
torch.set_num_threads(1)


def shipped() -> dict[str, Schedule]:
    """Every shipped schedule that has a Program, by name."""
    loaded = {path.stem: load(path) for path in sorted(SCHEDULES.glob("*.yaml"))}
    return {name: schedule for name, schedule in loaded.items() if schedule.has_program}


def mutate(schedule: Schedule, rng: random.Random) -> Schedule:
    """A well-formed schedule, one to four random changes away; legal or not."""
    while True:
        groups = [list(group) for group in schedule.group]
        order, stage = list(schedule.order), list(schedule.stage)
        num_stages = schedule.num_stages
        for _ in range(rng.randint(1, 4)):
            change = rng.choice(CHANGES)
            if change is _ring:
                num_stages = rng.randint(1, 4)
            else:
                change(groups, order, stage, rng)
        rank = {o: index for index, o in enumerate(sorted(o for o in order if o != PRODUCER))}
        try:
            positions = [rank.get(o, PRODUCER) for o in order]
            changed = {"num_stages": num_stages, "group": groups, "order": positions, "stage": stage}
            return Schedule(**{**schedule.model_dump(), **changed})
        except ValueError:
            continue


def _placed(order: list) -> list[int]:
    return [index for index, o in enumerate(order) if o != PRODUCER]


def _swap(groups: list, order: list, stage: list, rng: random.Random) -> None:
    a, b = rng.sample(_placed(order), 2)
    order[a], order[b] = order[b], order[a]


def _restage(groups: list, order: list, stage: list, rng: random.Random) -> None:
    index = rng.choice(_placed(order))
    stage[index] = max(0, stage[index] + rng.choice((-1, 1)))


def _split(groups: list, order: list, stage: list, rng: random.Random) -> None:
    candidates = [index for index in _placed(order) if len(groups[index]) > 1]
    if candidates:
        index = rng.choice(candidates)
        cut = rng.randint(1, len(groups[index]) - 1)
        groups.append(groups[index][cut:])
        del groups[index][cut:]
        order.append(order[index] + 0.5 if rng.random() < 0.5 else rng.uniform(-0.5, len(order)))
        stage.append(stage[index])


def _move(groups: list, order: list, stage: list, rng: random.Random) -> None:
    index = rng.choice(_placed(order))
    order[index] = rng.uniform(-0.5, len(order))


def _shuffle(groups: list, order: list, stage: list, rng: random.Random) -> None:
    index = rng.choice(_placed(order))
    if len(groups[index]) > 1:
        a, b = rng.sample(range(len(groups[index])), 2)
        groups[index][a], groups[index][b] = groups[index][b], groups[index][a]


def _toggle_load(groups: list, order: list, stage: list, rng: random.Random) -> None:
    index = rng.choice([index for index, group in enumerate(groups) if group[0] in LOADS and len(group) == 1])
    if order[index] == PRODUCER:
        order[index], stage[index] = rng.uniform(-0.5, len(order)), rng.randint(0, 2)
    else:
        order[index] = stage[index] = PRODUCER


def _ring(*_: object) -> None:
    raise AssertionError("handled by mutate")


CHANGES = (_swap, _restage, _split, _move, _shuffle, _toggle_load, _ring)


def mutate_program(program: Program, rng: random.Random) -> tuple[Program, str]:
    """The Program with one wait, acquire or release removed or moved later, and what was done."""
    ops = [
        (role, index) for role in ("consumer", "producer") for index, op in enumerate(getattr(program, role))
        if op.kind in ("wait", "acquire", "release")
    ]
    role, index = rng.choice(ops)
    sequence = list(getattr(program, role))
    op = sequence.pop(index)
    what = f"{op.kind} {op.statement} of the {role}"
    if rng.random() < 0.5:
        return replace(program, **{role: tuple(sequence)}), f"{what} removed"
    distance = rng.randint(1, len(sequence))
    place = index + distance
    # Past the end of the iteration it is the next iteration's operation for the block before.
    wrapped = place > len(sequence)
    moved = Op(op.kind, op.statement, op.lag + wrapped)
    sequence.insert(place - len(sequence) if wrapped else place, moved)
    return replace(program, **{role: tuple(sequence)}), f"{what} moved {distance} later"


class SmallProblem:
    """One causal row tile of `blocks` KV blocks, every block with a mask of its own."""

    def __init__(self, blocks: int, seed: int = 0):
        self.blocks = blocks
        seq = blocks * BLOCK_N
        self.inputs = make_inputs(1, 1, seq, seq, HEAD_DIM, torch.float16, seed)
        self.exact = attention_fp64(*self.inputs, causal=True, scale=SCALE)
        self.peer = attention_same_precision(*self.inputs, causal=True, scale=SCALE)

    def run(self, program: Program, policy: Policy, kv_order: str = "ascending", observer=None) -> ErrorReport:
        """Interpret the Program on the problem. Raises Deadlock."""
        output = interpret(
            program, *self.inputs, block_M=BLOCK_M, block_N=BLOCK_N, kv_order=kv_order, causal=True, scale=SCALE,
            policy=policy, observer=observer,
        )
        return compare(output, self.exact, self.peer)
