"""A mistake in a schedule file is told at the line that its author wrote, in the author's terms, with what works.

`yaml_mistakes.yaml` has the files and, to the letter, what `tl-attention check` says of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from moves.space import listed_keys

from tl_attention.errors import InputError
from tl_attention.files.named import resolve
from tl_attention.files.schedule_file import load

TABLE = yaml.safe_load(Path(__file__).with_name("yaml_mistakes.yaml").read_text())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["mistake"])
def test_every_mistake_has_its_line_its_words_and_what_works(row, mine, cli, monkeypatch, tmp_path) -> None:
    mine(row["file"])
    monkeypatch.chdir(tmp_path)
    result = cli("check", "mine.yaml")
    assert result.exit_code == 2 and not result.stdout
    assert [line.removeprefix("error: ") for line in result.stderr.splitlines()] == row["says"]
    # The words of PyYAML's parser and of pydantic are theirs.
    assert not re.search(r"token|scalar|block mapping|flow sequence|mapping values|pydantic", result.stderr)


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


def merged(fields: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(fields[key], more[key]) for key in fields.keys() & more if isinstance(more[key], dict)}
    return fields | more | both


@pytest.mark.parametrize("base", ["best", "best_causal", "seed"])
def test_what_a_refusal_says_to_write_too_is_taken(base, mine) -> None:
    """Every other value of every key of the base is tried: what stands in backquotes makes the file one without mistakes."""
    followed = 0
    for path, values in listed_keys(resolve(base).schedule):
        for value in values if len(values) < 40 else ():
            own: Any = value
            for part in reversed(path):
                own = {part: own}
            fields = {"base": base, **own}
            try:
                load(mine(yaml.safe_dump(fields)))
                continue
            except InputError as error:
                lines = error.lines
            advised = re.search(r"(?:needs|or write|; write) (`.*`) too(?::|$)", lines[0])
            if advised and ("another" in lines[0] or "`group`" in lines[0]):
                continue
            assert advised or not lines[0].endswith(" too"), lines
            if advised:
                for written in re.findall(r"`([^`]*)`", advised[1]):
                    fields = merged(fields, yaml.safe_load(written))
                load(mine(yaml.safe_dump(fields)))
                followed += 1
    assert followed >= 3
