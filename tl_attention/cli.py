"""The command line. Each command imports what it needs: list, check and explain start without torch or tilelang."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any, Iterable, Sequence

import click

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.problem import DTYPE_NAMES, HEAD_DIMS, AttentionShape
from tl_attention.schedule import Schedule
from tl_attention.schedule_file import SCHEMA_NAME, json_schema, load

SCHEDULES = Path("schedules")
RESULTS = Path("results")
DEFAULT_SHAPE = "4,64,8192,128"

file_argument = click.argument("schedule", type=click.Path(path_type=Path))
files_argument = click.argument("schedules", nargs=-1, type=click.Path(path_type=Path))


class _OneLineErrors(click.Group):
    """Every kind of bad input ends in one line on stderr and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except InputError as error:
            _fail(str(error))
        except click.ClickException as error:
            _fail(f"{error.format_message()} (see --help)")
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted; rows already recorded are kept", err=True)
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(2)


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tl-attention", message="%(version)s")
def main() -> None:
    """FlashAttention forward whose pipeline schedule is a YAML file."""


def _files(paths: Sequence[Path]) -> list[Path]:
    found = list(paths) or sorted(SCHEDULES.glob("*.yaml"))
    if not found:
        raise InputError(f"no schedule files: none were named and {SCHEDULES}/ has none")
    return found


@main.command("list")
@files_argument
def list_command(schedules: tuple[Path, ...]) -> None:
    """Every schedule with its label (schedules/*.yaml by default)."""
    paths = _files(schedules)
    width = max(len(path.stem) for path in paths)
    for path in paths:
        click.echo(f"{path.stem:{width}}  {load(path).label}")


@main.command()
@files_argument
@click.option("--head-dim", type=int, default=128, show_default=True, help=f"one of {HEAD_DIMS}")
def check(schedules: tuple[Path, ...], head_dim: int) -> None:
    """Prove schedules safe, or refuse them with the dependence or limit that they break."""
    from tl_attention.limits import check_head_dim
    from tl_attention.preflight import refuse_unless_safe

    check_head_dim(head_dim)
    refused = 0
    for path in _files(schedules):
        schedule = load(path)
        try:
            refuse_unless_safe(schedule, head_dim)
        except ScheduleRefused as refusal:
            refused += 1
            click.echo(f"{path}: refused: {refusal}")
        else:
            proved = "proved safe" if schedule.has_program else "fits; no Program to prove"
            click.echo(f"{path}: {proved} at head_dim {head_dim}")
    if refused:
        raise InputError(f"{refused} of {len(_files(schedules))} schedules refused at head_dim {head_dim}")


@main.command()
@file_argument
@click.option("--model", type=click.Choice(["synchronous", "asynchronous"]), default="synchronous", show_default=True,
              help="synchronous: as `lowering: pipelined` runs it; asynchronous: products and loads in flight")
def explain(schedule: Path, model: str) -> None:
    """Prologue, steady state and epilogue in text: who waits for whom."""
    from tl_attention.explain import explain as text
    from tl_attention.legality import check as prove
    from tl_attention.program import derive

    loaded = load(schedule)
    click.echo(text(loaded, model), nl=False)
    if loaded.has_program:
        prove(derive(loaded, model))  # type: ignore[arg-type]
        click.echo("\nproved: every read sees the value that source order gives it")


def run_options(command: Any) -> Any:
    """The options that `run` and `bench` share."""
    options = [
        click.option("--shape", default=DEFAULT_SHAPE, show_default=True,
                     help="batch,heads,seq,head_dim or batch,heads,seq_q,seq_kv,head_dim"),
        click.option("--dtype", "dtypes", multiple=True, type=click.Choice(sorted(DTYPE_NAMES)),
                     help="may be given twice  [default: fp16 for run, fp16 and bf16 for bench]"),
        click.option("--causal", is_flag=True),
        click.option("--sizes", type=click.Choice(["runtime", "fixed", "both"]), default="runtime", show_default=True,
                     help="sizes read at run time, or compiled for exactly this shape"),
        click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True),
        click.option("--seed", type=click.IntRange(min=0), help="of the inputs  [default: fresh, recorded]"),
        click.option("--output", type=click.Path(path_type=Path), help="JSON lines  [default: a new file in results/]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@file_argument
@run_options
def run(schedule: Path, **options: Any) -> None:
    """Compile, verify and time one schedule; without a GPU compile it and verify it on the CPU."""
    _measure([schedule], command="run", default_dtypes=("fp16",), with_peers=False, **options)


@main.command()
@files_argument
@run_options
@click.option("--peers/--no-peers", default=True, show_default=True, help="cuDNN, FlashAttention-2 and -3 beside ours")
def bench(schedules: tuple[Path, ...], peers: bool, **options: Any) -> None:
    """Compile, verify and time many schedules, ranked (schedules/*.yaml by default)."""
    _measure(_files(schedules), command="bench", default_dtypes=("fp16", "bf16"), with_peers=peers, **options)


def _measure(
    paths: Sequence[Path], *, command: str, default_dtypes: Iterable[str], with_peers: bool, shape: str,
    dtypes: Sequence[str], causal: bool, sizes: str, rounds: int, seed: int | None, output: Path | None,
) -> None:
    # A mistake in any file or size is told before the first slow import.
    schedules: list[tuple[str, Schedule]] = [(path.stem, load(path)) for path in paths]
    shapes = [AttentionShape.parse(shape, dtype=dtype, causal=causal) for dtype in dtypes or default_dtypes]
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")

    from tl_attention.records import ResultsFile

    results = ResultsFile(output or RESULTS / f"{command}-{stamp}.jsonl")

    from tl_attention import runner
    from tl_attention.candidate import Candidate
    from tl_attention.console import ProgressBar, show

    fixed = {"runtime": (False,), "fixed": (True,), "both": (False, True)}[sizes]
    candidates = [
        Candidate(name, problem, schedule, is_fixed)
        for problem in dict.fromkeys(shapes) for name, schedule in schedules for is_fixed in fixed
    ]
    with ProgressBar() as progress:
        rows = runner.run(candidates, runner.Options(rounds, with_peers, seed), results, progress)
    show(rows, results.path)
    bad = [row for row in rows if row.status not in ("ok", "refused", "checked_on_cpu")]
    if bad:
        sys.exit(1)
    if command == "run" and rows[0].status == "refused":
        sys.exit(2)


@main.command()
@click.option("--output", type=click.Path(path_type=Path), default=SCHEDULES / SCHEMA_NAME, show_default=True)
def schema(output: Path) -> None:
    """Write the JSON Schema with which editors complete and check schedule files."""
    try:
        output.write_text(json_schema())
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {output}")
