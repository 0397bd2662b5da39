"""Tests check the Schedule: its rules, its label, and its optional keys, with what a wrong one is told."""

from __future__ import annotations

import json
import random

import pytest
import yaml
from conftest import ROOT
from specialized import HUNDREDS, hundred
from told import MISTAKES, TEXTS, file_of

from tl_attention.errors import InputError
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.loop.loops import NUMBER
from tl_attention.schedule.options import OPTION_PATHS
from tl_attention.schedule.schedule import EXAMPLE_LABEL, Schedule

SHIPPED = {path.stem: load(path) for path in sorted((ROOT / "schedules").glob("*.yaml"))}
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


def test_a_schedule_cannot_be_changed_and_can_be_a_key() -> None:
    with pytest.raises(ValueError, match="frozen"):
        SEED.threads = 128
    assert {SEED: 1}[Schedule(**SEED.model_dump())] == 1


def test_emission_producers_and_depth_are_those_of_the_seed() -> None:
    assert SEED.producers == ("load_k", "load_v") and SEED.depth == 2
    assert [(NUMBER[group[0]], stage) for group, stage in SEED.emission] == [(1, 0), (12, 1), (14, 1), (3, 0)]


def test_python_callers_get_a_value_error_that_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match="write `threads: 256`"):
        Schedule(**SEED.model_dump() | {"threads": 128})


# --- optional keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", HUNDREDS)
def test_the_labels_of_random_options_read_back_and_are_one_word_each(number) -> None:
    schedules = hundred(number)
    assert [s.label for s in schedules if Schedule.from_label(s.label) != s] == []
    assert len({s.label for s in schedules}) == len(set(schedules)) > 96
    assert all(set(s.label) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-+~.=") for s in schedules)


@pytest.mark.parametrize("number", HUNDREDS)
def test_every_option_is_in_some_of_the_labels(number) -> None:
    schedules = hundred(number)
    paths = {part.partition("=")[0] for s in schedules for part in s.label.split("~")[1:]}
    options = {path for path in OPTION_PATHS if schedules[0].dialect.takes(path)}
    polynomial = "softmax.exp2_polynomial"
    assert paths == options - {polynomial} | {f"{polynomial}.{name}" for name in ("every", "first", "degree")}


@pytest.mark.parametrize("number", HUNDREDS)
def test_a_misspelt_label_is_told_in_one_line_or_is_another_schedules(number) -> None:
    rng = random.Random(0)
    told = 0
    for schedule in hundred(number):
        label = list(schedule.label)
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(label))
            label[place : place + rng.randint(0, 2)] = rng.choice(["", *"~=.+0x\n²", "e-", "on"])
        try:
            assert Schedule.from_label("".join(label)).label == "".join(label)
        except InputError as error:
            told += 1
            assert str(error).startswith("label: ") and "\n" not in str(error)
            assert len(str(error)) < len(schedule.label) + 400
    assert told > 66


PLAIN = "warp_specialized_128x176_t256_n2_desc_0p_1-2o0s0_3-10o2s0_11o3s0_12o4s0_13p_14o1s1"


@pytest.mark.parametrize("row", [row for row in MISTAKES if "schema" in row], ids=lambda row: row["mistake"])
def test_the_schema_refuses_what_is_wrong_by_itself_and_leaves_rules_between_keys_to_the_loader(row, validator) -> None:
    assert validator.is_valid(yaml.safe_load(file_of(row))) != row["schema"]


@pytest.mark.parametrize("number", HUNDREDS)
def test_the_schema_accepts_what_the_loader_accepts(validator, number) -> None:
    for schedule in hundred(number):
        validator.validate(json.loads(schedule.model_dump_json()))


def test_numbers_may_be_spelled_as_is_natural(tmp_path) -> None:
    """8 and 8.0 are one threshold, 8 and exp are one statement, and an empty key is the default."""
    path = tmp_path / "spelled.yaml"
    labels = []
    for text in (
        "softmax: {rescale_threshold: 8}\nwait_before: {mma1: 8}",
        "softmax: {rescale_threshold: 8.0}\nwait_before: {mma1: exp, mma0: }\nkernel: {}",
    ):
        path.write_text(f"{TEXTS['options']['text']}{text}\n")
        labels.append(load(path).label)
    assert labels == [f"{PLAIN}~softmax.rescale_threshold=8.0~wait_before.mma1=exp"] * 2
