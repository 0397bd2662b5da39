"""Tests check the Schedule by itself: its rules, what it derives, and the label that names it and reads back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tl_attention.errors import InputError
from tl_attention.files.schedule_file import load
from tl_attention.loop.attention import NUMBER, SOURCE
from tl_attention.schedule.schedule import EXAMPLE_LABEL, Schedule

SHIPPED = {path.stem: load(path) for path in sorted((Path(__file__).parents[1] / "schedules").glob("*.yaml"))}
SEED = SHIPPED["seed"]


def random_schedule(random_: random.Random) -> Schedule:
    """Draws any well-formed schedule, which is usually not legal."""
    block_m = random_.choice((64, 128, 192, 256))
    sizes = {
        "block_M": block_m,
        "threads": 2 * block_m,
        "block_N": 16 * random_.randint(1, 16),
        "num_stages": random_.randint(1, 8),
        "kv_order": random_.choice(("ascending", "descending")),
    }
    if random_.random() < 0.05:
        return Schedule(lowering="inferred", **sizes)
    producers = [load for load in SOURCE.loads if random_.random() < 0.5]
    names = [name for name in SOURCE.names if name not in producers]
    random_.shuffle(names)
    cuts = sorted(random_.sample(range(1, len(names)), random_.randint(0, len(names) - 1)))
    ordered = [names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)])]
    depth = random_.randint(1, len(ordered))
    stages = [*range(depth), *(random_.randrange(depth) for _ in range(len(ordered) - depth))]
    random_.shuffle(stages)
    places = list(range(len(ordered)))
    random_.shuffle(places)
    entries = [*zip(ordered, places, stages), *(([load], -1, -1) for load in producers)]
    random_.shuffle(entries)
    group, order, stage = zip(*entries)
    return Schedule(group=group, order=order, stage=stage, **sizes)


RANDOM = [random_schedule(random.Random(seed)) for seed in range(500)]


def test_labels_read_back_and_are_one_word_of_a_command_line_each() -> None:
    """Two schedules with one label could not both read back."""
    schedules = {*RANDOM, *SHIPPED.values()}
    assert [s for s in schedules if Schedule.from_label(s.label) != s] == [] and len(schedules) > 450
    assert {s.lowering for s in RANDOM} == {"pipelined", "inferred"}, "the sample holds both"
    for schedule in schedules:
        assert set(schedule.label) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-+~.=")


def test_the_example_of_a_label_is_the_seed() -> None:
    assert SEED.label == EXAMPLE_LABEL


LABELS = {
    "": "is not a schedule's label, expected such as pipelined_128x128",
    "seed": "is not a schedule's label",
    EXAMPLE_LABEL.replace("t256", "t2560"): "threads: expected at most 512, found 2560",
    EXAMPLE_LABEL.replace("t256", "t128"): "threads: 128 threads do not fit block_M 128",
    EXAMPLE_LABEL.replace("t256", "t0256"): f"expected {EXAMPLE_LABEL}",
    EXAMPLE_LABEL.replace("1-2", "1+2"): f"expected {EXAMPLE_LABEL}",
    EXAMPLE_LABEL.replace("14o", "15o"): "no statement frag_q in this schedule: lowering pipelined has none",
    EXAMPLE_LABEL.replace("3-11", "3-99999"): "18 is no statement",
    EXAMPLE_LABEL.replace("3-11", "11-3"): "an empty group",
    EXAMPLE_LABEL.replace("_14o2s1", ""): "in no group: mma1 (14)",
    EXAMPLE_LABEL.replace("o2s1", "o9s1"): "position 9, expected each of 0 to 3 once",
    EXAMPLE_LABEL.replace("o2s1", "o2"): "'14o2' in",
    EXAMPLE_LABEL.replace("o2s1", "p"): "-1 marks a producer",
    EXAMPLE_LABEL.replace(
        "pipelined", "fast"
    ): "lowering: expected 'pipelined', 'warp_specialized', 'mma_sync' or 'inferred', found 'fast'",
    EXAMPLE_LABEL.replace("n2", f"n{'9' * 5000}"): "is not a schedule's label",
    EXAMPLE_LABEL.replace("n2", "n\uff12"): "is not a schedule's label",
    EXAMPLE_LABEL + "\n": "label: ",
    "inferred_128x128_t256_n2_0p": "lowering inferred leaves the order to the compiler",
}


@pytest.mark.parametrize("label", LABELS, ids=[f"{number}: {text[:30]}" for number, text in enumerate(LABELS.values())])
def test_a_bad_label_is_told_in_one_line(label) -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_label(label)
    assert LABELS[label] in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 450


def test_a_schedule_cannot_be_changed_and_can_be_a_key() -> None:
    with pytest.raises(ValueError, match="frozen"):
        SEED.threads = 128
    assert {SEED: 1}[Schedule(**SEED.model_dump())] == 1


def test_emission_producers_and_depth_are_those_of_the_seed() -> None:
    assert SEED.producers == ("load_k", "load_v") and SEED.depth == 2
    assert [(NUMBER[group[0]], stage) for group, stage in SEED.emission] == [(1, 0), (12, 1), (14, 1), (3, 0)]


def test_python_callers_get_a_value_error_that_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match="2 \\* 128 = 256"):
        Schedule(**SEED.model_dump() | {"threads": 128})
