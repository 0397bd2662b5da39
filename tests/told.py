"""Runs the commands of two tables, which have their words to the letter: yaml_mistakes.yaml and outputs.yaml.

    python tests/told.py        # writes the words anew

A row has a `file`, which is mine.yaml in the folder of the command, or says `of` which text that file is, with `new`
instead of `old` or behind all. Other files and links of the folder are the tables'. Its `command` is the text's, or
`check mine.yaml`. A mistake `says` what stands behind `error: `. An output `prints` its first lines, as many as `head`
says, or all, in so many `columns`, and `writes` files; if it is an error too, the row `says` so.
"""

import os
import re
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from click.testing import CliRunner, Result
from conftest import ROOT

from tl_attention.lab.cli import main

TABLES = {name: Path(__file__).with_name(f"{name}.yaml") for name in ("yaml_mistakes", "outputs")}
TOLD = {name: yaml.safe_load(path.read_text()) for name, path in TABLES.items()}
TEXTS = TOLD["yaml_mistakes"]["texts"] | TOLD["outputs"]["texts"]
MISTAKES, OUTPUTS = TOLD["yaml_mistakes"]["mistakes"], TOLD["outputs"]["outputs"]
Row = dict[str, Any]


def file_of(row: Row) -> str:
    """Returns the text of mine.yaml: the row's own, or one that several rows change."""
    if "of" not in row:
        return row.get("file", TEXTS["seed"]["text"])
    text = TEXTS[row["of"]].get("text") or (ROOT / TEXTS[row["of"]]["path"]).read_text()
    assert row.get("old", "") in text, row
    return text.replace(row["old"], row["new"], 1) if "old" in row else text + row.get("new", "")


def lay_out(row: Row) -> None:
    """Writes the row's file into the current folder, and the tables' files and links beside it."""
    for name, text in {**TOLD["yaml_mistakes"]["files"], "mine.yaml": file_of(row)}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    for name, target in TOLD["yaml_mistakes"]["links"].items():
        (os.link if name.startswith("hard") else os.symlink)(target, name)


def told(row: Row) -> tuple[Result, Row]:
    """Runs the row's command in the current folder, and returns its result, and what the row should have of it."""
    lay_out(row)
    before = what_is_there()
    command = row.get("command") or TEXTS.get(row.get("of"), {}).get("command", "check mine.yaml")
    result = CliRunner(env={"COLUMNS": str(row.get("columns", 80))}).invoke(main, shlex.split(command))
    shown, errors = (text.replace(str(ROOT), "ROOT").splitlines(True) for text in (result.stdout, result.stderr))
    after = what_is_there()
    assert {name: after.get(name) for name in before} == before, f"{command} has changed a file"
    found = {
        "says": [
            line.removeprefix("error: ").removesuffix("\n") for line in errors if not line.startswith("written: ")
        ],
        "prints": "".join(shown[: row.get("head")]),
        "writes": {name: data.decode() for name, data in after.items() if name not in before},
    }
    return result, {key: of for key, of in found.items() if of}


def what_is_there() -> dict[str, bytes]:
    """Returns the bytes of each file below the current folder."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def write_anew() -> None:
    """Runs every row, and writes what its command says and prints into the tables."""
    for row in (*MISTAKES, *OUTPUTS):
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            row |= told(row)[1]
    _Dumper.add_representer(str, _Dumper.represent_text)
    for name, path in TABLES.items():
        heading = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
        text = yaml.dump(TOLD[name], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
        path.write_text(heading + text)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""

    def represent_text(self, text: str) -> yaml.Node:
        as_block = text.strip("\n") and "\n" in text and not re.search(r"[\t\x00-\x08\x1b\xa0]| \n", text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if as_block else None)


if __name__ == "__main__":
    write_anew()
