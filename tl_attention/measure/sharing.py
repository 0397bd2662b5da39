"""Rows that anybody may see: what was compiled, checked and timed, on which GPU with which software, and nothing else.

They are rows as any record has them, so `tl-attention report` shows them. What could say whose machine it was is left out
by leaving in only what is named here: file names and paths, errors in the words of other programs, the commit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tl_attention.errors import InputError
from tl_attention.files.catalogue import all_names
from tl_attention.files.named import resolve
from tl_attention.measure.records import ResultsFile, Row, read_rows

KEPT = (
    *("name", "label", "sizes", "problem", "status", "arch", "fingerprint"),
    *("registers", "stack_bytes", "shared_bytes"),
    *("error_rms", "error_rms_budget", "error_max_abs", "error_max_abs_budget", "verified_shapes"),
    *(
        "median_ms",
        "p10_ms",
        "p90_ms",
        "n",
        "rounds_ms",
        "tflops",
        "product",
        "matmul_tflops",
        "percent_of_matmul",
        "sm_clock_mhz",
        "method",
    ),
    *("device", "driver", "power_limit_w", "nvcc", "ptxas", "versions", "seed", "run"),
)
VERSIONS = ("tl-attention", "torch", "tilelang", "python", "cuda", "cudnn")
# Of a version, without what whoever built it may have called it; and a GPU as its driver names it.
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)?(\+(cu\d+|cpu)$)?")
DEVICE = re.compile(r"[\w .()-]{1,80}")
WORDS = (
    "the schedules' names and keys, the problem, registers, spills and shared memory, errors, times with their method and "
    "clock, and of the machine the GPU's name, its power limit, and the versions of driver, CUDA, Python and packages"
)


def shared(row: Row) -> Row:
    """The row without what is not to be shared; the same again where nothing is left out."""
    kept: dict[str, Any] = {name: getattr(row, name) for name in KEPT}
    kept["name"] = row.name if row.sizes == "peer" or _is_shipped(row) else row.label
    kept["versions"] = {name: _version(row.versions[name]) for name in VERSIONS if name in row.versions}
    for name in ("driver", "nvcc", "ptxas"):
        kept[name] = kept[name] and _version(kept[name])
    kept["device"] = row.device and (row.device if DEVICE.fullmatch(row.device) else "unknown")
    return Row(**kept)


def _is_shipped(row: Row) -> bool:
    """Whether the name is that of a schedule which ships, as it is."""
    return row.name in all_names() and resolve(row.name).schedule.label == row.label


def _version(text: str) -> str:
    found = VERSION.match(text)
    return found[0] if found else "unknown"


class SharedFile(ResultsFile):
    """A file of rows as they may be shared: a new one, or one that has such rows alone. Raises InputError for another."""

    def __init__(self, path: Path):
        if path.exists() and any(shared(row) != row for row in read_rows(path)):
            raise InputError(f"{path}: has more in it than is shared, expected a new file, or one that --share made")
        super().__init__(path)

    def append(self, row: Row) -> None:
        """Write what is to be shared of one row."""
        super().append(shared(row))
