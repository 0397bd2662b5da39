"""The TileLang program of a schedule as one text: the kernel's modules as they are, less their imports."""

from __future__ import annotations

from pathlib import Path

from tl_attention.lowering.registry import lowering_of
from tl_attention.schedule.schedule import Schedule

PACKAGE = Path(__file__).parents[1]
# What the text needs of the file that holds it.
IMPORTS = {
    "import tilelang.language as T",
    "from dataclasses import dataclass",
    "from types import SimpleNamespace",
    "from typing import NamedTuple",
}


def program_text(schedule: Schedule) -> str:
    """The macros and the schedule's kernel; what IMPORTS names must stand before it."""
    parts = []
    files = lowering_of(schedule).files
    packed = {f"tl_attention.{file.removesuffix('.py').replace('/', '.')}" for file in files}
    for file in files:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        imports = {line for line in text.splitlines() if line.startswith(("import ", "from "))}
        others = {line for line in imports if line.split()[1] not in packed}
        assert others <= IMPORTS, f"{file} imports {others}"
        for line in imports:
            text = text.replace(f"{line}\n", "", 1)
        # The module's docstring stays, as a comment on what follows.
        docstring, code = text.removeprefix('"""').split('"""', 1)
        comment = "\n".join(f"# {line}".rstrip() for line in docstring.strip().splitlines())
        parts.append(f"{comment}\n\n{code.strip()}")
    return "\n\n\n".join(parts)
