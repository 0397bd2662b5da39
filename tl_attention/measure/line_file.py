"""A file to which any number of processes append lines at once, none of which takes or breaks another's."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LineFile:
    """Appends whole lines, each on the disk before the next. Every method raises OSError.

    What looks at the file before it acts (is it still the one at the path, does it end a line, where does my line
    begin, is it empty) does both under an exclusive lock, which the system takes back from a process that dies. A file
    system without locks is an error: there lines could be lost in silence.

    A pipe or a device is written to without a lock: it can be neither cut back, nor synchronised, nor removed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._open()

    def append(self, line: bytes) -> None:
        """Write the line, given without its end. One that fits by half is cut off again."""
        if not self._is_regular:
            self._write(line + b"\n", at=0)
            return
        with self._locked():
            size = self._size()
            # A process that was killed in mid-write leaves a line without its end.
            begun = size and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
            self._write((b"\n" if begun else b"") + line + b"\n", at=size)

    def close(self) -> None:
        """Remove the file if it was made here and nobody has written to it."""
        try:
            if self._is_new:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                if self._is_at_path() and not self._size():
                    self.path.unlink()
        finally:
            self._file.close()

    def _open(self) -> None:
        self._is_new = False
        try:
            # Only a regular file's last line is read; a pipe opened to be read, too, would never break.
            access = os.O_RDWR if self.path.is_file() else os.O_WRONLY
            descriptor = os.open(self.path, access | os.O_APPEND)
        except FileNotFoundError:
            make = os.O_RDWR | os.O_APPEND | os.O_CREAT
            try:
                descriptor, self._is_new = os.open(self.path, make | os.O_EXCL, 0o666), True
            except FileExistsError:
                descriptor = os.open(self.path, make, 0o666)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the file at the path; the one that was opened may have been removed, by `close` for one."""
        while True:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._is_at_path():
                break
            self._file.close()
            self._open()
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _write(self, text: bytes, at: int) -> None:
        """Write the text, whose first byte comes to stand at `at`; cut back what was written of it if that fails."""
        written = 0
        try:
            while written < len(text):
                written += self._file.write(text[written:])
            if self._is_regular:
                os.fsync(self._file.fileno())
        except OSError:
            # Not every program asks for the lock: what ends elsewhere holds bytes that are not ours.
            if self._is_regular and self._size() == at + written:
                self._file.truncate(at)
            raise

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size
