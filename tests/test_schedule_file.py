"""Schedule files are read, and have a JSON Schema; both agree on single mistakes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tl_attention.errors import InputError
from tl_attention.files.schedule_file import ScheduleKeys, load
from tl_attention.files.schema import json_schema
from tl_attention.loop.attention import NAMES

ROOT = Path(__file__).parents[1]
COMMITTED = ROOT / "schedules" / "schedule.schema.json"
SEED = yaml.safe_load((ROOT / "schedules" / "seed.yaml").read_text())
INFERRED = {"lowering": "inferred", "block_M": 128, "block_N": 128, "threads": 256, "num_stages": 2}


def loads(fields: dict[str, Any], folder: Path) -> bool:
    """Says whether the loader takes a file with these keys."""
    path = folder / "schedule.yaml"
    path.write_text(yaml.safe_dump(fields))
    try:
        load(path)
    except InputError:
        return False
    return True


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = COMMITTED.read_text()
    assert committed == json_schema(), f"run `tl-attention schema --output schedules/{COMMITTED.name}`"


def test_the_schema_command_writes_the_committed_file(cli, tmp_path) -> None:
    assert cli("schema", "--output", tmp_path / "schema.json").exit_code == 0
    assert (tmp_path / "schema.json").read_text() == COMMITTED.read_text()


def test_every_key_has_a_description_and_no_title_that_hides_it(validator) -> None:
    properties = validator.schema["properties"]
    assert list(properties) == list(ScheduleKeys.model_fields)
    assert all(len(entry.get("description", "")) > 15 and "title" not in entry for entry in properties.values())


def test_the_schema_completes_the_names_of_statements(validator) -> None:
    choices = validator.schema["properties"]["group"]["anyOf"][0]["items"]["items"]["anyOf"]
    assert choices[0]["enum"] == list(NAMES)


def single_mistakes() -> Iterator[tuple[str, Any]]:
    """Yields (key, wrong value): every kind of value for every key of the seed, where it is wrong for each use of the key."""
    for key in ("block_M", "block_N", "threads", "num_stages"):
        for value in (True, None, "128", [128], {"x": 1}, 0, -64, 10_000, 100.5):
            yield key, value
    yield from (("block_M", 96), ("block_N", 100), ("threads", 200), ("threads", 128), ("threads", 512))
    for key in ("lowering", "kv_order"):
        for value in (True, 1, "Pipelined", [], {}):
            yield key, value
    for key in ("order", "stage"):
        for value in (None, 3, "0 1 2", [], {"x": 1}):
            yield key, value
        for item in (-2, 18, 1.5, "1", True, []):
            yield key, [*SEED[key][:-1], item]
    for value in (None, 3, "load_k", [], {"x": 1}):
        yield "group", value
    for item in (14, "mma1", None, [], [18], [-1], ["foo"], ["14"], [14.5], [True], [None], [[14]], [14, 14]):
        yield "group", [*SEED["group"][:-1], item]
    yield from (("pipeline", 1), ("block_m", 128))


MISTAKES = list(single_mistakes())


@pytest.mark.parametrize("key, value", MISTAKES, ids=[f"{key}={value}"[:40] for key, value in MISTAKES])
def test_the_schema_rejects_a_single_mistake_that_the_loader_rejects(key, value, validator, tmp_path) -> None:
    fields = copy.deepcopy(SEED) | {key: value}
    assert not loads(fields, tmp_path)
    assert not validator.is_valid(fields)


@pytest.mark.parametrize("key", ["block_M", "block_N", "threads", "num_stages", "group", "order", "stage"])
def test_the_schema_and_the_loader_require_the_same_keys(key, validator, tmp_path) -> None:
    fields = {name: value for name, value in SEED.items() if name != key}
    assert not loads(fields, tmp_path) and not validator.is_valid(fields)


@pytest.mark.parametrize("key", ["lowering", "kv_order"])
def test_the_schema_and_the_loader_know_the_same_defaults(key, validator, tmp_path) -> None:
    fields = {name: value for name, value in SEED.items() if name != key}
    assert loads(fields, tmp_path) and validator.is_valid(fields)
    assert validator.schema["properties"][key]["default"] == ScheduleKeys(**fields).model_dump()[key]


@pytest.mark.parametrize("key", ["group", "order", "stage"])
def test_inferred_takes_no_order_in_the_schema_as_in_the_loader(key, validator, tmp_path) -> None:
    assert loads(INFERRED, tmp_path) and validator.is_valid(INFERRED)
    fields = INFERRED | {key: SEED[key]}
    assert not loads(fields, tmp_path) and not validator.is_valid(fields)


def test_names_and_numbers_and_both_ways_of_writing_lists_are_one_schedule(tmp_path, seed_path) -> None:
    path = tmp_path / "named.yaml"
    named = SEED | {"group": [[NAMES[number] for number in group] for group in SEED["group"]]}
    path.write_text(yaml.safe_dump(named, default_flow_style=False))
    assert load(path) == load(seed_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: f"---\n{text}...\n",
        lambda text: text.rstrip("\n"),
        lambda text: text + "\n# a comment\n",
    ],
    ids=["byte order mark", "crlf", "document marks", "no last newline", "comment"],
)
def test_what_editors_do_to_a_file_does_not_matter(change, tmp_path, seed_path) -> None:
    path = tmp_path / "edited.yaml"
    path.write_bytes(change(seed_path.read_text()).encode())
    assert load(path) == load(seed_path)


def test_a_mistake_in_a_list_over_many_lines_is_shown_at_its_own_line(tmp_path) -> None:
    path = tmp_path / "lines.yaml"
    path.write_text(yaml.safe_dump(SEED | {"order": [-1, 0, 3, 1, -1, 99]}, default_flow_style=False, sort_keys=False))
    line = path.read_text().splitlines().index("- 99") + 1
    with pytest.raises(InputError, match=rf"lines\.yaml:{line}: order\[5\]: position 99, expected each of 0 to 3"):
        load(path)
