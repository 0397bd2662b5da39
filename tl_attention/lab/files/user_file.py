"""A file that a user names is written whole or not at all.

Nothing that is there is written over but a file of the kind that is written. Before work whose result goes to a file,
`check_writable` says whether the file can and may be written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from tl_attention.errors import InputError
from tl_attention.lab.files.kinds import HEAD, Kind


def write(path: Path, content: str | bytes, kind: Kind) -> None:
    """Writes text, as UTF-8, or bytes to a file of this kind, whole or not at all.

    If the disk is full, what stood there before stays. A pipe or a device is written to as it is. Raises InputError
    where the file cannot be written, and where another kind of file is there.
    """
    data = content.encode() if isinstance(content, str) else content
    with errors_naming_file(path):
        if is_no_file(path):
            path.write_bytes(data)
            return
        check_kind(path, kind)
        make_folder(path)
        with _unfinished(path) as (unfinished, target):
            unfinished.write_bytes(data)
            if target.exists():
                shutil.copymode(target, unfinished)
            unfinished.replace(target)


def check_writable(path: Path, kind: Kind) -> None:
    """Raises InputError where a file of this kind cannot or may not be written. Leaves nothing behind."""
    with errors_naming_file(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_no_file(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        check_kind(path, kind)
        if path.is_file() and kind.done == "add to":
            path.open("ab").close()
            return
        with _unfinished(path.parent if _is_new(path.parent) else path) as (unfinished, _):
            unfinished.touch(exist_ok=False)


def check_kind(path: Path, kind: Kind) -> None:
    """Raises InputError where a file is there that is not of this kind, or that nothing may be done to.

    An empty file is of any kind.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head and not (kind.done and kind.begins.match(head)):
        why = f"and is not {kind.name}" if kind.done else f"and {kind.name} takes no other file's place"
        raise InputError(f"{path}: is there already, {why}: expected {kind.instead()}")


def make_folder(path: Path) -> None:
    """Makes the folder of a file that is to be written, if the folder above it is there."""
    if _is_new(path.parent):
        path.parent.mkdir(exist_ok=True)


def is_no_file(path: Path) -> bool:
    """Says whether a path is of a pipe, a device or a folder: /dev/stdout for one."""
    return os.path.exists(path) and not os.path.isfile(path)


def is_same(one: Path, other: Path) -> bool:
    """Says whether two paths name the same file, through links too; the file need not exist."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # No file has such a name.
        return False


@contextmanager
def errors_naming_file(path: Path) -> Iterator[None]:
    """Turns an OSError inside the block into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: cannot be written: no file has such a name") from None


@contextmanager
def _unfinished(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the path of a file to write first, which the block's end removes, and that of the file to replace."""
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{uuid4().hex}")
    try:
        yield unfinished, target
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _is_new(folder: Path) -> bool:
    """Says whether a folder is not there and may be made: the one above it is there, and is not the system's root."""
    above = Path(os.path.abspath(folder)).parent
    return not os.path.lexists(folder) and above.is_dir() and above != Path(above.anchor)
