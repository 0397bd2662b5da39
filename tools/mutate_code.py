"""Puts faults into the generated code of shipped kernels, one at a time, and asks the proof about each.

    python tools/mutate_code.py run FOLDER [--kernel NAME]... [--jobs 2] [--timeout 120] [--numbers 300] [--sample 0]
    python tools/mutate_code.py integers FOLDER [--count 5000] [--seed integers] [--jobs 2] [--timeout 120]
    python tools/mutate_code.py table FOLDER        what came out of each kernel's mutants, and what is left to judge

Mutants are made of the kernel's body and of the host's plan, by its lines of JSON. In lines that the proof reads: every
line deleted, every two neighbouring statements that synchronise swapped, every integer changed (by 1, 2 and 3 where it
steers), and every line rewritten with a condition, another choice, a cast, a declaration, another type or a second
statement. In the other lines: 300 of the first three kinds, drawn by a seed.

A mutant is refused; or no C++; or equivalent: the same events, in a line wholly read, or the same machine code; or left
to the numbers, by the kind of its line; or for a person to judge.

`integers` draws mutants of integer expressions over all golden kernels: + 1 or - 1 in a range of a size, a window's
side, a lane, a block or a told number, min, max, & and % with a number, other casts. What the proof accepts is run on
the CPU beside the code as it is, in hundreds of cases in the range and at its ends: it is equivalent, or different.

FOLDER keeps a file of JSON lines for each kernel. A run goes on where the last one ended; remove the folder when the
proof changes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import click
from checkouts import HERE, Progress, options, outcomes
from code_mutants.compiled import BATCH, errors_of, same_machine_code
from code_mutants.golden_jobs import ask_and_judge, draw_of_all, golden, golden_names
from code_mutants.kernels import KERNELS, lowered
from code_mutants.operations import DEVICE, Mutant, mutants, sample
from code_mutants.proving import ACCEPTED, BROKEN, TIMEOUT, Answer, ask
from code_mutants.reading import Code, prove
from code_mutants.rows import OTHER, SAME, TO_JUDGE, Rows, class_of
from code_mutants.tables import kinds_of_numbers, table, to_judge
from machine_code import NotCompiled
from rich.console import Console

SEED = "tl-attention mutants"


def prove_each(kernel: str, code: Code, found: Sequence[Mutant], rows: Rows, jobs: int, timeout_s: float) -> None:
    """Asks the proof about the mutants that the file does not have yet."""
    missing = [mutant for mutant in found if mutant.key not in rows.found]
    with HERE.processes(jobs, "tools") as pool:
        given = [[kernel, mutant] for mutant in missing]
        for mutant, (future, why) in zip(missing, outcomes(f"{kernel}: proved", pool, ask, given, timeout_s)):
            kind = TIMEOUT if isinstance(future.exception(), TimeoutError) else BROKEN
            rows.add(mutant, Answer(kind, why) if why else future.result(), mutant.shown(code))


def compile_accepted(kernel: str, code: Code, found: Sequence[Mutant], rows: Rows, jobs: int) -> None:
    """Finds the accepted mutants that are no C++, and compiles the mutants that would be left to judge."""
    accepted = [mutant for mutant in found if rows.found[mutant.key]["outcome"] == ACCEPTED]
    unread = [mutant for mutant in accepted if mutant.part == DEVICE and "error" not in rows.found[mutant.key]]
    batches = [unread[start : start + BATCH] for start in range(0, len(unread), BATCH)]
    progress = Progress(f"{kernel}: read by the front end", len(unread))
    with ThreadPoolExecutor(jobs) as pool:
        for batch, errors in zip(batches, pool.map(lambda b: errors_of([m.of(code).source for m in b]), batches)):
            for mutant, error in zip(batch, errors):
                rows.learn(mutant.key, error=error)
            progress.advance(len(batch))
        left = [mutant for mutant in accepted if _left(rows, mutant)]
        progress = Progress(f"{kernel}: compiled", len(left))
        for mutant, fields in zip(left, pool.map(lambda mutant: machine(code, mutant), left)):
            rows.learn(mutant.key, **fields)
            progress.advance()


def _left(rows: Rows, mutant: Mutant) -> bool:
    row = rows.found[mutant.key]
    return class_of(row, rows.head["digest"]) == TO_JUDGE and "machine" not in row


def machine(code: Code, mutant: Mutant) -> dict[str, str]:
    """Says whether a mutant compiles, and to the kernel's machine code; of the host's plan, whether it is equal."""
    changed = mutant.of(code)
    try:
        if mutant.part == DEVICE:
            same = same_machine_code(code.source, changed.source)
        else:
            same = code.plan == changed.plan
    except NotCompiled as error:
        return {"error": str(error)}
    return {"machine": SAME if same else OTHER}


@click.group()
def main() -> None:
    """Faults in generated code, and which of them the proof lets pass."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(list(KERNELS)), help="[default: all]")
@options(timeout=120.0, of="proof")
@click.option("--numbers", type=click.IntRange(0), default=300, show_default=True, help="drawn of the numbers' lines")
@click.option(
    "--sample",
    "count",
    type=click.IntRange(0),
    default=0,
    help="mutants, one of each operation in turn  [default: all]",
)
@click.option("--proof-only", is_flag=True, help="compile nothing: what is no C++ stays where it is")
def run(
    folder: Path, kernels: tuple[str, ...], jobs: int, timeout: float, numbers: int, count: int, proof_only: bool
) -> None:
    """Make all mutants and ask the proof about each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in kernels or KERNELS:
        code = lowered(KERNELS[name])
        verdict = prove(KERNELS[name].schedule, code)
        found = mutants(code, verdict, numbers, f"{SEED} {name}")
        found = sample(found, count, f"{SEED} {name}") if count else found
        rows = Rows(folder / f"{name}.jsonl")
        rows.begin(name, code, verdict, len(found))
        prove_each(name, code, found, rows, jobs, timeout)
        if not proof_only:
            compile_accepted(name, code, found, rows, jobs)
        show(rows)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", type=click.IntRange(1), default=5000, show_default=True, help="mutants of all golden kernels")
@click.option("--seed", default="integers", show_default=True)
@options(timeout=120.0, of="proof")
@click.option("--proof-only", is_flag=True, help="compile nothing: what is no C++ stays where it is")
def integers(folder: Path, count: int, seed: str, jobs: int, timeout: float, proof_only: bool) -> None:
    """Draw mutants of integers, ask the proof about each, and judge those that it accepts."""
    sys.path.append(str(HERE.folder / "tests"))
    folder.mkdir(parents=True, exist_ok=True)
    found = draw_of_all(golden_names(), count, seed)
    rows = Rows(folder / "integers.jsonl")
    rows.begin_with({"kernel": "integers", "seed": seed, "digest": "", "mutants": len(found)})
    missing = [mutant for mutant in found if mutant.key not in rows.found]
    with HERE.processes(jobs, "tools", "tests") as pool:
        answers = outcomes("proved and judged", pool, ask_and_judge, [[mutant] for mutant in missing], timeout)
        for mutant, (future, why) in zip(missing, answers):
            kind = TIMEOUT if isinstance(future.exception(), TimeoutError) else BROKEN
            answer, judged = (Answer(kind, why), None) if why else future.result()
            rows.add(mutant, answer, mutant.shown(golden(mutant.kernel)[1]))
            of_judge = asdict(judged) if judged else {}
            rows.learn(mutant.key, kernel=mutant.kernel, **of_judge)
    for name in () if proof_only else dict.fromkeys(mutant.kernel for mutant in found):
        compile_accepted(name, golden(name)[1], [mutant for mutant in found if mutant.kernel == name], rows, jobs)
    show(rows)


@main.command("table")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def show_all(folder: Path) -> None:
    """Show what came out."""
    for file in sorted(folder.glob("*.jsonl")):
        show(Rows(file))


def show(rows: Rows) -> None:
    """Prints the table of one kernel, and the mutants that are left to judge."""
    console = Console(width=160, highlight=False)
    console.print(table(rows), markup=False)
    console.print(f"left to the numbers: {kinds_of_numbers(rows)}", markup=False)
    for line in to_judge(rows):
        console.print(line, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
