"""Runs what a page shows: its files are written and its commands run, in order, in an empty folder.

A fenced block of yaml whose first line is `# NAME.yaml` is that file. In one of console a line after `$ ` is a command, and
those below are what it prints: `...` alone stands for any lines, at a line's end for the rest of it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.yaml)\n")
COMMAND = "tl-attention"
# What differs from run to run, and from machine to machine.
VARIES = ((r"\d{4}-\d\d-\d\dT[\d:]+Z", "DATE"), (r"(?<=checked_on_cpu  )0\.\d\d", "ERROR"))
LEFT_OUT = "..."


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return BLOCK.findall(page)


def run_page(page: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Each command of a page: itself, what the page shows, and what it printed."""
    for language, text in blocks(page):
        if language == "yaml" and (name := FILE.match(text)):
            (folder / name[1]).write_text(text)
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield command, shown, printed(command, folder)


def printed(command: str, folder: Path) -> str:
    """What a command prints without a GPU, to a file; its errors where it fails."""
    name, *arguments = shlex.split(command)
    assert name == COMMAND, f"{command}: expected {COMMAND}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
    call = [sys.executable, "-m", "tl_attention", *arguments]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + (done.stderr if done.returncode else "")


def agrees(shown: str, output: str) -> bool:
    """Whether a command printed what the page shows."""
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
