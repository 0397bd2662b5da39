"""Draws accepted schedules, stores the code that TileLang makes of them, and compares proofs' verdicts with stored ones.

    python tools/corpus.py draw FILE [--cases 2000] [--pipelined 500] [--shipped TEXT] [--jobs 2] [--seconds 450]
    python tools/corpus.py compare FILE [--checkout .] [--jobs 2] [--only TEXT]

`draw` walks at random from the shipped schedules, in both lowerings, by the seed below. It keeps the schedules that the
package accepts before it compiles, lowers each for a random variant to CUDA and to the host's C, without nvcc, and runs
the proof. --shipped adds the schedule files whose case (see same_code.py) has the text in its name, '' for all. Cases
that FILE has already are not lowered again: the same command goes on where the time was over.

`compare` lowers nothing: the package of a checkout judges the stored cases. The command shows every verdict that
differs, and how long the proofs took; its exit code is 1 if a verdict differs.

FILE is xz of JSON lines, one GeneratedCase on each. Two such files one after the other are a valid file too.
"""

from __future__ import annotations

import json
import lzma
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from checkouts import Checkout, CheckoutPath, Progress
from kernel_case import NOT_LOWERED, GeneratedCase, draw_random, draw_shipped, judge, lower
from pebble import ProcessExpired, ProcessPool
from same_code import all_cases

SEED = 10
# So far back the compression finds equal text: a thousand kernels.
WINDOW = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2**26}]
SHOWN = 400
HERE = str(Path(__file__).parents[1])


class OutOfTime(Exception):
    """Raised where the seconds that were given are over."""


def each_done(futures: Iterable[Future[Any]], until: float | None) -> Iterator[Future[Any]]:
    """Yields the futures as they are done. Raises OutOfTime when the clock passes `until`."""
    try:
        yield from as_completed(futures, None if until is None else max(0.0, until - time.monotonic()))
    except TimeoutError:
        raise OutOfTime from None


def drawn(
    pool: ProcessPool, checkout: Checkout, numbers: range, pipelined: int, shipped: str | None, until: float | None
) -> list[GeneratedCase]:
    """Draws the cases to lower, each kernel once, in an order that keeps the two lowerings mixed."""
    files = [] if shipped is None else [case for case in all_cases(checkout) if shipped in str(case)]
    from_files = [pool.schedule(draw_shipped, [checkout.folder, case]) for case in files]
    lowerings = [
        "pipelined" if (i + 1) * pipelined // len(numbers) > i * pipelined // len(numbers) else "warp_specialized"
        for i in range(len(numbers))
    ]
    random = [pool.schedule(draw_random, [checkout.folder, SEED, *case]) for case in zip(numbers, lowerings)]
    for _ in each_done([*from_files, *random], until):
        pass
    found = [case for future in from_files if (case := future.result())]
    click.echo(f"{len(found)} of {len(files)} cases of schedule files are accepted and have a Program")
    refused = sum(future.result()[1] for future in random)
    click.echo(f"{len(random):,} random cases were drawn, {refused:,} more that the package refuses")
    found += [future.result()[0] for future in random]
    kernels: dict[tuple[object, ...], GeneratedCase] = {}
    for case in found:
        kernels.setdefault(case.same_kernel(), case)
    click.echo(f"{len(found) - len(kernels)} are the same kernel as another")
    return [*kernels.values()]


def scheduled(
    pool: ProcessPool, work: Callable[..., Any], checkout: Checkout, cases: list[GeneratedCase], timeout_s: float
) -> dict[Future[Any], GeneratedCase]:
    """Schedules the work on each case, and returns the cases by their futures."""
    return {pool.schedule(work, [checkout.folder, case], timeout=timeout_s): case for case in cases}


def died(future: Future[Any], timeout_s: float) -> str:
    """Says why a future has no result; empty where it has one. Raises what the process raised by itself."""
    error = future.exception()
    if isinstance(error, ProcessExpired):
        return f"the process died with exit code {error.exitcode}"
    if isinstance(error, TimeoutError):
        return f"it took more than {timeout_s:.0f} s"
    if error:
        raise error
    return ""


def line(case: GeneratedCase) -> str:
    """Returns a case as its line of a file."""
    return f"{json.dumps(asdict(case))}\n"


def read(file: Path) -> list[GeneratedCase]:
    """Reads the cases of a file. Raises UsageError for a file of another kind."""
    try:
        with lzma.open(file, "rt") as lines:
            rows = [json.loads(text) for text in lines]
        return [GeneratedCase(**row | {"sizes": row["sizes"] and tuple(row["sizes"])}) for row in rows]
    except (lzma.LZMAError, EOFError, ValueError, TypeError, KeyError) as error:
        raise click.UsageError(f"{file}: {error}; expected a whole file of `draw`") from None


def show_verdicts(verdicts: Iterable[str]) -> None:
    """Prints how many cases have each verdict, with N for the numbers in its words."""
    counts = Counter(re.sub(r"\d+", "N", verdict)[:SHOWN] for verdict in verdicts)
    for verdict, count in counts.most_common():
        click.echo(f"{count:6,} {verdict}")


def show_times(seconds: dict[str, float]) -> None:
    """Prints the median of the proofs' times, their 90th percentile, and the longest with its case."""
    if seconds:
        in_order = sorted(seconds, key=lambda case: seconds[case])
        median, tenth, last = (in_order[int(part * (len(in_order) - 1))] for part in (0.5, 0.9, 1))
        click.echo(
            f"{len(seconds):,} proofs: median {seconds[median]:.2f} s of a core, 90th percentile "
            f"{seconds[tenth]:.2f} s, longest {seconds[last]:.2f} s ({last})"
        )


@click.group()
def main() -> None:
    """Draw kernels, or have the proof of generated code judge those that were drawn."""


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that both commands take."""
    command = click.option(
        "--checkout", type=CheckoutPath(), default=HERE, show_default="this one", help="whose package"
    )(command)
    command = click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="processes at a time")(
        command
    )
    return click.option("--timeout", type=float, default=300.0, show_default=True, help="of one case, in seconds")(
        command
    )


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--cases", type=click.IntRange(0), default=2000, show_default=True, help="random ones")
@click.option("--pipelined", type=click.IntRange(0), default=500, show_default=True, help="of them in this lowering")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="number of the first random one")
@click.option("--shipped", metavar="TEXT", help="and of schedule files those with this in their name")
@click.option("--seconds", type=float, help="what is not lowered by then is left out, and counted")
@options
def draw(
    file: Path,
    cases: int,
    pipelined: int,
    first: int,
    shipped: str | None,
    seconds: float | None,
    checkout: Checkout,
    jobs: int,
    timeout: float,
) -> None:
    """Draw schedules, lower them, and keep what came out with the verdict."""
    until = None if seconds is None else time.monotonic() + seconds
    commit = checkout.commit() or ""
    stored = read(file) if file.exists() else []
    before = {case.same_kernel() for case in stored}
    with checkout.processes(jobs, "tests") as pool, lzma.open(file, "at", filters=WINDOW) as lines:
        try:
            found = drawn(pool, checkout, range(first, first + cases), pipelined, shipped, until)
            found = [case for case in found if case.same_kernel() not in before]
            futures = scheduled(pool, lower, checkout, found, timeout)
            progress = Progress("lowered", len(futures))
            for future in each_done(futures, until):
                why = died(future, timeout)
                case = replace(futures[future], verdict=f"{NOT_LOWERED}{why}") if why else future.result()
                stored.append(replace(case, commit=commit))
                lines.write(line(stored[-1]))
                progress.advance()
        except OutOfTime:
            click.echo(f"after {seconds:.0f} s the others are left out; the same command goes on")
    show_verdicts(case.verdict for case in stored)
    show_times({str(case): case.proof_s for case in stored if case.source})
    click.echo(f"{len(stored):,} cases, {file.stat().st_size:,} bytes")


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--only", default="", help="cases whose name, or label, contains this")
@options
def compare(file: Path, only: str, checkout: Checkout, jobs: int, timeout: float) -> None:
    """Judge what is stored anew, and show every verdict that differs."""
    found = [case for case in read(file) if only in str(case)]
    lowered = [case for case in found if case.source]
    if not lowered:
        raise click.UsageError(f"{file}: no case that was lowered has {only!r} in its name")
    verdicts: dict[str, str] = {}
    seconds: dict[str, float] = {}
    progress = Progress(f"judged by {checkout.folder}", len(lowered))
    with checkout.processes(jobs) as pool:
        futures = scheduled(pool, judge, checkout, lowered, timeout)
        for future in each_done(futures, None):
            case, why = futures[future], died(future, timeout)
            verdicts[str(case)], seconds[str(case)] = (f"BROKEN: {why}", timeout) if why else future.result()
            progress.advance()
    different = [case for case in lowered if verdicts[str(case)] != case.verdict]
    for case in different:
        click.echo(f"DIFFERENT: {case}\n    - {case.verdict[:SHOWN]}\n    + {verdicts[str(case)][:SHOWN]}")
    show_verdicts(verdicts.values())
    show_times(seconds)
    click.echo(f"{len(lowered):,} cases, {len(different):,} DIFFERENT; {len(found) - len(lowered):,} were not lowered")
    if different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
