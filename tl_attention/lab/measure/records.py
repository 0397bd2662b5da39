"""A record keeps rows of a run as JSON lines. Some ship with the package, and tables are views (`lab/show/`)."""

from __future__ import annotations

import functools
import json
import math
import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from tl_attention.errors import InputError
from tl_attention.lab.files import json_text
from tl_attention.lab.machine_code.sass import Loop
from tl_attention.problem.card import HOPPER, Arch
from tl_attention.problem.features import take_features
from tl_attention.problem.lengths import LENGTHS_TEXT, lengths_text, parse_lengths
from tl_attention.problem.mask import CAUSAL, FULL, OPEN, is_window, masked, sides
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files import reading
from tl_attention.shipped import folder

CONFIDENCE = 0.95
# Speeds are ratios of these.
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class RoundRatios:
    """RoundRatios hold a candidate's time as a part of an incumbent's, one ratio for each round.

    Both were sampled in turn in one process, and which of them came first changed with each round.
    """

    incumbent: str  # its label, or a peer's name
    fingerprint: str | None  # of the incumbent's code, None for a peer
    # From the medians of the round's calls: below 1 the candidate was faster. The clock that both ran at in a round
    # falls out of its ratio.
    ratios: Annotated[tuple[Positive, ...], Field(min_length=1)]

    @classmethod
    def of(
        cls, incumbent: str, fingerprint: str | None, ours_ms: Sequence[float], theirs_ms: Sequence[float]
    ) -> RoundRatios:
        """Makes a comparison whose ratios are `ours_ms` divided by `theirs_ms`, round by round."""
        return cls(incumbent, fingerprint, tuple(ours / theirs for ours, theirs in zip(ours_ms, theirs_ms)))

    @property
    def ratio(self) -> float:
        """Returns the median over all rounds of the candidate's time as a part of the incumbent's."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Returns both ends of a 95 % interval of the median ratio, None for fewer than 6 rounds.

        Both ends are ratios of rounds. The distribution of the ratios may be any; rounds count as independent.
        """
        skipped = _skipped(len(self.ratios))
        if skipped is None:
            return None
        ranked = sorted(self.ratios)
        return ranked[skipped], ranked[-1 - skipped]


def _skipped(rounds: int) -> int | None:
    """Returns how many of `rounds` sorted ratios a 95 % interval leaves out at each end; None for too few rounds."""
    # Order statistics: each ratio falls on either side of the median like a fair coin. The median lies outside of the
    # remaining ratios where at most that many fall on one side.
    outside, skipped = 0.0, None
    for count in range(rounds // 2):
        outside += 2 * comb(rounds, count) / 2**rounds
        if outside > 1 - CONFIDENCE:
            break
        skipped = count
    return skipped


# The largest record that ships has 0.2 MB.
MOST_BYTES = 64 * reading.MIB
# What 100 % is, by the name that rows have for it: a plain product.
MATMUL = "matmul"
PRODUCTS = {MATMUL: "matrix product", "mma_sync": "loop of mma.sync"}
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
    """Every line of a record has these fields, which say where, when and how it was measured."""

    method: str | None = None
    # Of the card that schedules were compiled for: Hopper's in records from before there were others.
    arch: Arch = HOPPER.arch
    device: str | None = None
    driver: str | None = None  # "unknown" where NVML does not tell
    power_limit_w: float | None = None
    # The versions of the chosen compilers.
    nvcc: str | None = None
    ptxas: str | None = None
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    run: str = ""

    @property
    def of(self) -> str:
        """Returns the line's `name`, by which errors name it, "" for a line without one."""
        return str(vars(self).get("name", ""))

    @property
    def shape(self) -> AttentionShape:
        """Returns the attention problem of the line. Raises InputError or TypeError where it is not valid."""
        return shape_of(vars(self)["problem"])

    def check(self) -> None:
        """Raises InputError where fields, each of its type, do not fit together; classes of lines check their own."""

    def to_json(self) -> str:
        """Returns the line as JSON text, without empty or non-finite values and with the fields of `Measured` last.

        A number that is not finite, such as an error of NaN, is left out as JSON has none such.
        """
        last = {f.name for f in fields(Measured)}
        known = [(key, value) for key, value in asdict(self).items() if _says_something(value)]
        return json.dumps(dict(sorted(known, key=lambda item: item[0] in last)))


Parsed = TypeVar("Parsed", bound=Measured)
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Row(Measured):
    """A row records the status, errors, times and compiled code of one candidate on one problem."""

    name: str
    label: str
    sizes: SizesKnown
    problem: dict[str, Any]
    status: Status
    reason: str = ""
    fingerprint: str | None = None  # of the generated code
    machine_code: str | None = None  # what ptxas made of it: several generated codes may have one machine code
    same_code_as: str | None = None
    registers: Annotated[int, Field(gt=0)] | None = None
    stack_bytes: int | None = None
    shared_bytes: Annotated[int, Field(ge=0)] | None = None
    loops: tuple[Loop, ...] = ()
    error_rms: float | None = None
    error_rms_budget: float | None = None
    error_max_abs: float | None = None
    error_max_abs_budget: float | None = None
    verified_shapes: int = 0
    median_ms: Positive | None = None
    p10_ms: Positive | None = None
    p90_ms: Positive | None = None
    n: int = 0
    rounds_ms: tuple[Positive, ...] = ()  # the median of each round's calls: rows of one run are compared by round
    tflops: float | None = None
    product: str = MATMUL  # the run's plain product: matmul, or mma_sync for nothing but that instruction on registers
    matmul_tflops: float | None = None
    percent_of_matmul: float | None = None  # of the rate of the plain product
    sm_clock_mhz: int | None = None
    against: RoundRatios | None = None  # for a candidate that was sampled against an incumbent

    def check(self) -> None:
        if self.median_ms is not None and None in (self.p10_ms, self.p90_ms):
            raise InputError("median_ms: expected p10_ms and p90_ms beside it")

    def speed(self, reference: Row) -> float | None:
        """Returns the reference's time divided by this row's, the median over rounds; None where either was not timed.

        For rows without common rounds, such as those of records from before 0.2.0, it is the quotient of the medians.
        """
        if not self.median_ms or not reference.median_ms:
            return None
        return statistics.median(self.speeds(reference) or [reference.median_ms / self.median_ms])

    def speeds(self, reference: Row) -> list[float]:
        """Returns the reference's time divided by this row's in each round, [] if runs or numbers of rounds differ."""
        if self.run != reference.run or len(self.rounds_ms) != len(reference.rounds_ms):
            return []
        return [theirs / ours for theirs, ours in zip(reference.rounds_ms, self.rounds_ms, strict=True)]


def shape_of(problem: Mapping[str, Any]) -> AttentionShape:
    """Makes an AttentionShape of the `problem` dict of a record's line.

    Raises InputError or TypeError for a problem that is not valid.
    """
    problem = dict(problem)
    for name in ("head_dim", "head_dim_v"):
        if not isinstance(problem.get(name, 0), int):
            raise InputError(f"{name} is {problem[name]!r}, expected an integer")
    mask = masked(problem.pop("causal", False), problem.pop("window", (OPEN, OPEN)))
    asked = take_features(problem)
    if "lengths" in problem:
        try:
            lengths, problem["page_size"] = parse_lengths(problem.pop("lengths"))
        except (AttributeError, ValueError):
            raise InputError(f"lengths: expected {LENGTHS_TEXT}") from None
        return AttentionShape.ragged(lengths, **problem, mask=mask, packed=True).asking(**asked)
    return AttentionShape(**problem, mask=mask).asking(**asked)


def problem_of(shape: AttentionShape) -> dict[str, Any]:
    """Returns the dict of sizes, dtype, mask and features by which rows record a shape.

    Raises InputError for sequences of different lengths that are not packed.
    """
    mask = shape.mask
    if shape.packed:
        sizes: dict[str, Any] = {"lengths": lengths_text(shape.all_lengths, shape.page_size), "heads": shape.heads}
    else:
        shape.check_one_length()
        sizes = shape.sizes._asdict()
    grouped = {} if shape.group == 1 else {"heads_kv": shape.heads_kv}
    other = {"head_dim_v": shape.head_dim_v} if shape.head_dim_v != shape.head_dim else {}
    window = {"window": sides(mask)} if is_window(mask) else {}
    problem = {**sizes, **grouped, "head_dim": shape.head_dim, **other, "dtype": shape.dtype, "causal": mask == CAUSAL}
    return {**problem, **window, **shape.asked}


def _says_something(value: Any) -> bool:
    return value not in (None, "", {}, ()) and not (isinstance(value, float) and not math.isfinite(value))


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Returns a dict from each value of `key` to the list of its items. Keys and items keep their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def read_rows(path: Path) -> list[Row]:
    """Reads every line of a results file, but blank ones, as a `Row`. Raises InputError with a line that is none."""
    return read_all(Row, path)


def read_all(kind: type[Parsed], path: Path) -> list[Parsed]:
    """Reads every line of a results file, but blank ones, as a row of the class `kind`.

    Raises InputError with the line that is not such a row.
    """
    return [parse_line(kind, line, where) for where, line in read_lines(path)]


def read_lines(path: Path) -> list[tuple[str, bytes]]:
    """Returns (FILE:LINE, the line's bytes) for each line of a file that is not blank. Raises InputError."""
    lines = reading.read(path, MOST_BYTES, "record")[0].split(b"\n")
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """Parses a line of a record and returns its object as a dict. Raises InputError that begins with `where`."""
    return json_text.parse_object(line, where, "one row of results a line")


def parse_line(kind: type[Parsed], line: bytes, where: str) -> Parsed:
    """Reads a line of JSON as a row of the class `kind`, such as Row or CellRow, and checks it.

    Raises InputError that begins with `where`, as FILE:LINE.
    """
    names = tuple(f.name for f in fields(kind))
    unknown = [name for name in parse_object(line, where) if name not in names]
    if unknown:
        raise InputError(
            f"{where}: {unknown[0][:40]!r} is no field of a row: not the results of run or bench, or those of another "
            f"version; expected {', '.join(names)}"
        )
    row = json_text.checked(kind, line, where)
    try:
        _ = row.shape
    except (TypeError, InputError) as error:
        raise InputError(f"{where}: problem: {str(error).removeprefix('AttentionShape.__init__() ')}") from None
    try:
        row.check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return row


# The leaderboard's largest problem, L.
LARGE = AttentionShape(4, 64, 8192, 8192, 128)
# Files of another kind of row, and, by the time in their names, a user's own runs beside the shipped records.
LEFT_OUT = re.compile(r"(evaluate|cells|training|backward|profile)-.*|.*-\d{8}T\d{6}Z")


@functools.cache
def rows() -> list[Row]:
    """Returns every timed Row of the shipped records, file by file; files of other rows, as of cells, are left out."""
    found: list[Row] = []
    for path in sorted(folder("results").glob("*.jsonl")):
        if not LEFT_OUT.fullmatch(path.stem):
            # What a user keeps beside the records, in whatever state, is no reason to show none of them.
            with suppress(InputError):
                found += [row for row in read_rows(path) if row.median_ms is not None]
    return found


def run_of(labels: set[str], causal: bool) -> list[Row]:
    """Picks one shipped run of one problem, causal or not, and returns its rows of the schedules with these labels.

    It takes a run of fp16 and problem L if there is one, else the run with the most rows; [] if there is none. Only
    rows that read their sizes at run time, with the mask that `causal` says, count. A schedule's rows are found by its
    label: a row that was recorded before the schedule changed is not taken for it.
    """
    mask = CAUSAL if causal else FULL
    runs: dict[tuple, list[Row]] = {}
    for row in rows():
        if row.label in labels and row.sizes == "runtime" and row.shape.mask == mask:
            runs.setdefault((row.run, row.shape), []).append(row)

    def rank(run: list[Row]) -> tuple:
        return (run[0].shape == replace(LARGE, mask=mask), len(run))

    return max(runs.values(), key=rank, default=[])
