"""`run` compiles, verifies and times a schedule, by what all commands that measure schedules share."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError
from tl_attention.lab.cli.command import FAILED, command, naming, say
from tl_attention.lab.cli.options import (
    arch_option,
    card_for,
    causal_option,
    compiled_for_card,
    dtype_option,
    feature_options,
    output_option,
    say_not_launched,
    seed_option,
    shape_for,
    sizes_options,
    window_option,
)
from tl_attention.lab.cli.schedules import meant_for, resolve_all, schedule_argument
from tl_attention.problem.card import Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

if TYPE_CHECKING:
    from tl_attention.lab.measure.candidate import Candidate
    from tl_attention.lab.measure.records import Measured, Row
    from tl_attention.lab.show.console import ProgressBar
    from tl_attention.lab.show.report import Kernel

# New records; git ignores the folder, and results/ has those that are kept.
RUNS = Path("runs")
# Rows that are not a failure: a refusal is the answer to a schedule that cannot run.
GOOD = ("ok", "refused", "checked_on_cpu", "compiled")
# How often a kernel is timed, in turn with the others.
ROUNDS = 5


def record_path(output: Path | None, name: str, suffix: str = ".jsonl") -> Path:
    """Returns `output` if it is given, else the path of a new file in runs/ with this name and the time now."""
    # Such as 20260131T120000Z.
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    return output or RUNS / f"{name}-{now}{suffix}"


@contextmanager
def recording(path: Path, what: str = "rows") -> Iterator[tuple[Callable[[Measured], None], ProgressBar]]:
    """Opens a file of results and yields (a function that appends a row to it, a progress bar).

    If a call fails because of the machine, it prints a line and exits with code 1.
    """
    from tl_attention.lab.measure.pool import CallFailed
    from tl_attention.lab.measure.results_file import ResultsFile
    from tl_attention.lab.show.console import ProgressBar

    results = ResultsFile(path)
    try:
        with ProgressBar() as progress:
            yield results.append, progress
    except CallFailed as failed:
        say(f"the machine failed, not a schedule: {failed}; {results.written} {what} are in {path}")
        sys.exit(FAILED)


@command(
    # What is left over is told below.
    context_settings={"allow_extra_args": True},
    examples={
        "run best": "the default problem, in fp16",
        "run mine.yaml --causal --dtype bf16": "a file of yours, with a causal mask",
        "run d64 --shape 1,16,4096,64": "another problem",
    },
    gone={
        "--sizes": "is gone: `bench NAME --sizes fixed` compiles for one size",
        "--rounds": "is gone: `bench NAME --rounds N` times more often",
    },
)
@schedule_argument
@sizes_options
@dtype_option("the inputs' dtype; may be given twice  [default: fp16]", several=True)
@causal_option
@window_option
@feature_options
@seed_option
@arch_option
@output_option
@click.pass_context
def run(context: click.Context, /, schedule: str, dtypes: tuple[str, ...], **options: Any) -> None:
    """Compile, verify and time one schedule.

    Without a GPU the kernel is compiled, its numbers are checked on the CPU, and nothing is timed. The last lines show
    the loop of the machine code.
    """
    if context.args:
        given = [schedule, *context.args]
        names = " ".join(map(shlex.quote, given))
        raise InputError(f"run: {len(given)} schedules, expected one; `tl-attention bench {names}` measures several")
    measure("run", [schedule], refuse=True, peers=(), dtypes=dtypes or ("fp16",), **options)


def candidates(
    texts: Sequence[str],
    on: Card,
    *,
    refuse: bool,
    shape: str | None,
    head_dim: HeadSize | None = None,
    sizes: str = "runtime",
    dtype: str = "fp16",
    dtypes: Sequence[str] = (),
    **problem: Any,
) -> list[Candidate]:
    """Returns a Candidate to measure for each schedule, dtype and kind of sizes, all for one problem on one card.

    Without `dtypes` it is for `dtype` alone. A mistake in any file or size raises InputError before the first slow
    import. So does a schedule that is not safe if `refuse`; otherwise it gets a row.
    """
    runnable = compiled_for_card(resolve_all(texts), on)
    sizes_text = shape_for(shape, head_dim, runnable)
    shapes = [AttentionShape.parse(sizes_text, dtype=each, **problem) for each in dtypes or (dtype,)]
    schedules = [(named, Planned(named.schedule)) for named in meant_for(runnable, shapes[0].head_size, shape)]
    if refuse:
        from tl_attention.kernels.preflight import refuse_unless_safe

        for named, planned in schedules:
            with naming(named):
                refuse_unless_safe(planned, shapes[0].head_size, on)
    say_not_launched(on)

    from tl_attention.lab.measure.candidate import Candidate

    fixed = {"runtime": (False,), "fixed": (True,), "both": (False, True)}[sizes]
    return [
        Candidate(named.name, of_dtype, planned, is_fixed, sms=on.sms, arch=on.arch)
        for of_dtype in dict.fromkeys(shapes)
        for named, planned in schedules
        for is_fixed in fixed
    ]


def measure(
    command: str,
    texts: Sequence[str],
    *,
    output: Path | None,
    peers: Sequence[str] | None,
    card: Card | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    **problem: Any,
) -> None:
    """Measures schedules, appends the rows to a file and shows them. Exits with 1 if one failed, 2 if none may run.

    `problem` is what `candidates` takes.
    """
    found = candidates(texts, card_for(card), **problem)
    from tl_attention.lab.measure import bench
    from tl_attention.lab.show.console import show

    path = record_path(output, command)
    with recording(path) as (record, progress):
        arch = card.arch if card else None
        rows = bench.measure(found, record, progress, rounds=rounds or ROUNDS, seed=seed, arch=arch, peers=peers)
    show(rows, path, loops=command == "run")
    if predicted := _predicted(found, rows):
        from tl_attention.lab.show.console import show_predicted

        show_predicted(rows, predicted)
    if any(row.status not in GOOD for row in rows):
        sys.exit(FAILED)
    if all(row.status == "refused" for row in rows if row.sizes != "peer"):
        sys.exit(2)


def _predicted(candidates: Sequence[Candidate], rows: Sequence[Row]) -> dict[Kernel, str]:
    """Returns for each kernel that was compiled and not timed its predicted time, or why it has none, in words."""
    from tl_attention.lab.show.report import NOT_TIMED, kernel_of

    # A row without a fingerprint is of a kernel that was not compiled.
    untimed = {kernel_of(row) for row in rows if row.status in NOT_TIMED and row.fingerprint}
    if not untimed:
        return {}
    from tl_attention.lab.model.machine import load
    from tl_attention.lab.model.prediction import predict
    from tl_attention.lab.show.console import ProgressBar

    machine = load()
    # Of kernels for cards that no model knows nothing is said.
    known = [one for one in candidates if kernel_of(one) in untimed and one.arch == machine.arch]
    found: dict[Kernel, str] = {}
    with ProgressBar() as progress:
        for candidate in progress.each("predict", known, str):
            try:
                said = f"{predict(candidate, machine).ms:.3f} ms"
            except InputError as error:
                said = str(error).removeprefix(f"{candidate.name}: ")
            except Exception as error:
                # What was measured stands, whatever a model lacks.
                said = f"the model failed: {type(error).__name__}: {error}"
            found[kernel_of(candidate)] = " ".join(said.split())
    return found
