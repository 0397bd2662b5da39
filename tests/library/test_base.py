"""A schedule file may say `base: best`: tests check what merges, and at which file, line and key a mistake is told."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from tl_attention.errors import InputError
from tl_attention.lab.measure.records import read_rows
from tl_attention.schedule.files.schedule_file import MOST_BASES, ScheduleKeys, load, load_file

SCHEDULES = ROOT / "schedules"
BEST = load(SCHEDULES / "best.yaml")
CAUSAL = load(SCHEDULES / "best_causal.yaml")
RECORDS = {"experiments": "experiments-h200", "experiments/causal": "experiments-causal-h200"}
EXPERIMENTS = [(folder, path) for folder in RECORDS for path in sorted((SCHEDULES / folder).glob("*.yaml"))]


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("folder, path", EXPERIMENTS, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_an_experiment_is_what_was_recorded_and_says_what_it_changes(folder, path) -> None:
    rows = {row.name: row for row in read_rows(ROOT / f"results/{RECORDS[folder]}.jsonl")}
    assert load(path).label == rows[path.stem].label
    text = yaml.safe_load(path.read_text())
    assert text["base"] == {"experiments": "best", "experiments/causal": "best_causal"}[folder]
    # Every key that it has changes something.
    for key in text.keys() - {"base", "summary"}:
        assert getattr(load(path), key) != getattr({"best": BEST, "best_causal": CAUSAL}[text["base"]], key), key


def test_mappings_merge_key_by_key_lists_replace_and_null_is_the_default(mine) -> None:
    path = mine(
        "base: best_causal\nsplit: {row_sum: null, exp: [64, 64]}\nkernel: {v_stages: null, output: tma}\n"
        "wait_before: null\nsoftmax: {exp2_polynomial: {every: 4}}\n"
        "group: [[load_k], [mask, mma0], [3, 4, 5, 6, 7, exp.0, exp.1, row_sum, 10], [11], [12], [13], [14]]\n"
    )
    found = load(path)
    assert (found.split.exp, found.split.row_sum, found.kernel.v_stages) == ((64, 64), None, None)
    assert found.kernel == CAUSAL.kernel.model_copy(update={"v_stages": None, "output": "tma"})
    assert found.softmax.row_max == "thread" and found.softmax.exp2_polynomial.every == 4
    assert found.wait_before.mma1 is None and (found.order, found.block_N) == (CAUSAL.order, CAUSAL.block_N)


def test_a_base_may_be_a_file_beside_it_and_have_a_base_of_its_own(mine, tmp_path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "base.yaml").write_text("base: ../middle.yaml\nkernel: {output: tma}\n")
    (tmp_path / "middle.yaml").write_text("base: best\nkernel: {ping_pong: false}\n")
    found = load(mine("base: below/base.yaml\nkernel: {cluster: 1}\n"))
    assert found.kernel == BEST.kernel.model_copy(update={"output": "tma", "ping_pong": False, "cluster": 1})


def test_what_a_file_says_about_itself_is_not_in_the_schedule_and_not_taken_over(mine, tmp_path) -> None:
    (tmp_path / "base.yaml").write_text("base: best\nsummary: the base\nhead_dims: [64]\n")
    base, own = load_file(tmp_path / "base.yaml"), load_file(mine("base: base.yaml\n"))
    assert (base.summary, base.head_dims) == ("the base", (64,)) and (own.summary, own.head_dims) == ("", (64, 128))
    assert base.schedule == own.schedule == BEST and base.schedule.label == BEST.label


# A file; the message behind its path.
MISTAKES = {
    "unknown base": ("base: bets\n", "1: base: no schedule is named 'bets': did you mean best? "),
    "base of no kind": (
        "block_N: 64\nbase: 3\n",
        "2: base: expected a schedule's name or a file, such as best, found 3",
    ),
    "base as a list": ("base: [best]\n", "1: base: expected a schedule's name or a file"),
    "missing file": (
        "\nbase: ../no.yaml\n",
        "2: base: {folder}/../no.yaml is no file, expected one relative to {folder}/mine.yaml",
    ),
    "a name that no file can have": (f"base: {'x' * 5000}.yaml\n", "1: base: {folder}/xxx"),
    "a folder": ("base: folder.yaml\n", "1: base: {folder}/folder.yaml is no file"),
    "its own base": ("base: mine.yaml\n", "1: base: a file cannot be its own base: {folder}/mine.yaml -> "),
    "own value": ("base: best\nnum_stages: 99\n", "2: num_stages: expected at most 8, found 99"),
    "null of an unknown key": ("base: best\nblock: null\n", "2: block: unknown key, did you mean block_N?"),
    "own statement": (
        "base: best\nwait_before: {mma1: exp_1}\n",
        "2: wait_before.mma1: 'exp_1' is no statement, did you mean exp.1?",
    ),
    "two lines of summary": ("base: best\nsummary: |\n  a\n  b\n", "2: summary: expected one line of printable text"),
    "escape in the summary": (
        'base: best\nsummary: "\\e[31m"\n',
        "2: summary: expected one line of printable text, found '\\x1b",
    ),
    "long summary": (f"base: best\nsummary: {'x' * 101}\n", "2: summary: expected at most 100 characters"),
    "summary of no kind": ("base: best\nsummary: 3\n", "2: summary: expected text, found 3"),
    "head_dims of no kernel": ("base: best\nhead_dims: [64, 72]\n", "2: head_dims[1]: expected "),
    "a head size twice": (
        "base: best\nhead_dims: [64, 64]\n",
        "2: head_dims: expected each once, found the list [64, 64]",
    ),
    "no head_dims": ("base: best\nhead_dims: []\n", "2: head_dims: expected at least 1 entry"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_at_its_file_line_and_key(name, mine, tmp_path) -> None:
    text, words = MISTAKES[name]
    (tmp_path / "folder.yaml").mkdir()
    path = mine(text)
    assert refused(path).startswith(f"{path}:{words.format(folder=tmp_path)}")


def test_a_mistake_in_a_base_that_is_no_yaml_is_told_at_the_base(mine, tmp_path) -> None:
    (tmp_path / "base.yaml").write_text("block_M: 128\nblock_N 3\n")
    assert refused(mine("base: base.yaml\n")).startswith(f"{tmp_path / 'base.yaml'}:2: not YAML: ")


def test_a_cycle_and_a_chain_that_is_too_deep_are_told(tmp_path) -> None:
    for a, b in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{a}.yaml").write_text(f"base: {b}.yaml\n")
    assert f"c.yaml:1: base: a file cannot be its own base: {tmp_path}/a.yaml -> " in refused(tmp_path / "a.yaml")
    last = "best"
    for number in range(MOST_BASES):
        (tmp_path / f"{number}.yaml").write_text(f"base: {last}\n")
        last = f"{number}.yaml"
    assert load(tmp_path / last) == BEST
    (tmp_path / "deep.yaml").write_text(f"base: {last}\n")
    assert f"more than {MOST_BASES} bases, one behind the other" in refused(tmp_path / "deep.yaml")


def test_a_refusal_is_told_at_the_line_of_the_own_file_or_the_bases(mine, error_of) -> None:
    path = mine("base: seed\nblock_N: 256\nnum_stages: 1\n")
    assert error_of("check", path).startswith(f"{path}:2: refused: block_N: needs 266 registers")
    path = mine("base: seed_stages4\nsummary: mine\n")
    assert re.fullmatch(
        rf"{path}:1: refused: num_stages: needs .* fewer buffers; base seed_stages4 is meant for other head "
        r"sizes, write `head_dims: \[64\]` too \(from base seed_stages4, line 6\)",
        error_of("check", path, "--head-dim", "128"),
    )
    path = mine("base: best\nwait_before:\n  mma1: mma1\n")
    assert error_of("check", path).startswith(f"{path}:3: refused: wait_before.mma1: ")


# `max_init` after `max_merge`, whose value `scale` needs.
MIXED_GROUP = "base: seed\ngroup: [[0], [1, 2], [3, 5, 6, 4, 7, 8, 9, 10, 11], [12], [13], [14]]\n"
# A file with a base; the line and the key to blame, and how the reason begins.
AT_FAULT = {
    "group": (MIXED_GROUP, "2: refused: group: max_init(t) overwrites"),
    "order before group": (f"{MIXED_GROUP}order: [-1, 0, 3, 1, -1, 2]\n", "3: refused: order: max_init(t) overwrites"),
    "stage": ("base: seed\nstage: [-1, 0, 0, 0, -1, 0]\n", "2: refused: stage: "),
    "order of a wait": (
        "base: best\norder: [-1, 0, 1, 2, 3, -1, 4]\n",
        "2: refused: order: wait_before.mma1: exp.1 does not come between ",
    ),
    "group of the base's": ("base: mixed.yaml\nsummary: x\n", "1: refused: group: max_init(t) overwrites"),
    "memory by block_N": ("base: fa3_overlap\nblock_N: 256\n", "2: refused: block_N: needs 295,936 bytes"),
    "memory by k_stages": ("base: best\nkernel:\n  k_stages: 6\n", "3: refused: kernel.k_stages: needs "),
    "registers by block_M": ("base: seed\nblock_M: 256\nthreads: 512\n", "2: refused: block_M: needs 138 registers"),
}


@pytest.mark.parametrize("name", AT_FAULT)
def test_a_refusal_blames_what_the_file_changes_before_what_its_base_has(name, mine, tmp_path, error_of) -> None:
    text, words = AT_FAULT[name]
    (tmp_path / "mixed.yaml").write_text(MIXED_GROUP)
    path = mine(text)
    assert error_of("check", path).startswith(f"{path}:{words}")


OPTIONAL = [
    ("lowering",),
    ("kernel",),
    ("kernel", "cluster"),
    ("softmax", "exp2_polynomial", "degree"),
    ("split", "exp"),
]


@pytest.mark.parametrize("key", OPTIONAL, ids=".".join)
def test_null_is_the_default_of_an_optional_key_with_a_base_and_without(key, validator, mine) -> None:
    value: Any = None
    for part in reversed(key):
        value = {part: value}
    assert validator.is_valid({"base": "best"} | value)
    whole = yaml.safe_load((SCHEDULES / "fa3_overlap.yaml").read_text())
    if key[0] == "kernel":
        assert validator.is_valid(whole | value)
        assert load(mine(yaml.safe_dump(whole | value))).kernel.cluster == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"base": "best"},
        {"base": "best", "block_N": 128},
        {"base": "a/b.yaml", "softmax": {"exp2_polynomial": {"degree": 3}}},
        {"base": "best", "head_dims": [64], "summary": "x"},
        {"base": "best", "lowering": "pipelined"},
    ],
)
def test_the_schema_takes_a_base_and_some_of_the_keys(fields, validator) -> None:
    validator.validate(fields)
    assert not validator.is_valid({key: value for key, value in fields.items() if key != "base"})


@pytest.mark.parametrize(
    "fields",
    [
        {"base": 3},
        {"base": None},
        {"base": ""},
        {"block_M": None},
        {"block_N": 100},
        {"sumary": "x"},
        {"summary": 3},
        {"head_dims": []},
        {"head_dims": [72]},
        {"head_dims": 64},
        {"head_dims": [64, 64]},
        {"kernel": {"pingpong": True}},
        {"kernel": 3},
        {"wait_before": {"mma1": "foo"}},
    ],
)
def test_the_schema_and_the_loader_reject_the_same_beside_a_base(fields, validator, mine) -> None:
    fields = {"base": "best"} | fields
    assert not validator.is_valid(fields)
    refused(mine(yaml.safe_dump(fields)))


@pytest.mark.parametrize("path", sorted(SCHEDULES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file_meets_the_schema(path, validator) -> None:
    validator.validate(yaml.safe_load(path.read_text()))
    depth = len(path.relative_to(SCHEDULES).parts) - 1
    assert path.read_text().startswith(f"# yaml-language-server: $schema={'../' * depth}schedule.schema.json\n")
    assert set(yaml.safe_load(path.read_text())) <= set(ScheduleKeys.model_fields)
