"""Compares what `tl-attention check` says in two checkouts of this repository; the first checkout's answers are in a file.

    python tools/same_words.py save CHECKOUT FILE        asks, and saves the questions with the answers
    python tools/same_words.py compare CHECKOUT FILE     asks the same again; exit code 1 if any answer differs

The questions are all shipped schedules, at the head sizes that they are meant for and at each one, and the labels of
10,000 mutants of the tests' generator, drawn when they are saved. An answer is stdout, stderr and exit code, with LABEL
for the label and CHECKOUT for the checkout's folder. `compare` needs nothing of the checkout but its command;
`--reworded OLD NEW` replaces words in the saved answers.
"""

from __future__ import annotations

import difflib
import json
import lzma
import random
import traceback
from collections import defaultdict
from pathlib import Path

import click
from checkouts import Checkout, CheckoutPath, Progress, check_home
from pebble import ProcessExpired

SHIPPED = ("--all", "--all --head-dim 64", "--all --head-dim 128")
MUTANTS, SEED = 10_000, 9
# Questions that a process gets at a time, and the seconds that they may take.
BATCH, TIMEOUT_S = 100, 300.0
SHOWN = 10


def draw_mutants(checkout: Path) -> list[str]:
    """Draws mutants in a process of the checkout and its tests, and returns their labels, sorted, each once."""
    check_home(checkout)
    from mutations import mutate, shipped, vary_options, with_options

    from tl_attention import Schedule

    rng, schedules = random.Random(SEED), list(shipped().values())
    labels: set[str] = set()
    while len(labels) < MUTANTS:
        schedule = rng.choice(schedules)
        specialized = schedule.lowering == "warp_specialized"
        if specialized and rng.random() < 0.25:
            schedule = with_options(schedule, rng)
        schedule = mutate(schedule, rng)
        if specialized:
            schedule = vary_options(schedule, rng)
        if Schedule.from_label(schedule.label) != schedule:
            raise ValueError(f"{schedule.label} is read back as another schedule")
        labels.add(schedule.label)
    return sorted(labels)


def answers(checkout: Path, questions: list[str]) -> list[str]:
    """Returns what `check` says to these arguments, in a process of the checkout. An error that escapes is added too."""
    check_home(checkout)
    from click.testing import CliRunner

    from tl_attention.cli import main as command

    said = []
    for question in questions:
        result = CliRunner().invoke(command, ["check", *question.split()])
        words = f"{result.stdout}stderr:\n{result.stderr}exit code {result.exit_code}\n"
        if result.exception and not isinstance(result.exception, SystemExit):
            words += "".join(traceback.format_exception(result.exception))
        said.append(words if question.startswith("--") else words.replace(question, "LABEL"))
    return said


def ask(checkout: Checkout, questions: list[str], jobs: int) -> dict[str, str]:
    """Returns the answer to each question. Raises ClickException where a process dies or takes too long."""
    batches = [questions[start : start + BATCH] for start in range(0, len(questions), BATCH)]
    progress = Progress(f"check of {checkout.folder}", len(questions))
    said: list[str] = []
    with checkout.processes(jobs) as pool:
        futures = [pool.schedule(answers, args=[checkout.folder, batch], timeout=TIMEOUT_S) for batch in batches]
        for batch, future in zip(batches, futures, strict=True):
            try:
                said += [checkout.without_path(words) for words in future.result()]
            except (TimeoutError, ProcessExpired) as error:
                raise click.ClickException(f"{checkout.folder}: {error!r} in the batch from {batch[0]} on") from None
            progress.advance(len(batch))
    return dict(zip(questions, said, strict=True))


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Groups the questions by the lines that differ in their answers, the largest group first."""
    found = defaultdict(list)
    for question, words in before.items():
        if words != after[question]:
            lines = difflib.unified_diff(words.splitlines(), after[question].splitlines(), lineterm="", n=0)
            found["\n".join(f"    {line}" for line in list(lines)[2:] if not line.startswith("@@"))].append(question)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


@click.group()
def main() -> None:
    """Compare what `tl-attention check` says in two checkouts."""


jobs_option = click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="processes at a time")


@main.command()
@click.argument("checkout", type=CheckoutPath())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@jobs_option
def save(checkout: Checkout, file: Path, jobs: int) -> None:
    """Draw the mutants, ask, and save questions and answers."""
    with checkout.processes(1, "tests") as pool:
        mutants = pool.schedule(draw_mutants, args=[checkout.folder], timeout=TIMEOUT_S).result()
    said = ask(checkout, [*SHIPPED, *mutants], jobs)
    text = json.dumps({"commit": checkout.commit(), "answers": said}, indent=0)
    file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    click.echo(f"{len(said):,} answers of {len(set(said.values())):,} kinds, {file.stat().st_size:,} bytes")


@main.command()
@click.argument("checkout", type=CheckoutPath())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@jobs_option
@click.option("--reworded", nargs=2, multiple=True, metavar="OLD NEW", help="words that were changed on purpose")
def compare(checkout: Checkout, file: Path, jobs: int, reworded: tuple[tuple[str, str], ...]) -> None:
    """Ask again, and show which answers differ."""
    saved = json.loads(lzma.decompress(file.read_bytes()))
    before = saved["answers"]
    for old, new in reworded:
        if not any(old in words for words in before.values()):
            raise click.UsageError(f"--reworded: no saved answer has {old!r}")
        before = {question: words.replace(old, new) for question, words in before.items()}
    found = differences(before, ask(checkout, list(before), jobs))
    for lines, questions in list(found.items())[:SHOWN]:
        click.echo(f"{len(questions):,} differ so, such as {questions[0]}:\n{lines}")
    if len(found) > SHOWN:
        click.echo(f"and in {len(found) - SHOWN:,} other ways")
    differ = sum(map(len, found.values()))
    click.echo(f"{len(before):,} answers, {differ:,} DIFFERENT from those of {saved['commit']}")
    if differ:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
