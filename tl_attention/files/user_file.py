"""A file that a user names: read at once and up to a size, whatever it is, and written whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from tl_attention.errors import InputError

MIB = 2**20


def read(path: Path, most_bytes: int, kind: str) -> tuple[bytes, os.stat_result]:
    """What is in the file, pipe or device, and what the system says of it. `kind` is what it should be, for the error.

    Raises InputError where it cannot be read, and where it has more than so many bytes, as /dev/zero has.
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


def write(path: Path, text: str) -> None:
    """Write the file; on a full disk what stood there before stays. Raises InputError where it cannot be written."""
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{uuid4().hex}")
    try:
        if path.exists() and not path.is_file():  # A pipe or a device, /dev/stdout for one.
            path.write_text(text, "utf-8")
            return
        unfinished.write_text(text, "utf-8")
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _at_once(path: str, flags: int) -> int:
    """Open without waiting for a writer: of a pipe that has none nothing is read, of one that has what it writes."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
