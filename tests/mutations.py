"""Changes schedules and Programs at random, and runs them on a small problem."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tl_attention.kernels.warp_specialized.dialect import TABLE
from tl_attention.lab.oracle.interpret import interpret
from tl_attention.lab.oracle.reference import (
    ErrorReport,
    attention_fp64,
    attention_same_precision,
    compare,
    make_inputs,
)
from tl_attention.lab.oracle.tile import Settings
from tl_attention.lab.search.changes import walk
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.derivation import derive
from tl_attention.program.machine import Policy
from tl_attention.program.program import Model, Operation, Program
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.keys import PRODUCER
from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.loop.table import chunk_names, split_table, whole
from tl_attention.schedule.options import SoftmaxOptions
from tl_attention.schedule.schedule import Schedule

SCHEDULES = Path(__file__).parent.parent / "schedules"
HEAD_DIM = 64
BLOCK_M, BLOCK_N = 64, 8
SCALE = HEAD_DIM**-0.5


def enough(cases: int, counts: Counter[str], least: Mapping[str, int]) -> Iterator[int]:
    """Yields numbers of draws until so many cases have been counted, and each of these outcomes at least so often.

    How often an outcome comes depends on the shipped schedules that are drawn from. Fails after five times the draws.
    """
    for number in range(5 * cases):
        if counts.total() >= cases and all(counts[outcome] >= times for outcome, times in least.items()):
            break
        yield number
    else:
        raise AssertionError(f"{dict(counts)} of {5 * cases} draws, expected {cases} cases and at least {dict(least)}")
    print(f"\n{dict(counts)}")


@cache
def shipped() -> dict[str, Schedule]:
    """Returns the schedules at the top that have a Program, and the seed's variants, by the last part of the name."""
    paths = [*SCHEDULES.glob("*.yaml"), *SCHEDULES.glob("experiments/seed/*.yaml")]
    loaded = {path.stem: load(path) for path in sorted(paths, key=lambda path: path.name)}
    return {name: schedule for name, schedule in loaded.items() if schedule.has_program}


def fitting_head_dim(name: str) -> int:
    """Returns a head size up to 128 for which the tile of a shipped schedule fits."""
    return min(128, max(columns for size in resolve(name).head_dims for columns in sizes_of(size)))


def with_options(schedule: Schedule, rng: random.Random) -> Schedule:
    """Returns the warp-specialised schedule with random options.

    Chunks stand where their statement stood, each in its own group.
    """
    split = {name: _widths(8, 16, rng) for name in ("exp", "row_sum", "cast") if rng.random() < 0.5}
    if rng.random() < 0.5:
        split["rescale"] = _widths(HEAD_DIM // 16, 16, rng)
    entries: list[tuple[list[str], float, int]] = []
    seen: set[str] = set()
    for group, order, stage in zip(schedule.group, schedule.order, schedule.stage):
        # Chunks that the schedule has already become one statement again, where the first of them stood.
        names = [name for name in dict.fromkeys(map(whole, group)) if name not in seen]
        seen |= set(names)
        parts = [part for name in names for part in chunk_names(name, split.get(name))]
        together = order == PRODUCER or "mma0" in parts
        units = [parts] if together else [[name] for name in parts if name not in TABLE.fused]
        units = [[*_parts_of(unit[0]), *unit] if not together else unit for unit in units]
        entries += [(unit, order if together else order + i / 100, stage) for i, unit in enumerate(units)]
    rank = {o: index for index, o in enumerate(sorted(order for _, order, _ in entries if order != PRODUCER))}
    places = [
        name
        for unit, order, _ in entries
        if order != PRODUCER
        for name in unit
        if name not in (*TABLE.fused, *TABLE.moved)
    ]
    kernel: dict[str, Any] = {key: rng.randint(1, 3) for key in ("k_stages", "v_stages") if rng.random() < 0.5}
    kernel["tile_order"] = rng.choice(("rows", "tapered", "sections"))
    softmax: dict[str, Any] = {
        "rescale_threshold": rng.choice((0.0, 0.5, 1.0, 8.0)),
        "row_max": rng.choice(("thread", "chains", "row")),
    }
    if rng.random() < 0.5:
        softmax["exp2_polynomial"] = {
            "every": rng.randint(1, 3),
            "first": rng.randint(0, 2),
            "degree": rng.randint(3, 5),
        }
    return Schedule(
        **schedule.model_dump()
        | {
            "block_N": 16 * BLOCK_N,
            "group": [unit for unit, _, _ in entries],
            "stage": [stage for _, _, stage in entries],
            "order": [rank.get(order, PRODUCER) for _, order, _ in entries],
            "split": split,
            "kernel": kernel,
            "softmax": softmax,
            "wait_before": {name: rng.choice(places) for name in ("mma0", "mma1") if rng.random() < 0.3},
            "release_before": {name: rng.choice(places) for name in SOURCE.loads if rng.random() < 0.3},
        }
    )


def _parts_of(statement: str) -> list[str]:
    """Returns the statements that are part of this one; for a split statement, those of its first chunk."""
    return [part for part, partner in TABLE.fused.items() if statement in (partner, f"{partner}.0")]


def _widths(units: int, unit: int, rng: random.Random) -> list[int]:
    cuts = sorted(rng.sample(range(1, units), rng.randint(1, min(3, units - 1))))
    return [unit * (b - a) for a, b in zip([0, *cuts], [*cuts, units])]


def derive_small(schedule: Schedule, model: Model) -> Program:
    """Derives the schedule's Program, with a sixteenth of the columns in each chunk, as in the small problem."""
    program = derive(schedule, model)
    widths = {
        name: tuple(width if name == "rescale" else width // 16 for width in columns)
        for name, columns in schedule.split
        if columns
    }
    return replace(program, table=split_table(TABLE, widths)) if widths else program


# Parameters that say where statements stand, and how many buffers there are.
OF_ORDER = ("rank", "stage", "begins", "ahead", "num_stages")


def mutate(schedule: Schedule, rng: random.Random) -> Schedule:
    """Changes a schedule's order or number of buffers one to four times at random; it stays well-formed."""
    return walk(schedule, rng, rng.randint(1, 4), lambda name: name.partition(".")[0] in OF_ORDER)


def vary_options(schedule: Schedule, rng: random.Random) -> Schedule:
    """Returns the warp-specialised schedule with up to four other options; legal or not, but as exact as by default."""
    return walk(schedule, rng, rng.randint(0, 4), lambda name: name.startswith(("kernel.", "softmax.")))


def mutate_program(program: Program, rng: random.Random) -> tuple[Program, str]:
    """Returns the Program with one wait, acquire or release removed or moved later, and says what was done."""
    ops = [
        (role, index)
        for role in ("consumer", "producer")
        for index, op in enumerate(getattr(program, role))
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
    moved = Operation(op.kind, op.statement, op.lag + wrapped)
    sequence.insert(place - len(sequence) if wrapped else place, moved)
    return replace(program, **{role: tuple(sequence)}), f"{what} moved {distance} later"


class SmallProblem:
    """The small problem is one causal row tile of `blocks` KV blocks, every block with a mask of its own.

    Q is multiplied by `spread`.
    """

    def __init__(self, blocks: int, seed: int = 0, spread: float = 1.0):
        self.blocks = blocks
        seq = blocks * BLOCK_N
        self.inputs = make_inputs(AttentionShape(1, 1, seq, seq, HEAD_DIM), seed, spread=spread)
        self.exact = attention_fp64(*self.inputs, mask=CAUSAL, scale=SCALE)
        self.peer = attention_same_precision(*self.inputs, mask=CAUSAL, scale=SCALE)

    def run(
        self, program: Program, policy: Policy, kv_order: str = "ascending", softmax: SoftmaxOptions = SoftmaxOptions()
    ) -> ErrorReport:
        """Interprets the Program on the problem. Raises Deadlock."""
        output = interpret(
            program, self.inputs, Settings(BLOCK_M, BLOCK_N, kv_order, softmax), mask=CAUSAL, scale=SCALE, policy=policy
        )
        return compare(output, self.exact, self.peer)
