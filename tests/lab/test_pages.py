"""In pages written by hand, commands print what the page shows, and statements about the code are right."""

from __future__ import annotations

import re
import shlex

import pytest
from conftest import ROOT
from page_commands import agrees, blocks, run_page
from tiers import sampled

from tl_attention.lab.cli import main

FIRST, READING, QUESTIONS = (ROOT / f"docs/{name}.md" for name in ("first-schedule", "reading-a-schedule", "questions"))
QUICK = [(READING, 1), (QUESTIONS, 1)]


@pytest.mark.parametrize("page,commands", sampled([(FIRST, 6), *QUICK], QUICK))
def test_the_commands_of_a_page_print_what_it_shows(page, commands, tmp_path) -> None:
    ran = list(run_page(page.read_text(), tmp_path))
    assert len(ran) == commands
    for command, shown, output in ran:
        assert agrees(shown, output), f"$ {command}\n{output}"


@pytest.mark.parametrize("page", [FIRST, READING], ids=lambda page: page.stem)
def test_the_parts_of_schedules_shown_are_those_that_ship(page) -> None:
    parts = [text for language, text in blocks(page.read_text()) if language == "yaml" and "base:" not in text]
    ship = [path.read_text() for path in (ROOT / "schedules").glob("*.yaml")]
    assert len(parts) == 1 and all(any(part in text for text in ship) for part in parts)


def test_the_compiler_that_gave_the_counts_is_the_pinned_one() -> None:
    [said] = re.findall(r"nvcc ([\d.]+\d)", FIRST.read_text())
    assert f"nvidia-cuda-nvcc=={said} " in (ROOT / "constraints.txt").read_text()


def test_the_timelines_that_commands_show_are_there() -> None:
    paths = {path for page in (ROOT / "docs").glob("*.md") for path in re.findall(r"--of (\S+)", page.read_text())}
    assert paths and all((ROOT / path).is_file() for path in paths), paths


def test_each_command_that_a_page_shows_can_be_typed() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    shown = re.compile(
        r"^(?:    |\$ )tl-attention (.+?)(?: +#.*)?$|`tl-attention ([^`]*(?:FILE|\.\.\.)[^`]*)`", re.MULTILINE
    )
    commands = {a or b for page in pages for a, b in shown.findall(page.read_text())}
    assert len(commands) > 40
    for name, *words in map(shlex.split, sorted(commands)):
        assert main.commands[name].make_context(name, words)
