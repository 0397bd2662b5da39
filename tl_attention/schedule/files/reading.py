"""A file that a user names is read at once and up to a size, whatever it is."""

from __future__ import annotations

import os
from pathlib import Path

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


def _at_once(path: str, flags: int) -> int:
    """Opens a path without waiting for a pipe's writer: a pipe without one reads as empty."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
