"""`trace` runs a schedule's kernel with marks, and shows what each of its roles did when."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import command
from tl_attention.lab.cli.measure import candidates, record_path
from tl_attention.lab.cli.options import (
    FILE,
    card_for,
    feature_options,
    problem_options,
    seed_option,
    some_of,
    window_option,
)
from tl_attention.lab.cli.outputs import OutputFile
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import CHROME, PAGE, PICTURE, TIMELINE
from tl_attention.lab.measure.device import card_of_arch, visible_gpus
from tl_attention.problem.card import KNOWN

if TYPE_CHECKING:
    from tl_attention.lab.trace.timeline import Timeline, Window

# What mma.sync loads into registers is for those who ask: a mark before each of these loads takes much time.
DEFAULT = "tile,wait,issue,load,vector,store,end"


@command(
    examples={
        "trace best --page best.html": "what each role of four thread blocks did, as a page to zoom into",
        "trace best_causal --causal --blocks 0,5": "two other thread blocks",
        "trace --of one.json --of other.json --page both.html": "two timelines above each other, without a GPU",
        "trace --of one.json --picture one.svg": "two iterations as a picture, with the critical path",
        "trace best --predict --of one.json --page both.html": "what a model says, below what was measured",
    }
)
@click.argument("schedule", required=False, metavar="[SCHEDULE]")
@problem_options
@window_option
@feature_options
@click.option("--blocks", default="0,1,2,3", show_default=True, help="the thread blocks to trace, by number")
@click.option("--marks", default=DEFAULT, show_default=True, help="what marks stand before")
@click.option(
    "--skip", type=click.IntRange(0), default=0, show_default=True, help="leave out each role's first iterations"
)
@click.option(
    "--iterations", type=click.IntRange(1), default=220, show_default=True, help="iterations of each role to note"
)
@seed_option
@click.option(
    "--ncu", is_flag=True, help="have NVIDIA's ncu count the tensor pipe's work too, of the kernel with marks"
)
@click.option("--output", type=OutputFile(TIMELINE), help="the timeline's file, a new one  [default: in runs/]")
@click.option(
    "--of", "recorded", type=FILE, multiple=True, help="show this timeline, and run nothing; several times: all"
)
@click.option("--predict", is_flag=True, help="have a model of the SM run the kernel, without a GPU and without marks")
@click.option(
    "--machine", default="h200", show_default=True, help="the GPU to predict for: a name, or a file of its numbers"
)
@click.option("--chrome", type=OutputFile(CHROME), help="write it as a trace for ui.perfetto.dev too")
@click.option("--page", type=OutputFile(PAGE), help="write it as one HTML page too")
@click.option(
    "--picture", type=OutputFile(PICTURE), help="draw two steady iterations and their critical path too: .svg or .png"
)
def trace(
    schedule: str | None,
    blocks: str,
    marks: str,
    skip: int,
    iterations: int,
    seed: int | None,
    ncu: bool,
    output: Path | None,
    recorded: tuple[Path, ...],
    predict: bool,
    machine: str,
    chrome: Path | None,
    page: Path | None,
    picture: Path | None,
    **problem: Any,
) -> None:
    """Run a schedule's kernel with marks, and show what each of its roles did when.

    A mark notes the SM's clock, and says what follows it: a wait, the issue of a product, a load, a group of vector
    statements. So each cycle of a role has a name. The end of a product is seen at the wait for it alone. Marks take time,
    and change what ptxas makes of the code around them: how much is said below the table.
    """
    if predict and not schedule:
        raise InputError("--predict: expected a schedule to predict")
    if bool(schedule) == bool(recorded) and not predict:
        raise InputError("trace: expected a schedule, or timelines to show by --of")
    if recorded and not predict and output:
        raise InputError("--output: expected a schedule to record, not --of")
    if ncu and (recorded or predict):
        raise InputError(f"--ncu: expected a schedule to record, not {'--predict' if predict else '--of'}")
    shown = len(recorded) + bool(schedule)
    if chrome and shown > 1:
        raise InputError(f"--chrome: {shown} timelines, expected one")
    draw = _drawing(picture, shown) if picture else None
    from tl_attention.lab.trace.timeline import Timeline, Window

    timelines = [Timeline.read(path) for path in recorded]
    if schedule:
        # Another process may begin in the same second, and neither replaces what the other wrote.
        result = output if predict else record_path(output, f"trace-{os.getpid()}", ".json")
        if result:
            user_file.check_writable(result, TIMELINE)
        if predict:
            timelines.append(_predicted(schedule, problem, machine))
        else:
            window = Window(_numbers(blocks), skip, iterations)
            timelines.append(_recorded(schedule, problem, _kinds(marks), window, seed, ncu))
        if result:
            _written(result, timelines[-1].write)
    _show(timelines)
    if chrome:
        from tl_attention.lab.trace import chrome as of_chrome

        _written(chrome, lambda file: of_chrome.write(timelines[0], file))
    if page:
        from tl_attention.lab.trace import page as of_page

        _written(page, lambda file: of_page.write(timelines, file))
    if picture and draw:
        _written(picture, lambda file: draw(timelines, file))


def _drawing(picture: Path, timelines: int) -> Callable[[Sequence[Timeline], Path], None]:
    """Returns what draws a picture to a file. Raises InputError where that cannot be, before any kernel has run."""
    try:
        from tl_attention.lab.trace import picture as of_picture
    except ImportError as error:
        raise InputError(f'--picture: {error}, expected what `pip install "tl-attention[pictures]"` has') from None
    of_picture.check(picture, timelines)
    return of_picture.write


def _kinds(marks: str) -> frozenset[str]:
    from tl_attention.codeproof.mark_places import KINDS

    kinds = some_of("--marks", marks, KINDS, "nothing to mark")
    if not {"tile", "end"} <= {*kinds}:
        raise InputError("--marks: expected tile and end among them, between which time is counted")
    return frozenset(kinds)


def _numbers(blocks: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in blocks.split(","))
    except ValueError:
        raise InputError(f"--blocks: {blocks[:40]!r} is no list of numbers, such as 0,1,2") from None


def _recorded(
    schedule: str, problem: dict[str, Any], kinds: frozenset[str], window: Window, seed: int | None, ncu: bool
) -> Timeline:
    (candidate,) = candidates([schedule], card_for(None), refuse=True, **problem)
    if candidate.shape.packed:
        raise InputError(f"{candidate.name}: packed sequences, expected a batch of one length: nothing is recorded")
    if not visible_gpus():
        raise InputError(f"trace: no GPU here, expected one of compute capability {KNOWN}; --of needs none")
    from tl_attention.lab.trace.counted import record_and_count
    from tl_attention.lab.trace.recording import record

    return (record_and_count if ncu else record)(candidate, kinds, window, seed)


def _predicted(schedule: str, problem: dict[str, Any], machine: str) -> Timeline:
    from tl_attention.lab.model.machine import load
    from tl_attention.lab.model.timeline import predicted

    on = load(machine)
    (candidate,) = candidates([schedule], card_of_arch(on.arch), refuse=True, **problem)
    return predicted(candidate, on)


def _written(path: Path, write: Callable[[Path], None]) -> None:
    """Has a file written, and says so."""
    write(path)
    click.echo(printable(f"written: {path}"), err=True)


def _show(timelines: Sequence[Timeline]) -> None:
    from tl_attention.lab.show import timeline as shown
    from tl_attention.lab.show.console import Output

    output = Output()
    for timeline in timelines:
        output.fitting(shown.table(timeline))
        output.say("", *shown.below(timeline), "")
