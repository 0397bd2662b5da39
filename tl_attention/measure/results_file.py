"""Several processes may append lines to one file of results."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.measure.records import Measured


class LineFile:
    """A `LineFile` appends whole lines, each on the disk before the next. Every method raises OSError.

    A method that looks at the file before it acts (is it still the one at the path, does it end a line, where does my
    line begin, is it empty) does both under an exclusive lock, which the system takes back from a process that dies. A
    file system without locks is an error: lines could be lost there in silence.

    A pipe or a device is written to without a lock: it can be neither cut back, nor synchronised, nor removed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._open()

    def append(self, line: bytes) -> None:
        """Writes a line, given without its end. A line that fits only in part is cut off again."""
        if not self._is_regular:
            self._write(line + b"\n", at=0)
            return
        with self._locked():
            size = self._size()
            # A process that was killed in mid-write leaves a line without its end.
            begun = size and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
            self._write((b"\n" if begun else b"") + line + b"\n", at=size)

    def close(self) -> None:
        """Closes the file, and removes it if it was made here and nobody has written to it."""
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
        """Holds the lock of the file at the path.

        The file that was opened may have been removed, by `close` for one: then the file that is there now is opened.
        """
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
        """Writes the text, which begins at byte `at` of the file.

        If that fails, the part that was written is cut off again.
        """
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


class ResultsFile:
    """A `ResultsFile` appends rows to a file, each on the disk before the next.

    Other runs may append to the file at the same time. It is a context manager: at its end a file that it made and that
    nobody wrote to is removed.
    """

    def __init__(self, path: Path):
        self.path = path
        self.written = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lines = LineFile(path)
        except OSError as error:
            raise InputError(f"{path}: results cannot be written: {error.strerror}") from None

    def append(self, row: Measured) -> None:
        """Writes one row. Raises InputError on a full or failing disk; the rows before it stay."""
        self.append_json(row.to_json(), of=row.of)

    def append_json(self, text: str, *, of: str) -> None:
        """Writes one line of JSON; `of` names the line in the error."""
        try:
            self._lines.append(text.encode())
        except OSError as error:
            raise InputError(
                f"{self.path}: the row of {of} cannot be written: {error.strerror}; "
                f"rows before it, which are kept: {self.written}"
            ) from None
        self.written += 1

    def close(self) -> None:
        try:
            self._lines.close()
        except OSError as error:
            raise InputError(f"{self.path}: an empty file of results cannot be removed: {error.strerror}") from None

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
