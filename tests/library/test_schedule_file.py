"""Schedule files are read, and have a JSON Schema; a mistake is told at its line, in the author's terms."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from told import MISTAKES, file_of

from tl_attention.errors import InputError
from tl_attention.schedule.files import yaml_text
from tl_attention.schedule.files.schedule_file import ScheduleKeys, load
from tl_attention.schedule.loop.loops import NAMES

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


def test_the_committed_schema_is_what_the_command_prints(cli) -> None:
    made = cli("check", "--schema").stdout
    assert made == COMMITTED.read_text(), f"run `tl-attention check --schema > schedules/{COMMITTED.name}`"


def test_every_key_has_a_description_and_no_title_that_hides_it(validator) -> None:
    properties = validator.schema["properties"]
    assert list(properties) == list(ScheduleKeys.model_fields)
    assert all(len(entry.get("description", "")) > 15 and "title" not in entry for entry in properties.values())


def test_the_schema_completes_the_names_of_statements(validator) -> None:
    choices = validator.schema["properties"]["group"]["anyOf"][0]["items"]["items"]["anyOf"]
    assert choices[0]["enum"] == list(NAMES)


def single_mistakes() -> Iterator[tuple[str, Any]]:
    """Yields (key, wrong value): every kind of value for every key of the seed, if it is wrong for each of its uses."""
    for key in ("block_M", "block_N", "threads", "num_stages"):
        for value in (True, None, "128", [128], {"x": 1}, 0, -64, 10_000, 100.5):
            yield key, value
    yield from (("block_M", 96), ("block_N", 100), ("threads", 200))
    for key in ("lowering", "kv_order"):
        for value in (True, 1, "Pipelined", [], {}):
            yield key, value
    for key in ("order", "stage"):
        for value in (3, "0 1 2", {"x": 1}):
            yield key, value
        for item in (-2, 1.5, "1", True, []):
            yield key, [*SEED[key][:-1], item]
    for value in (3, "load_k", {"x": 1}):
        yield "group", value
    for item in (14, "mma1", None, [18], [-1], ["foo"], ["14"], [14.5], [True], [None], [[14]]):
        yield "group", [*SEED["group"][:-1], item]
    yield from (("pipeline", 1), ("block_m", 128))


WRONG = list(single_mistakes())


@pytest.mark.parametrize("key, value", WRONG, ids=[f"{key}={value}"[:40] for key, value in WRONG])
def test_the_schema_rejects_a_single_mistake_that_the_loader_rejects(key, value, validator, tmp_path) -> None:
    fields = copy.deepcopy(SEED) | {key: value}
    assert not loads(fields, tmp_path)
    assert not validator.is_valid(fields)


@pytest.mark.parametrize("key", ["block_M", "block_N", "threads", "num_stages"])
def test_the_schema_and_the_loader_require_the_same_keys(key, validator, tmp_path) -> None:
    fields = {name: value for name, value in SEED.items() if name != key}
    assert not loads(fields, tmp_path) and not validator.is_valid(fields)


@pytest.mark.parametrize("key", ["lowering", "kv_order"])
def test_the_schema_and_the_loader_know_the_same_defaults(key, validator, tmp_path) -> None:
    fields = {name: value for name, value in SEED.items() if name != key}
    assert loads(fields, tmp_path) and validator.is_valid(fields)
    assert validator.schema["properties"][key]["default"] == ScheduleKeys(**fields).model_dump()[key]


@pytest.mark.parametrize("key", ["group", "order", "stage"])
def test_inferred_takes_no_order(key, validator, tmp_path) -> None:
    assert loads(INFERRED, tmp_path) and validator.is_valid(INFERRED)
    assert not loads(INFERRED | {key: SEED[key]}, tmp_path)


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


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_file_is_read_alike_by_libyaml_and_without_it(tmp_path, monkeypatch) -> None:
    """The files are those that ship and those with mistakes, with a character more or another."""
    draw, path = random.Random(7), tmp_path / "mine.yaml"
    texts = [file.read_text() for file in (ROOT / "schedules").rglob("*.yaml")] + [file_of(row) for row in MISTAKES]
    for text in draw.choices([text for text in texts if 0 < len(text) < 2000], k=500):
        at = draw.randrange(len(text))
        path.write_text(
            text[:at] + draw.choice("\t\n -:,[]{}#&*!|>?'\"%@`~.1a\u2028") + text[at + draw.choice((0, 1)) :]
        )
        read = []
        for parser in (yaml_text.FAST, yaml.SafeLoader):
            monkeypatch.setattr(yaml_text, "FAST", parser)
            try:
                read.append(yaml_text.read_faulty(path))
            except InputError as error:
                read.append(str(error))
        monkeypatch.undo()
        assert read[0] == read[1], path.read_text()


def test_the_message_of_python_has_a_line_for_each_mistake(mine) -> None:
    path = mine("base: best\nblock_N: 100\nthreads: 200\n")
    with pytest.raises(InputError) as error:
        load(path)
    lines = (
        f"{path}:2: block_N: expected a multiple of 16, found 100",
        f"{path}:3: threads: expected a multiple of 128, found 200",
    )
    assert error.value.lines == lines and str(error.value) == "\n".join(lines)


def test_a_file_of_mistakes_is_not_told_to_its_end(mine) -> None:
    with pytest.raises(InputError) as error:
        load(mine("base: best\n" + "".join(f"key_{number}: 1\n" for number in range(50))))
    assert len(error.value.lines) == 21 and error.value.lines[-1].endswith("mine.yaml: 30 more mistakes")


WHOLE = """\
block_M: 128
block_N: 128
threads: 256
num_stages: 2
group: [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11], [12], [13], [14]]
order: [-1, 0, 3, 1, -1, 2]
stage: [-1, 0, 0, 1, -1, 1]
"""


@pytest.mark.parametrize("line", ["kernel: null", "summary: null", "head_dims:", "lowering: ~", "softmax: {row_max: }"])
def test_null_is_the_default_in_a_file_without_a_base(line, mine) -> None:
    assert load(mine(f"{WHOLE}{line}\n")) == load(mine(WHOLE))
