"""An executor judges whether each refusal's sentence agrees with the order in which the Program emits statements."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from mutations import enough, mutate, shipped
from tiers import sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.program.derivation import derive
from tl_attention.program.legality import AFTER_LOOP, Violation, check, find_violation
from tl_attention.program.machine import EARLY, LATE
from tl_attention.program.program import CONSUMER, Program
from tl_attention.schedule.keys import PRODUCER
from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.schedule import Schedule

SHARDS, SCHEDULES = 4, 600
Instance = tuple[str, int]
BEFORE_LOOP = ("the code before the loop", -1)

INSTANCE = r"\w[\w.]*\((?:[tn](?:[+-]\d+)?)\)|the output|the code before the loop"
NEEDS = rf"(?P<reader>{INSTANCE}) needs what (?P<source>{INSTANCE}) wrote"
NOT_YET = re.compile(
    rf"(?P<first>{INSTANCE}) reads (?P<buffer>\S+) before (?P<second>{INSTANCE}), emitted later, has written it: "
    rf"{NEEDS}(?: and would see what (?P<seen>{INSTANCE}) wrote|, and nothing has yet)"
)
OVERWRITTEN = re.compile(
    rf"(?P<first>{INSTANCE}) overwrites (?P<buffer>\S+) before (?P<second>{INSTANCE}), emitted later, has read it: "
    rf"{NEEDS}"
)
LAST = re.compile(rf"(?P<first>{INSTANCE}) is the last to write (?P<buffer>\S+): {NEEDS}")


def scrambled(rng: random.Random) -> Schedule:
    """Makes a schedule with random groups, order and stages, or one a few changes away from a shipped one."""
    base = shipped()[rng.choice(("seed", "source_order", "three_stages", "fa3_pipelined", "ws_seed", "fa3_overlap"))]
    if base.lowering == "warp_specialized" or rng.random() < 0.3:
        return mutate(base, rng)
    names = [name for name in SOURCE.names if name not in ("load_k", "load_v")]
    # Near the source's order, or far from it.
    reach = rng.choice((1, 2, 4, 15))
    names.sort(key=lambda name: SOURCE.number[name] + rng.uniform(0, reach))
    cuts = sorted(rng.sample(range(1, len(names)), rng.randint(1, 6)))
    groups = [names[first:end] for first, end in zip([0, *cuts], [*cuts, len(names)])]
    stages = sorted(rng.randint(0, 2) for _ in groups)
    stages = [sorted(set(stages)).index(stage) for stage in stages]
    order = list(range(len(groups)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    return Schedule(
        **base.model_dump()
        | {
            "group": [["load_k"], *groups, ["load_v"]],
            "order": [PRODUCER, *order, PRODUCER],
            "stage": [PRODUCER, *stages, PRODUCER],
        }
    )


class Emitted:
    """A loop's statements are emitted in the consumer's order, each done when the next one starts."""

    def __init__(self, program: Program, blocks: int):
        steps = [step for step in program.roles(blocks)[CONSUMER] if step.op.kind in ("run", "issue")]
        self.lag = {step.op.statement: step.op.lag for step in steps}
        self.order = [(step.op.statement, step.block) for step in steps]
        self.place = {instance: place for place, instance in enumerate(self.order)}
        self.blocks, self.table, self.slots = blocks, program.table, program.buffers

    def last_writer(self, buffer: str, block: int, before: int) -> Instance:
        """Returns who last wrote a buffer before this place; of a ring, the slot of this block."""
        depth = self.slots[self.table.rings[buffer]] if buffer in self.table.rings else 0
        for statement, written in reversed(self.order[:before]):
            if buffer in self.table.by_name[statement].writes and not (depth and (written - block) % depth):
                return statement, written
        return BEFORE_LOOP

    def instance(self, text: str, time: int) -> Instance:
        """Reads an instance such as `mma0(t-1)`, of iteration `time`; n is the number of blocks."""
        if text == BEFORE_LOOP[0]:
            return BEFORE_LOOP
        if text == AFTER_LOOP:
            return AFTER_LOOP, self.blocks
        statement, origin, distance = re.fullmatch(r"([\w.]+)\(([tn])([+-]\d+)?\)", text).groups()
        return statement, (time if origin == "t" else self.blocks) + int(distance or 0)


def source_writer(program: Program, reader: Instance, buffer: str) -> Instance:
    """Returns who wrote last, in source order, what an instance reads."""
    names, (statement, block) = program.table.names, reader
    number = names.index(statement) if statement in names else 0
    for at in range(len(names) * block + number - 1, -1, -1):
        if buffer in program.table.by_name[names[at % len(names)]].writes:
            return names[at % len(names)], at // len(names)
    return BEFORE_LOOP


def judged(program: Program, violation: Violation) -> str:
    """Checks all claims of a refusal's sentence, and returns the sentence's form."""
    emitted = Emitted(program, violation.blocks)
    form = next((form for form in (NOT_YET, OVERWRITTEN, LAST) if form.fullmatch(violation.words)), None)
    assert form, violation.words
    found = form.fullmatch(violation.words).groupdict()
    time = violation.block + emitted.lag.get(violation.statement, 0)
    named = {key: emitted.instance(text, time) for key, text in found.items() if text and key != "buffer"}
    reader, source, buffer = named["reader"], named["source"], found["buffer"]
    assert reader == (violation.statement, violation.block) and source == source_writer(program, reader, buffer)
    read_at = emitted.place.get(reader, len(emitted.order))
    last = emitted.last_writer(buffer, reader[1], read_at)
    if form is NOT_YET:
        assert (named["first"], named["second"]) == (reader, source) and emitted.place[source] > read_at
        assert last == named.get("seen", BEFORE_LOOP)
        return "not written yet"
    assert last == named["first"] != source and emitted.place.get(source, -1) < emitted.place[last] < read_at
    assert form is LAST or named["second"] == reader
    return "overwritten" if form is OVERWRITTEN else "written last"


@pytest.mark.parametrize("shard", sampled(range(SHARDS), [0]))
def test_what_a_refusal_says_of_the_order_is_so(shard: int) -> None:
    rng = random.Random(4000 + shard)
    counts: Counter[str] = Counter()
    for _ in enough(SCHEDULES, counts, {"not written yet": 50, "overwritten": 50}):
        schedule = scrambled(rng)
        program = derive(schedule, rng.choice(("synchronous", "asynchronous")))
        violation = find_violation(program, (rng.choice((LATE, EARLY)),))
        if isinstance(violation, Violation):
            counts[judged(program, violation)] += 1
        else:
            counts["deadlock" if violation else "legal"] += 1


def test_a_value_that_was_written_and_overwritten_since_is_not_called_unwritten() -> None:
    """max_init stands behind max_merge: what scale needs was written before max_init, not after."""
    seed = shipped()["seed"].model_dump()
    swapped = ["max_prev", "row_max", "max_merge", "max_init", *seed["group"][2][4:]]
    schedule = Schedule(**seed | {"group": [*seed["group"][:2], swapped, *seed["group"][3:]]})
    with pytest.raises(ScheduleRefused) as error:
        check(derive(schedule))
    assert str(error.value) == (
        "max_init(t) overwrites scores_max before scale(t), emitted later, has read it: "
        "scale(t) needs what max_merge(t) wrote"
    )
