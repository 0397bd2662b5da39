"""Rows of a run, and the JSON lines file that keeps them. Tables are views of it (`report.py`)."""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from tl_attention.build.sass import Loop
from tl_attention.errors import InputError
from tl_attention.files import user_file
from tl_attention.hardware.card import CARDS, HOPPER
from tl_attention.measure.comparison import Comparison
from tl_attention.measure.line_file import LineFile
from tl_attention.problem.features import taken_from
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.window import OPEN, is_window, masked, sides

# The largest record that ships has 0.2 MB.
MOST_BYTES = 64 * user_file.MIB
# Whether a kernel reads its sizes at run time, or is compiled for them; what a peer does is its own.
SizesKnown = Literal["runtime", "fixed", "peer"]
Status = Literal[
    "ok",
    "refused",
    "compile_error",
    "wrong",
    "unstable",
    "timeout",
    "crashed",
    "error",
    # Without a GPU: verified by the interpreter; only compiled.
    "checked_on_cpu",
    "compiled",
]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What every line of a record says of where, when and how it was measured.

    `nvcc` and `ptxas` are the versions of the chosen ones, `driver` is "unknown" where NVML does not tell. `arch` is that of
    the card that schedules were compiled for: Hopper's in records from before there were others.
    """

    method: str | None = None
    arch: str = HOPPER.arch
    device: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    nvcc: str | None = None
    ptxas: str | None = None
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    run: str = ""

    def to_json(self) -> str:
        """One line, these fields last. What is not known is left out, and so is an error that is not a number: JSON has
        none such."""
        last = {f.name for f in fields(Measured)}
        known = _known(asdict(self))
        return json.dumps(dict(sorted(known.items(), key=lambda item: item[0] in last)))


Parsed = TypeVar("Parsed", bound=Measured)


@dataclass(frozen=True)
class Row(Measured):
    """One candidate on one problem. Times in milliseconds; `percent_of_matmul` against the rate of the same run's
    plain product, which `product` names: matmul, or mma_sync for nothing but that instruction on registers.

    `rounds_ms` has the median of each round's calls: rows of one run are compared round by round.
    `fingerprint` names the generated code, `machine_code` what ptxas made of it: several may be one there.
    `against` is set of a candidate that was sampled against an incumbent, `known_from` names the run where that was not
    done anew.
    """

    name: str
    label: str
    sizes: SizesKnown
    problem: dict[str, Any]
    status: Status
    reason: str = ""
    fingerprint: str | None = None
    machine_code: str | None = None
    same_code_as: str | None = None
    registers: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    loops: tuple[Loop, ...] = ()
    error_rms: float | None = None
    error_rms_budget: float | None = None
    error_max_abs: float | None = None
    error_max_abs_budget: float | None = None
    verified_shapes: int = 0
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    n: int = 0
    rounds_ms: tuple[float, ...] = ()
    tflops: float | None = None
    product: str = "matmul"
    matmul_tflops: float | None = None
    percent_of_matmul: float | None = None
    sm_clock_mhz: int | None = None
    against: Comparison | None = None
    known_from: str | None = None

    @property
    def measured_in(self) -> str:
        """The run whose times these are."""
        return self.known_from or self.run

    def speed(self, reference: Row) -> float | None:
        """The median, over rounds, of the reference's time divided by this row's; None of what was not timed.

        Of rows without rounds, which records from before 0.2.0 have, it is the quotient of the medians.
        """
        if not self.median_ms or not reference.median_ms:
            return None
        return statistics.median(self.speeds(reference) or [reference.median_ms / self.median_ms])

    def speeds(self, reference: Row) -> list[float]:
        """The reference's time divided by this row's in each round; none of rows of two runs."""
        if self.measured_in != reference.measured_in or len(self.rounds_ms) != len(reference.rounds_ms):
            return []
        return [theirs / ours for theirs, ours in zip(reference.rounds_ms, self.rounds_ms, strict=True)]

    @property
    def shape(self) -> AttentionShape:
        """The problem. Raises InputError or TypeError for one that is none."""
        return shape_of(self.problem)


def shape_of(problem: Mapping[str, Any]) -> AttentionShape:
    """The problem that a line has. Raises InputError or TypeError for one that is none."""
    problem = dict(problem)
    for name in ("head_dim", "head_dim_v"):
        if not isinstance(problem.get(name, 0), int):
            raise InputError(f"{name} is {problem[name]!r}, expected an integer")
    mask = masked(problem.pop("causal", False), problem.pop("window", (OPEN, OPEN)))
    asked = taken_from(problem)
    return AttentionShape(**problem, mask=mask).asking(**asked)


def problem_of(shape: AttentionShape) -> dict[str, Any]:
    """The problem as a row has it. Raises InputError for sequences of different lengths."""
    shape.check_one_length()
    sizes, mask = shape.sizes._asdict(), shape.mask
    grouped = {} if shape.group == 1 else {"heads_kv": shape.heads_kv}
    other = {"head_dim_v": shape.head_dim_v} if shape.head_dim_v != shape.head_dim else {}
    window = {"window": sides(mask)} if is_window(mask) else {}
    problem = {**sizes, **grouped, "head_dim": shape.head_dim, **other, "dtype": shape.dtype, "causal": mask == CAUSAL}
    return {**problem, **window, **shape.asked}


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if _says_something(value)}


def _says_something(value: Any) -> bool:
    return value not in (None, "", {}, ()) and not (isinstance(value, float) and not math.isfinite(value))


class ResultsFile:
    """Appends rows, each on the disk before the next, to a file that other runs may append to at the same time.

    A context manager: at its end a file that it made and that nobody wrote to is removed.
    """

    def __init__(self, path: Path):
        self.path = path
        self.written = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lines = LineFile(path)
        except OSError as error:
            raise InputError(f"{path}: results cannot be written: {error.strerror}") from None

    def append(self, row: Row) -> None:
        """Write one row. Raises InputError on a full or failing disk; the rows before it stay."""
        self.append_json(row.to_json(), of=row.name)

    def append_json(self, text: str, *, of: str) -> None:
        """Write one line of JSON; `of` names it in the error."""
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


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file, blank lines skipped. Raises InputError with the line that is no row."""
    return [parse_row(line, where) for where, line in read_lines(path)]


def read_lines(path: Path) -> list[tuple[str, bytes]]:
    """(FILE:LINE, the line) of each that is not blank. Raises InputError."""
    lines = user_file.read(path, MOST_BYTES, "record")[0].split(b"\n")
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a line. Raises InputError that begins with `where`, as FILE:LINE."""
    try:
        text = line.decode("utf-8")
        values = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not text: byte {error.start} is not UTF-8") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not JSON, expected one row of results a line") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: not a row of results, expected a JSON object, found {text.strip()[:40]!r}")
    return values


def _number(text: str) -> float:
    # Python reads integers of any size, and 1e999 as infinity; neither can be shown as a time or a count.
    if not math.isfinite(float(text)):
        short = text if len(text) <= 20 else f"{text[:20]}..."
        raise InputError(f"the number {short} is not finite, or too large for a float")
    return float(text)


def parse_row(line: bytes, where: str) -> Row:
    """The row of a line. Raises InputError that begins with `where`, as FILE:LINE."""
    row = parse_line(Row, line, where)
    for key, is_good, expected in (
        ("median_ms", row.median_ms is None or None not in (row.p10_ms, row.p90_ms), "p10_ms and p90_ms beside it"),
        ("registers", row.registers is None or row.registers > 0, "more than 0"),
        ("shared_bytes", row.shared_bytes is None or row.shared_bytes >= 0, "at least 0"),
        ("rounds_ms", min(row.rounds_ms, default=1) > 0, "times above 0"),
        ("against", row.against is None or min(row.against.ratios, default=0) > 0, "ratios above 0"),
    ):
        if not is_good:
            raise InputError(f"{where}: {key}: expected {expected}")
    return row


def parse_line(kind: type[Parsed], line: bytes, where: str) -> Parsed:
    """The same for any kind of line that has a `problem`."""
    from pydantic import ValidationError

    from tl_attention.schedule.key_errors import first_error

    names = tuple(f.name for f in fields(kind))
    unknown = [name for name in parse_object(line, where) if name not in names]
    if unknown:
        raise InputError(
            f"{where}: {unknown[0][:40]!r} is no field of a row: not the results of run or bench, or those of another "
            f"version; expected {', '.join(names)}"
        )
    try:
        row: Parsed = _validator(cast(Any, kind)).validate_json(line, strict=True)
        _ = shape_of(vars(row)["problem"])
    except ValidationError as error:
        key, message = first_error(error)
        raise InputError(f"{where}: {'.'.join(map(str, key))}: {message}") from None
    except (TypeError, InputError) as error:
        raise InputError(f"{where}: problem: {str(error).removeprefix('AttentionShape.__init__() ')}") from None
    if row.arch not in CARDS:
        raise InputError(f"{where}: arch: {row.arch[:40]!r} is no card's, expected one of {', '.join(CARDS)}")
    return row


@functools.cache
def _validator(kind: Any) -> Any:
    # Late: writing rows does not need it.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
