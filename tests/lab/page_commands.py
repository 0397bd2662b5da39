"""Runs what a page shows: its files are written and its commands run, in order, in an empty folder.

A fenced block of yaml is a file if its first line is `# NAME.yaml`. In a block of console a line after `$ ` is a
command, and the lines below are what the command prints: `...` alone stands for any lines, and at a line's end for the
rest of the line.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.yaml)\n")
COMMAND = "tl-attention"
# Words that differ from run to run, or from machine to machine, and what stands for them.
VARIES = ((r"\d{4}-\d\d-\d\dT[\d:]+Z", "DATE"), (r"(checked_on_cpu +)0\.\d\d", r"\1ERROR"))
LEFT_OUT = "..."


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns the language and the text of each fenced block."""
    return BLOCK.findall(page)


def run_page(page: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Runs each command of a page, and yields the command, what the page shows, and what the command printed."""
    for language, text in blocks(page):
        if language == "yaml" and (name := FILE.match(text)):
            (folder / name[1]).write_text(text)
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield command, shown, printed(command, folder)


def printed(command: str, folder: Path) -> str:
    """Returns what a command prints to a file, without a GPU; its errors too where it fails."""
    name, *arguments = shlex.split(command)
    assert name == COMMAND, f"{command}: expected {COMMAND}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
    call = [sys.executable, "-m", "tl_attention", *arguments]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + (done.stderr if done.returncode else "")


def agrees(shown: str, output: str) -> bool:
    """Says whether a command printed what the page shows."""
    lines = [
        r"(?:.*\n)*" if line == LEFT_OUT else _pattern(line.removesuffix(LEFT_OUT), line.endswith(f" {LEFT_OUT}"))
        for line in _settled(shown).splitlines()
    ]
    return re.fullmatch("".join(lines), _settled(output)) is not None


def _pattern(line: str, goes_on: bool) -> str:
    return re.escape(line) + (r".*\n" if goes_on else r"\n")


def _settled(text: str) -> str:
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return text
