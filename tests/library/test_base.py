"""A schedule file may say `base: best`: tests check what merges, and at which file, line and key a mistake is told."""

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
    # docs/experiments.md says which are not measured yet.
    if path.stem in rows:
        assert load(path).label == rows[path.stem].label
    text = yaml.safe_load(path.read_text())
    assert text["base"] == {"experiments": "best", "experiments/causal": "best_causal"}[folder]
    # Every key that it has changes something.
    for key in text.keys() - {"base", "summary"}:
        assert getattr(load(path), key) != getattr({"best": BEST, "best_causal": CAUSAL}[text["base"]], key), key


def test_mappings_merge_key_by_key_lists_replace_and_null_is_the_default(mine) -> None:
    path = mine(
        "base: best_causal\nsplit: {row_sum: null, exp: [64, 64]}\nkernel: {v_stages: null, output: direct}\n"
        "wait_before: null\nsoftmax: {exp2_polynomial: {every: 4}}\n"
        "group: [[load_k], [mask, mma0], [3, 4, 5, 6, 7, exp.0, exp.1, row_sum, 10], [11], [12], [13], [14]]\n"
    )
    found = load(path)
    assert (found.split.exp, found.split.row_sum, found.kernel.v_stages) == ((64, 64), None, None)
    assert found.kernel == CAUSAL.kernel.model_copy(update={"v_stages": None, "output": "direct"})
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


@pytest.mark.parametrize("path", sorted(SCHEDULES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file_meets_the_schema(path, validator) -> None:
    validator.validate(yaml.safe_load(path.read_text()))
    depth = len(path.relative_to(SCHEDULES).parts) - 1
    assert path.read_text().startswith(f"# yaml-language-server: $schema={'../' * depth}schedule.schema.json\n")
    assert set(yaml.safe_load(path.read_text())) <= set(ScheduleKeys.model_fields)
