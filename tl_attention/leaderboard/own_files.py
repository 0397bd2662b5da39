"""The judge's own files, held to what they were at its start: a submission runs as the same user and can rewrite them."""

from __future__ import annotations

import compileall
import hashlib
import os
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import cache_from_source
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# To a module's file Python prefers an extension module, or a folder with __init__.py, of the same name.
LOADED = (".py", *EXTENSION_SUFFIXES)


def complete_snapshot() -> dict[str, str]:
    """A snapshot with every .pyc that there is to be, so that no honest process adds one later."""
    compileall.compile_dir(PACKAGE, quiet=2)
    return _snapshot()


def changed(before: Mapping[str, str]) -> str:
    """A file that was changed, added or removed since the snapshot, a source where there is one; "" if none was."""
    now = _snapshot()
    names = (name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return min(names, key=lambda name: (name.endswith(".pyc"), name), default="")


def _snapshot() -> dict[str, str]:
    """The hash of what Python would load of this package, by name: sources, their .pyc, extension modules, and links."""
    found = {}
    for path in PACKAGE.rglob("*"):
        if path.name.endswith(LOADED) or path.is_symlink():
            for file in (path, Path(cache_from_source(path))) if path.suffix == ".py" else (path,):
                found[os.path.relpath(file, PACKAGE)] = _hash(file)
    return found


def _hash(path: Path) -> str:
    """The hash of a file's bytes, "" where there is no plain file that can be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:
        return ""
