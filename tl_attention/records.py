"""Rows of a run, and the JSON lines file that keeps them. Tables are views of it (`report.py`)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tl_attention.errors import InputError

Status = Literal[
    "ok", "refused", "compile_error", "wrong", "unstable", "timeout", "crashed", "error", "checked_on_cpu"
]


@dataclass(frozen=True)
class Row:
    """One candidate on one problem. Times in milliseconds; `percent_of_matmul` against the same run's product."""

    name: str
    label: str
    sizes: Literal["runtime", "fixed", "peer"]
    problem: dict[str, Any]
    status: Status
    reason: str = ""
    fingerprint: str | None = None
    same_code_as: str | None = None
    registers: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    error_rms: float | None = None
    error_rms_budget: float | None = None
    error_max_abs: float | None = None
    error_max_abs_budget: float | None = None
    verified_shapes: int = 0
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    n: int = 0
    tflops: float | None = None
    matmul_tflops: float | None = None
    percent_of_matmul: float | None = None
    sm_clock_mhz: int | None = None
    method: str | None = None
    device: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    run: str = ""

    def to_json(self) -> str:
        return json.dumps({key: value for key, value in asdict(self).items() if value not in (None, "", {})})


class ResultsFile:
    """Appends rows, each flushed to the disk before the next; a row that cannot be written leaves no half line."""

    def __init__(self, path: Path):
        self.path = path
        self.written = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(f"{path}: results cannot be written: {error.strerror}") from None

    def append(self, row: Row) -> None:
        """Write one row. Raises InputError on a full or failing disk; the rows before it stay."""
        end = self._file.seek(0, os.SEEK_END)
        data = (row.to_json() + "\n").encode()
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view):]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise InputError(
                f"{self.path}: the row of {row.name} cannot be written: {error.strerror}; "
                f"the {self.written} rows before it are kept"
            ) from None
        self.written += 1

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file. Raises InputError with the line that is no row."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError):
            raise InputError(f"{path}:{number}: not a row of results") from None
    return rows
