"""Several processes may append lines to one file of results."""

from __future__ import annotations

import fcntl
import os
from io import FileIO
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import RECORD
from tl_attention.lab.measure.records import Measured


class ResultsFile:
    """A `ResultsFile` appends lines to a file, each on the disk before the next.

    Other runs may append to the file at the same time. The first line makes the file, so a run without a line leaves
    none. Raises InputError where nothing can be written, and where a file is there that is no record.
    """

    def __init__(self, path: Path):
        self.path, self.written = path, 0
        # A pipe or a device stays open: a pipe's reader would take a close for the end.
        self._stream: FileIO | None = None
        user_file.check_writable(path, RECORD)
        if user_file.is_no_file(path):
            with user_file.errors_naming_file(path):
                self._stream = path.open("wb", buffering=0)

    def append(self, row: Measured) -> None:
        """Appends a row to the file as a line of JSON. Raises InputError where that fails; rows before it stay."""
        self.append_json(row.to_json(), of=row.of)

    def append_json(self, text: str, *, of: str) -> None:
        """Appends one line of JSON text to the file, or raises InputError that names the line by `of`."""
        line = text.encode() + b"\n"
        try:
            if self._stream is not None:
                self._stream.write(line)
            else:
                user_file.make_folder(self.path)
                with self.path.open("a+b", buffering=0) as file:
                    _append(file, line)
        except OSError as error:
            raise InputError(
                f"{self.path}: the row of {of} cannot be written: {error.strerror}; "
                f"rows before it, which are kept: {self.written}"
            ) from None
        self.written += 1


def _append(file: FileIO, line: bytes) -> None:
    """Writes a line at the end of a regular file, or nothing of it, under an exclusive lock."""
    # The system takes the lock back from a process that dies. A file system without locks is an error: lines could be
    # lost there in silence.
    fcntl.flock(file, fcntl.LOCK_EX)
    size = os.fstat(file.fileno()).st_size
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        # A process that was killed in mid-write leaves a line without its end.
        line = b"\n" + line
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:])
        os.fsync(file.fileno())
    except OSError:
        # Not every program asks for the lock: what ends elsewhere holds bytes that are not ours.
        if os.fstat(file.fileno()).st_size == size + written:
            file.truncate(size)
        raise
