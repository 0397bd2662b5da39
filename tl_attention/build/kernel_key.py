"""What names a finished kernel: everything that changes its code, its proof, or whether its library can be loaded.

It costs no import of TileLang and no trace: what these read is named instead of what they make. The compiler is asked
who it is each time; an installed package is known by the list of its files, each with its hash.
"""

from __future__ import annotations

import functools
import json
import os
import platform
from dataclasses import fields
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tl_attention.build.library import tilelang_folder
from tl_attention.build.toolchain import Nvcc
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# Where the text is that makes kernels and proves them: in build/, and in all that it imports.
MAKING = ("errors.py", "problem", "hardware", "loop", "schedule", "program", "proof", "lowering", "build")
PACKAGE = Path(__file__).parents[1]
# Its solver simplifies what TileLang generates.
COMPILED_BY = ("tilelang", "apache-tvm-ffi", "z3-solver")
# Beside what answers to --version, the program that nvcc calls for the GPU's code.
TOOLS = ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc")
# What TileLang reads that changes the code: an option of a pass, and folders of headers, its own ones unless set.
OPTION = "TILELANG_LAYOUT_COST_MODEL"
HEADERS = ("TL_TEMPLATE_PATH", "TL_CUTLASS_PATH")


def kernel_key(schedule: Schedule, variant: Variant, nvcc: Nvcc) -> str:
    """A hash of all that a finished kernel depends on: the same in every process."""
    made_of = {
        "schedule": schedule.model_dump_json(),
        "variant": {field.name: _written(getattr(variant, field.name)) for field in fields(variant)},
        "package": VERSION,
        "compiled by": [installed(name) for name in COMPILED_BY],
        "nvcc": [nvcc.cache, *(_size(nvcc.home / tool) for tool in TOOLS)],
        "environment": [os.environ.get(OPTION), *map(_foreign, HEADERS)],
        "machine": platform.machine(),
    }
    return sha256(json.dumps(made_of).encode()).hexdigest()


def version(package: Path) -> str:
    """A hash of the text that makes and proves kernels, as the package has it in this folder."""
    files = [package / MAKING[0], *(file for room in MAKING[1:] for file in sorted((package / room).rglob("*.py")))]
    # Whatever an editor puts beside a module need not be a file.
    text = {str(file.relative_to(package)): file.read_text("utf-8") for file in files if file.is_file()}
    return sha256(json.dumps(text).encode()).hexdigest()


# Read together with the modules themselves: a file that is edited later is not what runs in this process.
VERSION = version(PACKAGE)


@functools.cache
def installed(name: str) -> str:
    """A hash of what is installed under this name: the list of its files, or its version where it has none."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return ""
    return sha256((found.read_text("RECORD") or found.version).encode()).hexdigest()


def _written(value: object) -> object:
    # A set has another order in each process.
    return sorted(value) if isinstance(value, frozenset) else repr(value)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _foreign(variable: str) -> str | None:
    """The folder that the variable names, unless it is TileLang's own, as TileLang itself sets it."""
    named, own = os.environ.get(variable), tilelang_folder()
    return None if not named or (own and Path(named).resolve().is_relative_to(own)) else named
