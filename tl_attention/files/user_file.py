"""A file that a user names is read at once and up to a size, whatever it is, and written whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
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
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{uuid4().hex}")
    try:
        if path.exists() and not path.is_file():  # A pipe or a device, /dev/stdout for one.
            path.write_bytes(data)
            return
        unfinished.write_bytes(data)
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _at_once(path: str, flags: int) -> int:
    """Opens a path, and returns its file descriptor, without waiting for a pipe's writer.

    A pipe without a writer reads as empty; a pipe with a writer gives what that writes.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
