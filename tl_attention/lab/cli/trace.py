"""`trace` runs a schedule's kernel with marks, and shows what each of its roles did when."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tl_attention.errors import InputError, printable
from tl_attention.lab.cli.command import command
from tl_attention.lab.cli.measure import candidates, record_path
from tl_attention.lab.cli.options import FILE, card_for, problem_options, some_of
from tl_attention.lab.cli.outputs import OutputFile
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import CHROME, PAGE, PICTURE, TIMELINE, Kind
from tl_attention.lab.measure.device import card_of_arch, visible_gpus
from tl_attention.problem.card import KNOWN

if TYPE_CHECKING:
    from tl_attention.lab.measure.candidate import Candidate
    from tl_attention.lab.trace.timeline import Timeline

# What mma.sync loads into registers is for those who ask: a mark before each of these loads takes much time.
DEFAULT = "tile,wait,issue,load,vector,store,end"
# Iterations of each role that are noted.
ITERATIONS = 220
# The longer ending comes first.
KINDS = {".chrome.json": CHROME, ".json": TIMELINE, ".html": PAGE, ".svg": PICTURE, ".png": PICTURE}


def _kind_of(path: Path, options: Mapping[str, Any] | None = None) -> Kind:
    """Returns the kind of file that a name's ending asks for."""
    if kind := next((kind for ending, kind in KINDS.items() if path.name.endswith(ending)), None):
        return kind
    raise InputError(f"--output: {printable(path.name)[:60]!r}, expected a name that ends in {', '.join(KINDS)}")


blocks_option = click.option(
    "--blocks", default="0,1,2,3", show_default=True, help="the thread blocks to trace, by number"
)
marks_option = click.option("--marks", default=DEFAULT, show_default=True, help="what marks stand before")
IN_TOOLS = "is now of `python tools/measure.py timeline`, in a checkout"


@command(
    examples={
        "trace best -o best.html": "what each role of four thread blocks did, as a page to zoom into",
        "trace best_causal --causal --blocks 0,5": "two other thread blocks",
        "trace --of one.json --of other.json -o both.html": "two timelines above each other, without a GPU",
        "trace --of one.json -o one.svg": "two iterations as a picture, with the critical path",
        "trace best --predict --of one.json -o both.html": "what a model says, below what was measured",
    },
    gone={
        "--page": "is now `--output FILE.html`",
        "--picture": "is now `--output FILE.svg` or `--output FILE.png`",
        "--chrome": "is now `--output FILE.chrome.json`",
        "--machine": "is gone: the model is of an H200",
        **dict.fromkeys(("--skip", "--iterations", "--seed", "--ncu"), IN_TOOLS),
        **dict.fromkeys(("--window", "--softcap", "--sinks", "--lse"), IN_TOOLS),
    },
)
@click.argument("schedule", required=False, metavar="[SCHEDULE]")
@problem_options
@blocks_option
@marks_option
@click.option(
    "--of", "recorded", type=FILE, multiple=True, help="show this timeline, and run nothing; several times: all"
)
@click.option("--predict", is_flag=True, help="have a model of an H200 run the kernel, without a GPU and without marks")
@click.option(
    "-o",
    "--output",
    "outputs",
    type=OutputFile(_kind_of),
    multiple=True,
    help="a file, by its ending: .json the timeline, a new one; .html a page; .svg or .png two steady iterations and "
    "their critical path; .chrome.json a trace for ui.perfetto.dev; may be given several times  [default: a timeline in "
    "runs/]",
)
def trace(
    schedule: str | None,
    blocks: str,
    marks: str,
    recorded: tuple[Path, ...],
    predict: bool,
    outputs: tuple[Path, ...],
    **problem: Any,
) -> None:
    """Run a schedule's kernel with marks, and show what each of its roles did when.

    A mark notes the SM's clock, and says what follows it: a wait, the issue of a product, a load, a group of vector
    statements. So each cycle of a role has a name. The end of a product is seen at the wait for it alone. Marks take
    time, and change what ptxas makes of the code around them: how much is said below the table.
    """
    if predict and not schedule:
        raise InputError("--predict: expected a schedule to predict")
    if bool(schedule) == bool(recorded) and not predict:
        raise InputError("trace: expected a schedule, or timelines to show by --of")
    files = [(path, _kind_of(path)) for path in outputs]
    results = [path for path, kind in files if kind is TIMELINE]
    if results and not schedule:
        raise InputError(f"{results[0]}: a timeline, expected a schedule to record, not --of")
    shown = len(recorded) + bool(schedule)
    if shown > 1 and any(kind is CHROME for _, kind in files):
        raise InputError(f"a Chrome trace: {shown} timelines, expected one")
    writers = {path: _writer(path, kind, shown) for path, kind in files if kind is not TIMELINE}
    from tl_attention.lab.trace.timeline import Timeline

    timelines = [Timeline.read(path) for path in recorded]
    if schedule:
        if not predict:
            # Another process may begin in the same second, and neither replaces what the other wrote.
            results = results or [record_path(None, f"trace-{os.getpid()}", ".json")]
        for path in results:
            user_file.check_writable(path, TIMELINE)
        timelines.append(_predicted(schedule, problem) if predict else _recorded(schedule, problem, blocks, marks))
        for path in results:
            _written(path, timelines[-1].write)
    _show(timelines)
    for path, write in writers.items():
        _written(path, lambda file, write=write: write(timelines, file))  # type: ignore[misc]


def _writer(path: Path, kind: Kind, timelines: int) -> Callable[[Sequence[Timeline], Path], None]:
    """Returns what writes timelines to a file of this kind, or raises InputError before any kernel has run."""
    if kind is PAGE:
        from tl_attention.lab.trace import page

        return page.write
    if kind is CHROME:
        from tl_attention.lab.trace import chrome

        return lambda found, file: chrome.write(found[0], file)
    try:
        from tl_attention.lab.trace import picture
    except ImportError as error:
        raise InputError(f'{path}: {error}, expected what `pip install "tl-attention[pictures]"` has') from None
    picture.check(timelines)
    return picture.write


def kinds_of(marks: str) -> frozenset[str]:
    """Returns the kinds of marks that a text names, separated by commas. Raises InputError for any other text."""
    from tl_attention.codeproof.mark_places import KINDS

    kinds = some_of("--marks", marks, KINDS, "nothing to mark")
    if not {"tile", "end"} <= {*kinds}:
        raise InputError("--marks: expected tile and end among them, between which time is counted")
    return frozenset(kinds)


def numbers_of(blocks: str) -> tuple[int, ...]:
    """Returns the numbers of thread blocks that a text names, between commas. Raises InputError for other texts."""
    try:
        return tuple(int(number) for number in blocks.split(","))
    except ValueError:
        raise InputError(f"--blocks: {blocks[:40]!r} is no list of numbers, such as 0,1,2") from None


def to_record(schedule: str, problem: dict[str, Any]) -> Candidate:
    """Returns the kernel to record. Raises InputError where there is no GPU to run it, and for packed sequences."""
    (candidate,) = candidates([schedule], card_for(None), refuse=True, **problem)
    if candidate.shape.packed:
        raise InputError(f"{candidate.name}: packed sequences, expected a batch of one length: nothing is recorded")
    if not visible_gpus():
        raise InputError(
            f"trace: no GPU here, expected one of compute capability {KNOWN}; `trace {schedule} --predict` and "
            "`trace --of FILE` need none"
        )
    return candidate


def _recorded(schedule: str, problem: dict[str, Any], blocks: str, marks: str) -> Timeline:
    kinds, numbers, candidate = kinds_of(marks), numbers_of(blocks), to_record(schedule, problem)
    from tl_attention.lab.trace.recording import record
    from tl_attention.lab.trace.timeline import Window

    return record(candidate, kinds, Window(numbers, 0, ITERATIONS))


def _predicted(schedule: str, problem: dict[str, Any]) -> Timeline:
    from tl_attention.lab.model.machine import load
    from tl_attention.lab.model.timeline import predicted

    on = load()
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
