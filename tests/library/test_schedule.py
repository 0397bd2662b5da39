"""Tests check the Schedule: its rules, its label, and its optional keys, with what a wrong one is told."""

from __future__ import annotations

import json
import random

import pytest
import yaml
from conftest import ROOT
from specialized import HUNDREDS, hundred

from tl_attention.errors import InputError
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.loop.attention import NUMBER, SOURCE
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
    with pytest.raises(ValueError, match="write `threads: 256`"):
        Schedule(**SEED.model_dump() | {"threads": 128})


# --- optional keys ---------------------------------------------------------------------------------------------------


FILE = """\
lowering: warp_specialized
kv_order: descending
block_M: 128
block_N: 176
threads: 256
num_stages: 2
group:
  - [load_k]
  - [mask, mma0]
  - [max_prev, max_init, row_max, max_merge, scale, exp, row_sum, sum_merge]
  - [cast]
  - [rescale]
  - [load_v]
  - [mma1]
order: [-1, 0, 2, 3, 4, -1, 1]
stage: [-1, 0, 0, 0, 0, -1, 1]
"""


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
BAD_OPTIONS = {
    "~kernel.cluster": "'kernel.cluster' is not an option, expected such as kernel.cluster=1",
    "~": "'' is not an option",
    "~cluster=1": "'cluster=1' is not an option",
    "~group.x=1": "'group.x=1' is not an option",
    "~kernel.clus\nter=1": "is not an option",
    "~self.x=1": "is not an option",
    "~kernel.clustr=1": "kernel.clustr: unknown key, did you mean cluster? Expected one of k_stages",
    "~kernel.cluster=2": "is not spelled as labels are",
    "~kernel.cluster=on": "kernel.cluster: expected an integer, found true",
    "~kernel.cluster=1~kernel.cluster=1": "is not spelled as labels are",
    "~kernel.cluster=1~kernel.cluster.x=1": "is inside of an option that has a value already",
    "~kernel.cluster.x=1": "kernel.cluster: expected an integer, found a mapping of keys",
    "~kernel.cluster=1~kernel.k_stages=1": "is not spelled as labels are",
    "~kernel.registers=240": "kernel.registers: expected a list",
    "~kernel.registers=240+": "kernel.registers[1]: expected an integer",
    "~kernel.ping_pong=yes": "kernel.ping_pong: expected true or false, found 'yes'",
    "~softmax.rescale_threshold=8": "is not spelled as labels are",
    "~softmax.rescale_threshold=1e5": "softmax.rescale_threshold: expected a number, such as 8.0 or 1.0e-5, found '1e5'",
    "~softmax.exp2_polynomial.degree=3": "softmax.exp2_polynomial.every: the key is missing",
    "~wait_before.mma1=exp.1": "wait_before.mma1: no statement exp.1 in this schedule: exp is not split",
}


@pytest.mark.parametrize("suffix", BAD_OPTIONS)
def test_a_bad_option_of_a_label_is_told_in_one_line(suffix) -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_label(PLAIN + suffix)
    assert BAD_OPTIONS[suffix] in str(error.value) and "\n" not in str(error.value)


# What is added to the file, the line to blame counted from the first added one, and the message.
SCHEMA_TOO: dict[str, tuple[str, int, str]] = {
    "no mapping": ("kernel: 3", 0, "kernel: expected a mapping of keys, found 3"),
    "an unknown key in a key": (
        "softmax:\n  exp2_polynomial:\n    every: 2\n    degre: 3",
        3,
        "softmax.exp2_polynomial.degre: unknown key, did you mean degree? Expected one of every, first, degree",
    ),
    "cluster true": ("kernel: {cluster: true}", 0, "kernel.cluster: expected an integer, found true"),
    "no buffers": ("kernel: {k_stages: 0}", 0, "kernel.k_stages: expected at least 1, found 0"),
    "a word": ("kernel: {ping_pong: maybe}", 0, "kernel.ping_pong: expected true or false, found 'maybe'"),
    "another choice": ("kernel: {output: tme}", 0, "kernel.output: expected 'direct', 'vector' or 'tma', found 'tme'"),
    "one register count": ("kernel: {registers: [240]}", 0, "kernel.registers: expected at least 2 entries, found the"),
    "odd registers": ("kernel: {registers: [236, 24]}", 0, "kernel.registers[0]: expected a multiple of 8, found 236"),
    "text": (
        "softmax: {rescale_threshold: '8'}",
        0,
        "softmax.rescale_threshold: expected a number, such as 8.0 or 1.0e-5, found '8'",
    ),
    "a threshold of 16": ("softmax: {rescale_threshold: 16}", 0, "softmax.rescale_threshold: expected at most 15"),
    "a polynomial without every": (
        "softmax:\n  exp2_polynomial: {degree: 3}",
        1,
        "softmax.exp2_polynomial.every: the key is missing",
    ),
    "a chunk of 8": ("split: {exp: [8, 160]}", 0, "split.exp[0]: expected a multiple of 16, found 8"),
    "one chunk": ("split: {exp: [176]}", 0, "split.exp: expected at least 2 entries, found the list [176]"),
    "a wait before no statement": ("wait_before: {mma1: expp}", 0, "wait_before.mma1: 'expp' is no statement"),
    "a wait for no product": (
        "wait_before: {exp: mma1}",
        0,
        "wait_before.exp: unknown key, expected one of load_k, load_v, mma0",
    ),
}
MISTAKES = SCHEMA_TOO | {
    "a key twice": ("kernel:\n  cluster: 1\n  cluster: 2", 2, "kernel.cluster: given on line 18 already"),
    "base 60": ("softmax: {rescale_threshold: 1:3.5}", 0, "softmax.rescale_threshold: '1:3.5' is not a decimal number"),
    "no number": ("softmax: {rescale_threshold: .nan}", 0, "softmax.rescale_threshold: expected at most 15"),
    "more registers than there are": (
        "kernel: {registers: [240, 32]}",
        0,
        "kernel.registers: [240, 32] take 65,536 registers, the block is launched with 64,512",
    ),
    "fewer registers than at the launch": (
        "kernel: {registers: [160, 24]}",
        0,
        "kernel.registers: [160, 24], expected the first at least 168 and the second at most 168",
    ),
    "a producer that takes registers": (
        "kernel: {registers: [168, 176]}",
        0,
        "kernel.registers: [168, 176], expected the first at least 168 and the second at most 168",
    ),
    "a polynomial of no exponential": (
        "softmax: {exp2_polynomial: {every: 2, first: 88}}",
        0,
        "softmax.exp2_polynomial.first: 88, expected at most 87: a thread computes block_N / 2 = 88 exponentials",
    ),
    "a group without the chunks": (
        "split: {exp: [96, 80]}",
        -7,
        "group[2]: no statement exp in this schedule: split.exp cuts it into exp.0 to",
    ),
    "a wait before a fused one": ("wait_before: {mma1: mask}", 0, "wait_before.mma1: mask has no place of its own"),
    "a release before a load": ("release_before: {load_k: 13}", 0, "release_before.load_k: load_v has no place of its"),
    "a release of a chunk": ("release_before: {load_k: exp.1}", 0, "release_before.load_k: no statement exp.1"),
}


def added(text: str) -> str:
    """Returns the file with lines added, and with two chunks of cast where the lines split cast."""
    return (FILE.replace("[cast]", "[cast.0, cast.1]") if "cast:" in text else FILE) + f"{text}\n"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_an_option_is_told_with_file_line_and_key(name, tmp_path, error_of) -> None:
    text, line, words = MISTAKES[name]
    path = tmp_path / "changed.yaml"
    path.write_text(added(text))
    assert error_of("check", path).startswith(f"{path}:{17 + line}: {words}")


@pytest.mark.parametrize("name", SCHEMA_TOO)
def test_the_schema_rejects_it_too(name, validator) -> None:
    assert not validator.is_valid(yaml.safe_load(added(SCHEMA_TOO[name][0])))


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
        path.write_text(added(text))
        labels.append(load(path).label)
    assert labels == [f"{PLAIN}~softmax.rescale_threshold=8.0~wait_before.mma1=exp"] * 2
