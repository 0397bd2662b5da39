"""Commands about schedule files, and what other commands share of them. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import click

from tl_attention.cli.errors import Problems, naming
from tl_attention.errors import InputError
from tl_attention.problem import HEAD_DIMS
from tl_attention.schedule import Schedule
from tl_attention.schedule_file import SCHEMA_NAME, json_schema, load

SCHEDULES = Path("schedules")

file_argument = click.argument("schedule", type=click.Path(path_type=Path))
files_argument = click.argument("schedules", nargs=-1, type=click.Path(path_type=Path))


def files_or_all(paths: Sequence[Path]) -> list[Path]:
    """The named files, each once, or those of schedules/."""
    found = list(dict.fromkeys(paths)) or sorted(SCHEDULES.glob("*.yaml"))
    if not found:
        raise InputError(f"no schedule files: none were named and {SCHEDULES}/ has none")
    return found


def load_all(paths: Sequence[Path]) -> list[tuple[str, Schedule]]:
    """(name, schedule) of every file; a mistake in any of them ends the command."""
    problems = Problems()
    schedules = {}
    for path in paths:
        with problems.of(path):
            schedules[path] = load(path)
    problems.finish()
    stems = [path.stem for path in paths]
    # Files of the same name in two folders keep their folders, or their rows could not be told apart.
    return [(path.stem if stems.count(path.stem) == 1 else str(path), schedules[path]) for path in paths]


@click.command("list")
@files_argument
def list_command(schedules: tuple[Path, ...]) -> None:
    """Every schedule with its label (schedules/*.yaml by default)."""
    paths = files_or_all(schedules)
    width = max(len(path.stem) for path in paths)
    problems = Problems()
    for path in paths:
        with problems.of(path):
            click.echo(f"{click.format_filename(path.stem):{width}}  {load(path).label}")
    problems.finish()


@click.command()
@files_argument
@click.option("--head-dim", type=int, default=128, show_default=True, help=f"one of {HEAD_DIMS}")
def check(schedules: tuple[Path, ...], head_dim: int) -> None:
    """Prove schedules safe, or refuse them with the dependence or limit that they break."""
    from tl_attention.limits import check_head_dim
    from tl_attention.preflight import refuse_unless_safe

    check_head_dim(head_dim)
    problems = Problems()
    for path in files_or_all(schedules):
        with problems.of(path):
            schedule = load(path)
            refuse_unless_safe(schedule, head_dim)
            proved = "proved safe" if schedule.has_program else "fits; no Program to prove"
            click.echo(f"{click.format_filename(path)}: {proved} at head_dim {head_dim}")
    problems.finish()


@click.command()
@file_argument
@click.option("--model", type=click.Choice(["synchronous", "asynchronous"]),
              help="synchronous: as `lowering: pipelined` runs it; asynchronous: products and loads in flight, as "
                   "`warp_specialized` does; by default the lowering's own")
def explain(schedule: Path, model: str | None) -> None:
    """Prologue, steady state and epilogue in text: who waits for whom."""
    from tl_attention.derivation import derive
    from tl_attention.explain import explain as text
    from tl_attention.preflight import proofs

    loaded = load(schedule)
    with naming(schedule):
        click.echo(text(loaded, model), nl=False)  # type: ignore[arg-type]
        if loaded.has_program:
            click.echo()
            for proved in proofs(loaded, derive(loaded, model)):  # type: ignore[arg-type]
                click.echo(f"proved: {proved}")


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=SCHEDULES / SCHEMA_NAME, show_default=True)
def schema(output: Path) -> None:
    """Write the JSON Schema with which editors complete and check schedule files."""
    try:
        output.write_text(json_schema())
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {output}")
