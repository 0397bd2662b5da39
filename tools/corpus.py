"""Draws accepted schedules, stores the code that TileLang makes of them, and compares proofs' verdicts with the stored.

    python tools/corpus.py draw FILE [--cases 2000] [--pipelined 500] [--jobs 2]
    python tools/corpus.py compare FILE [--jobs 2] [--only TEXT]

`draw` walks at random from the shipped schedules, in both lowerings, by the seed below. It keeps the schedules that the
package accepts before it compiles, lowers each for a random variant to CUDA and the host's plan, without nvcc, and runs
the proof.

`compare` lowers nothing: the package judges the stored cases. The command shows every verdict that differs, and how
long the proofs took; its exit code is 1 if a verdict differs.

FILE is xz of JSON lines, one GeneratedCase on each.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import click
from checkouts import HERE, options, outcomes
from kernel_case import NOT_LOWERED, GeneratedCase, draw_random, judge, lower
from pebble import ProcessPool

from tl_attention.lab.measure.machine import commit

SEED = 10
# So far back the compression finds equal text: a thousand kernels.
WINDOW = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 2**26}]
SHOWN = 400


def drawn(pool: ProcessPool, count: int, pipelined: int) -> list[GeneratedCase]:
    """Draws the cases to lower, each kernel once, in an order that keeps the two lowerings mixed."""
    lowerings = [
        "pipelined" if (i + 1) * pipelined // count > i * pipelined // count else "warp_specialized"
        for i in range(count)
    ]
    futures = [pool.schedule(draw_random, [SEED, *case]) for case in enumerate(lowerings)]
    found = [future.result() for future in futures]
    click.echo(f"{count:,} random cases were drawn, {sum(n for _, n in found):,} more that the package refuses")
    kernels: dict[tuple[object, ...], GeneratedCase] = {}
    for case, _ in found:
        kernels.setdefault(case.same_kernel(), case)
    click.echo(f"{count - len(kernels)} are the same kernel as another")
    return [*kernels.values()]


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


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--cases", type=click.IntRange(1), default=2000, show_default=True, help="random ones")
@click.option("--pipelined", type=click.IntRange(0), default=500, show_default=True, help="of them in this lowering")
@options(timeout=300.0)
def draw(file: Path, cases: int, pipelined: int, jobs: int, timeout: float) -> None:
    """Draw schedules, lower them, and keep what came out with the verdict."""
    stored = []
    with HERE.processes(jobs, "tools", "tests") as pool:
        found = drawn(pool, cases, pipelined)
        for case, (future, why) in zip(found, outcomes("lowered", pool, lower, [[case] for case in found], timeout)):
            case = replace(case, verdict=f"{NOT_LOWERED}{why}") if why else future.result()
            stored.append(replace(case, commit=commit() or ""))
    file.write_bytes(lzma.compress("".join(map(line, stored)).encode(), filters=WINDOW))
    show_verdicts(case.verdict for case in stored)
    show_times({str(case): case.proof_s for case in stored if case.source})
    click.echo(f"{len(stored):,} cases, {file.stat().st_size:,} bytes")


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--only", default="", help="cases whose name, or label, contains this")
@options(timeout=300.0)
def compare(file: Path, only: str, jobs: int, timeout: float) -> None:
    """Judge what is stored anew, and show every verdict that differs."""
    found = [case for case in read(file) if only in str(case)]
    lowered = [case for case in found if case.source]
    if not lowered:
        raise click.UsageError(f"{file}: no case that was lowered has {only!r} in its name")
    verdicts: dict[str, str] = {}
    seconds: dict[str, float] = {}
    with HERE.processes(jobs, "tools") as pool:
        found_again = outcomes("judged", pool, judge, [[case] for case in lowered], timeout)
        for case, (future, why) in zip(lowered, found_again):
            verdicts[str(case)], seconds[str(case)] = (f"BROKEN: {why}", timeout) if why else future.result()
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
