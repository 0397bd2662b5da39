"""Several processes may append lines to one file of results: rows for oneself, or rows that anybody may see."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tl_attention.errors import InputError
from tl_attention.files.catalogue import all_names
from tl_attention.files.named import resolve
from tl_attention.measure.records import Measured, Row, read_rows


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


KEPT = (
    *("name", "label", "sizes", "problem", "status", "arch", "fingerprint"),
    *("registers", "stack_bytes", "shared_bytes"),
    *("error_rms", "error_rms_budget", "error_max_abs", "error_max_abs_budget", "verified_shapes"),
    *("median_ms", "p10_ms", "p90_ms", "n", "rounds_ms", "tflops"),
    *("product", "matmul_tflops", "percent_of_matmul", "sm_clock_mhz", "method"),
    *("device", "driver", "power_limit_w", "nvcc", "ptxas", "versions", "seed", "run"),
)
VERSIONS = ("tl-attention", "torch", "tilelang", "python", "cuda", "cudnn")
# A version, without the name that its builder may have added to it; and a GPU's name as its driver has it.
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)?(\+(cu\d+|cpu)$)?")
DEVICE = re.compile(r"[\w .()-]{1,80}")
WORDS = (
    "the schedules' names and keys, the problem, registers, spills and shared memory, errors, times with their method and "
    "clock, and of the machine the GPU's name, its power limit, and the versions of driver, CUDA, Python and packages"
)


def shared(row: Row) -> Row:
    """Returns the row without what is not to be shared. A row that has nothing else stays equal."""
    kept: dict[str, Any] = {name: getattr(row, name) for name in KEPT}
    kept["name"] = row.name if row.sizes == "peer" or _is_shipped(row) else row.label
    kept["versions"] = {name: _version(row.versions[name]) for name in VERSIONS if name in row.versions}
    for name in ("driver", "nvcc", "ptxas"):
        kept[name] = kept[name] and _version(kept[name])
    kept["device"] = row.device and (row.device if DEVICE.fullmatch(row.device) else "unknown")
    return Row(**kept)


def _is_shipped(row: Row) -> bool:
    """Says whether the row's name is that of a schedule which ships, as it is."""
    return row.name in all_names() and resolve(row.name).schedule.label == row.label


def _version(text: str) -> str:
    found = VERSION.match(text)
    return found[0] if found else "unknown"


class SharedFile(ResultsFile):
    """A `SharedFile` has rows as they may be shared.

    It is a new file, or a file that has such rows alone. Raises InputError for another.
    """

    def __init__(self, path: Path):
        if path.exists() and any(shared(row) != row for row in read_rows(path)):
            raise InputError(f"{path}: has more in it than is shared, expected a new file, or one that --share made")
        super().__init__(path)

    def append(self, row: Measured) -> None:
        """Writes what is to be shared of one row of `bench`."""
        assert isinstance(row, Row)
        super().append(shared(row))
