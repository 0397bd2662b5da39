"""What packing needs besides the package itself, looked for before anything else is imported: all that is missing at once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial

from tl_attention.build import toolchain
from tl_attention.build.sass import TOOLS, tool
from tl_attention.errors import InputError
from tl_attention.leaderboard.cubin import PACKAGES
from tl_attention.measure.environment import package

# What formats a file: other releases may do so in another way.
RUFF = "0.17.6"
# Edits the text of a program. Any of these releases does it alike.
LIBCST = ">=1.8,<2"


def check_all_there() -> None:
    """Raise InputError with everything that is missing, and the command that installs the packages among it."""
    pins = {f"{name}=={version}": (name, version) for name, version in {**PACKAGES, "ruff": RUFF}.items()}
    absent = [pin for pin, (name, version) in pins.items() if package(name) != version]
    if package("libcst") is None:
        absent.append(f"libcst{LIBCST}")
    tools = list(_absent_tools())
    parts = []
    if absent:
        others = ", ".join(
            f"{name} {there}" for name, version in pins.values() if (there := package(name)) not in (None, version)
        )
        command = f"`pip install {' '.join(map(shlex.quote, absent))}`"
        parts.append(f"missing packages: {command}{f' (here is {others})' if others else ''}")
    if tools:
        parts.append(f"missing tools: {', '.join(tools)}{toolchain.SEE_DOCTOR}")
    if parts:
        raise InputError(f"submit: {'; '.join(parts)}")


def _absent_tools() -> Iterator[str]:
    import torch

    if _fails(lambda: toolchain.chosen(torch.version.cuda)):
        yield "nvcc"
    if _fails(toolchain.check_host_compiler):
        yield "a C++ compiler"
    for name in TOOLS:
        if _fails(partial(tool, name)):
            yield name


def _fails(look: Callable[[], object]) -> bool:
    try:
        look()
    except InputError:
        return True
    return False
