"""Counts what a newcomer meets: commands and their options, and the words of docs/ and of the README.

    python tests/lab/front_desk.py

Words are those outside of code and of tables that are made from records: a table that somebody wrote counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MADE = re.compile(r"<!-- (?P<name>[\w ]+) -->\n(?P<part>.*?)<!-- end of (?P=name) -->", re.DOTALL)
TABLE = re.compile(r"^ *\|.*\n?", re.MULTILINE)
# Of a link its words count, of a picture what is said in its place.
TARGET = re.compile(r"\]\([^)\s]*\)|^\[[^]]+\]: .*$", re.MULTILINE)
WORD = re.compile(r"\S*\w\S*")


def words(text: str, made: bool = False) -> int:
    """Returns the words of a page in Markdown; `made` says that all its tables are made from records."""
    text = MADE.sub(lambda part: TABLE.sub("", part["part"]), FENCED.sub("", text))
    text = TABLE.sub("", text) if made else text
    return len(WORD.findall(TARGET.sub("]", COMMENT.sub("", text))))


def pages() -> dict[str, int]:
    """Returns the words of each page of docs/, by its path."""
    from make import TEXTS

    found = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path, text = str(page.relative_to(ROOT)), page.read_text("utf-8")
        # A page that is made as a whole has no marks for parts.
        found[path] = words(text, made=path in TEXTS and not MADE.search(text))
    return found


def options() -> dict[str, int]:
    """Returns how many options each command has, by its name; one that is hidden has none that anybody meets."""
    from tl_attention.lab.cli import main

    return {
        name: sum(isinstance(parameter, click.Option) for parameter in command.params)
        for name, command in sorted(main.commands.items())
        if not command.hidden
    }


def lines() -> Iterator[str]:
    """Yields each count, and the sums."""
    for title, found in (("words", pages()), ("options", options())):
        for name, count in sorted(found.items(), key=lambda one: -one[1]):
            yield f"{count:6,} {name}"
        yield f"{sum(found.values()):6,} {title} in {len(found)}"
    readme = (ROOT / "README.md").read_text("utf-8")
    yield f"README.md: {len(readme.splitlines())} lines, {len(readme.split()):,} words, tables and code too"


if __name__ == "__main__":
    print("\n".join(lines()))
