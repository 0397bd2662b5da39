"""A file that a user names is read at once and up to a size, whatever it is, and written whole or not at all.

Before work whose result goes to a file, `check_writable` says whether the file can be written.
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

MIB = 2**20


def read(path: Path, most_bytes: int, kind: str) -> tuple[bytes, os.stat_result]:
    """Returns (bytes, stat result) of a file, pipe or device. Raises InputError if it holds over `most_bytes`.

    `kind` is what the file should be, for the error. Raises InputError too where the file cannot be read. A device
    such as /dev/zero holds more than any `most_bytes`.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            status, data = os.fstat(file.fileno()), file.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: cannot be read: no file has such a name") from None
    if len(data) > most_bytes:
        most = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes // 1024} KiB"
        raise InputError(f"{path}: larger than {most}, which no {kind} is")
    return data, status


def write(path: Path, content: str | bytes) -> None:
    """Writes text, as UTF-8, or bytes to a file, whole or not at all. Raises InputError where it cannot be written.

    If the disk is full, what stood there before stays. A pipe or a device is written to as it is.
    """
    data = content.encode() if isinstance(content, str) else content
    with told_of(path):
        if _is_no_file(path):
            path.write_bytes(data)
            return
        with _unfinished(path) as (unfinished, target):
            unfinished.write_bytes(data)
            if target.exists():
                shutil.copymode(target, unfinished)
            unfinished.replace(target)


def check_writable(path: Path) -> None:
    """Raises InputError where `write` could not write a file. Makes the file's folder if need be, and nothing else."""
    with suppress(OSError):  # What is wrong with the folder is told of the file.
        path.parent.mkdir(parents=True, exist_ok=True)
    with told_of(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not _is_no_file(path):
            with _unfinished(path) as (unfinished, _):
                unfinished.touch(exist_ok=False)
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """Makes an OSError inside the block an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _unfinished(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the path of a file to write first, and that of the file which it is to replace. The first is gone behind the block."""
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{uuid4().hex}")
    try:
        yield unfinished, target
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _is_no_file(path: Path) -> bool:
    """Says whether a path is of a pipe, a device or a folder: /dev/stdout for one."""
    return path.exists() and not path.is_file()


def _at_once(path: str, flags: int) -> int:
    """Opens a path, and returns its file descriptor, without waiting for a pipe's writer.

    A pipe without a writer reads as empty; a pipe with a writer gives what that writes.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
