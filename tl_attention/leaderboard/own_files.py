"""The judge's own files, held to what they were at its start: a submission runs as the same user and can rewrite them."""

from __future__ import annotations

import compileall
import hashlib
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def complete_snapshot() -> dict[str, str]:
    """The hashes of the package's files, with every .pyc that there is to be: no honest process adds one later."""
    compileall.compile_dir(PACKAGE, quiet=2)
    return _snapshot()


def changed(before: Mapping[str, str]) -> str:
    """A file that was changed, added or removed since the snapshot, a source where there is one; "" if none was."""
    now = _snapshot()
    names = (name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return min(names, key=lambda name: (name.endswith(".pyc"), name), default="")


def _snapshot() -> dict[str, str]:
    """The hash of each file in the package's folder, by name. A link counts as what it leads to."""
    files = [path for path in PACKAGE.rglob("*") if path.is_symlink() or not path.is_dir()]
    # A process that compiles a module gives the result its name only when it is whole.
    return {str(path.relative_to(PACKAGE)): _hash(path) for path in files if ".pyc." not in path.name}


def _hash(path: Path) -> str:
    """The hash of a file's bytes, "" where there is no plain file that can be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:
        return ""
