"""This module keeps finished kernels on disk, a file each.

A file has a kernel's machine code, the text that this was made of, the host's plan, and the proof's verdict. It is
named by the key of its kernel and by its maker, and ends with a seal over its name and all that stands before. A file
that is not exactly what was written is taken for absent, and replaced by whoever makes the kernel again. Files are
written whole or not at all, so any number of processes may write at once. Where nothing can be written, kernels are
made again every time.

The key is a hash of all that a call decides and of the package's text: what a process looks for. The maker is a hash of
the compiler, TileLang and the environment. A kernel of another maker is made again where there is a compiler, and taken
where there is none. Neither needs an import of TileLang or a trace. The compiler is asked for its version each time; an
installed package is known by the list of its files, each with its hash.

The seal finds damage. It does not keep others from writing a kernel of their own: `trust.py` does.
"""

from __future__ import annotations

import functools
import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from uuid import uuid4

from tl_attention.codeproof.verdict import Verdict
from tl_attention.compiler import trust
from tl_attention.compiler.toolchain import Nvcc, tilelang_folder
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# The folder of finished kernels, in the cache.
FOLDER = "tl-attention"
# Behind the machine code come the texts, how long these are, and the seal.
SUFFIX = ".kernel"
SEAL, LENGTH = 64, 16
# A finished kernel has less than 2 MB.
MOST_BYTES = 64 * 2**20
# Where the text is that makes kernels and proves them: in compiler/, and in all that it imports.
MAKING = ("errors.py", "problem", "schedule", "program", "kernels", "launch", "codeproof", "compiler")
# Modules, and the CUDA that stands before kernels.
SOURCES = ("*.py", "*.cuh")
PACKAGE = Path(__file__).parents[1]
# The solver z3 simplifies what TileLang generates.
COMPILED_BY = ("tilelang", "apache-tvm-ffi", "z3-solver")
# nvcc and ptxas answer to --version; cicc is the program that nvcc calls for the GPU's code.
TOOLS = ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc")
# TileLang reads these, and they change the code: an option of a pass, and folders of headers, its own unless set.
OPTION = "TILELANG_LAYOUT_COST_MODEL"
HEADERS = ("TL_TEMPLATE_PATH", "TL_CUTLASS_PATH")


@dataclass(frozen=True)
class Finished:
    """A `Finished` holds the machine code of a kernel, and the code and the verdict that belong to it."""

    cubin: bytes
    source: str  # the CUDA
    host_plan: str
    verdict: Verdict | None  # the proof's, None for a schedule without a Program


def read(file: Path) -> Finished | None:
    """Returns the kernel in the file, None where the file is absent or its seal does not match.

    The seal finds whatever is not what was written under the file's name. Raises InputError where others may write to
    the file or its folders.
    """
    trust.check(file.parent)
    try:
        data = _bytes(file)
    except OSError:
        return None
    body, seal = data[:-SEAL], data[-SEAL:]
    return unpacked(body) if seal == _seal(file, body) else None


def keep(file: Path, kernel: Finished) -> None:
    """Writes a kernel to the file, whole and for this user alone, in place of any other. Ignores a failure to write.

    Raises InputError where others may write to its folders.
    """
    body = packed(kernel)
    write(file, body + _seal(file, body))


def packed(kernel: Finished) -> bytes:
    """Returns a kernel as a file of the store has it before the seal, and an archive in its blocks."""
    verdict = kernel.verdict and asdict(kernel.verdict)
    texts = json.dumps([kernel.source, kernel.host_plan, verdict]).encode()
    return kernel.cubin + texts + f"{len(texts):0{LENGTH}x}".encode()


def unpacked(body: bytes) -> Finished:
    """Returns the kernel that was packed so."""
    texts = len(body) - LENGTH - int(body[-LENGTH:], 16)
    source, host_plan, verdict = json.loads(body[texts:-LENGTH])
    return Finished(body[:texts], source, host_plan, _verdict(verdict))


def write(file: Path, data: bytes) -> None:
    """Writes a file of the store, whole and for this user alone, in place of any other. Ignores a failure to write.

    Raises InputError where others may write to its folders.
    """
    unfinished = file.with_name(f"{file.name}.{uuid4().hex}")
    try:
        trust.make_private(file.parent)
        with open(unfinished, "xb", opener=functools.partial(os.open, mode=0o600)) as opened:
            opened.write(data)
        unfinished.replace(file)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()


def _bytes(file: Path) -> bytes:
    """Returns a regular file's bytes, b"" beyond MOST_BYTES or of others; raises OSError, and InputError as `trust`."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return b""
        trust.check_one(file, status)
        return opened.read()


def _verdict(kept: dict[str, Any] | None) -> Verdict | None:
    """Makes a verdict of its JSON form, whose lists become tuples; None for None."""
    if kept is None:
        return None
    return Verdict(**kept | {name: tuple(value) for name, value in kept.items() if isinstance(value, list)})


def kept(folder: Path, key: str) -> Path | None:
    """Returns the file of the kernel with this key by whatever maker, None where there is none."""
    return min(folder.glob(f"{key}-*{SUFFIX}"), default=None)


def _seal(file: Path, body: bytes) -> bytes:
    """Returns the seal that ends a file: a hash that ties its content to its name, and so to the kernel's key."""
    return sha256(file.name.encode() + b"\n" + body).hexdigest().encode()


# --- the key ---------------------------------------------------------------------------------------------------------


def kernel_key(schedule: Schedule, variant: Variant) -> str:
    """Returns a hash of what a call decides of its kernel, and of the package's text. Every process has the same."""
    made_of = {
        "schedule": schedule.model_dump_json(),
        "variant": {field.name: _written(getattr(variant, field.name)) for field in fields(variant)},
        "package": VERSION,
    }
    return sha256(json.dumps(made_of).encode()).hexdigest()


def maker(nvcc: Nvcc) -> str:
    """Returns a hash of what else makes a kernel: nvcc, packages and environment."""
    made_by = {
        "packages": [package_hash(name) for name in COMPILED_BY],
        "nvcc": [nvcc.cache, *(_size(nvcc.home / tool) for tool in TOOLS)],
        "environment": environment(),
    }
    return sha256(json.dumps(made_by).encode()).hexdigest()[:12]


def environment() -> dict[str, str]:
    """Returns the variables that change what TileLang makes: none, unless somebody has set them."""
    found = {OPTION: os.environ.get(OPTION), **{variable: _foreign(variable) for variable in HEADERS}}
    return {variable: value for variable, value in found.items() if value}


def source_hash(package: Path) -> str:
    """Returns a hash of all source files in the package's folder that make or prove kernels."""
    sources = (file for room in MAKING[1:] for kind in SOURCES for file in (package / room).rglob(kind))
    files = [package / MAKING[0], *sorted(sources)]
    # Whatever an editor puts beside a module need not be a file.
    text = {str(file.relative_to(package)): file.read_text("utf-8") for file in files if file.is_file()}
    return sha256(json.dumps(text).encode()).hexdigest()


# Read together with the modules themselves: a file that is edited later is not what runs in this process.
VERSION = source_hash(PACKAGE)


@functools.cache
def package_hash(name: str) -> str:
    """Returns a hash of the package installed under this name, "" for none.

    The hash is that of the list of its files, or of its version where the package has no list.
    """
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return ""
    return sha256((package.read_text("RECORD") or package.version).encode()).hexdigest()


def _written(value: object) -> object:
    # A set has another order in each process.
    return sorted(value) if isinstance(value, frozenset) else repr(value)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _foreign(variable: str) -> str | None:
    """Returns the folder that a variable names, None if unset or in TileLang's folder, as TileLang itself sets it."""
    named = os.environ.get(variable)
    tilelangs = tilelang_folder() if named else None
    return None if named and tilelangs and Path(named).resolve().is_relative_to(tilelangs) else named
