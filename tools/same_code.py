"""Compares the kernels of two checkouts of this repository, each in processes of its own.

    python tools/same_code.py BEFORE AFTER [--jobs 2] [--only TEXT] [--kernel-only]

A case is a schedule, a dtype, a head size and a mask. Every schedules/*.yaml comes with all dtypes, head sizes and
masks; experiments come in bf16, at the head size that they are for (mostly 128), and in their own mask. The package
checks each case, lowers it to CUDA text and proves the text, without nvcc.

Text is compared with the names of the kernel, its parameters and its variables normalised: equal text is equal machine
code. Only text that differs is compiled, and its SASS and resource usage are compared. A refusal is an outcome too, and
so is its message. The host's plan, which has the launch and the TMA descriptors, must be the same as well;
--kernel-only leaves the host's plan out.

The exit code is 1 if any case differs or breaks.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path

import click
from checkouts import Checkout, options, outcomes
from lower_case import DTYPES, Case, Outcome, lower_case
from machine_code import NotCompiled, machine_code, normalised, same_but_for_variables

EQUAL_TEXT, EQUAL_CODE, SAME_REFUSAL, DIFFERENT = "equal text", "equal machine code", "same refusal", "DIFFERENT"
BROKEN = "BROKEN"
COMPARED = (EQUAL_TEXT, EQUAL_CODE, SAME_REFUSAL, DIFFERENT, BROKEN)
SHOWN = 200
FOLDER = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
# Experiments of this folder are for this head size; the other folders' schedules are for OTHERS.
OF_64, OTHERS = "experiments/p_shared/", 128


def all_cases(*checkouts: Checkout) -> list[Case]:
    """Returns the cases of every schedule file that any of the checkouts has."""
    folders = [checkout.folder / "schedules" for checkout in checkouts]
    found: list[Case] = []
    for file in sorted({str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*.yaml")}):
        if "/" in file:
            found.append(Case(file, "bfloat16", 64 if file.startswith(OF_64) else OTHERS, "/causal/" in file))
        else:
            found += [Case(file, dtype, h, causal) for causal in (False, True) for dtype in DTYPES for h in (64, 128)]
    return found


def lower_all(checkout: Checkout, cases: list[Case], jobs: int, timeout_s: float) -> list[Outcome]:
    """Lowers each case and returns the outcomes in order."""
    found = []
    given = [[checkout.folder, case] for case in cases]
    with checkout.processes(jobs) as pool:
        for future, why in outcomes(f"lowered of {checkout.folder}", pool, lower_case, given, timeout_s):
            outcome = Outcome("broken", why) if why else future.result()
            found.append(replace(outcome, text=outcome.text.replace(str(checkout.folder), "CHECKOUT")))
    return found


def compared(before: Outcome, after: Outcome, kernel_only: bool) -> tuple[str, str]:
    """Returns the verdict on two outcomes, and what differs first.

    Two outcomes that broke in the same way are BROKEN: nothing was compared.
    """
    if "broken" in (before.kind, after.kind):
        return BROKEN, "\n".join(f"{side.kind}: {_told(side).splitlines()[-1]}" for side in (before, after))
    if before.kind != after.kind or before.kind == "refused":
        why = f"- {before.kind}: {_told(before)}\n+ {after.kind}: {_told(after)}"
        return (SAME_REFUSAL, "") if before == after else (DIFFERENT, why)
    if not kernel_only and before.host != after.host:
        return DIFFERENT, f"the host's plan, {first_difference(before.host, after.host)}"
    texts = normalised(before.text), normalised(after.text)
    if texts[0] == texts[1] or same_but_for_variables(*texts):
        return EQUAL_TEXT, ""
    try:
        codes = [machine_code(text) for text in texts]
    except NotCompiled as error:
        return DIFFERENT, f"{error}; the text, {first_difference(*texts)}"
    if codes[0] == codes[1]:
        return EQUAL_CODE, f"the text, {first_difference(*texts)}"
    return DIFFERENT, f"the machine code, {first_difference(*codes)}"


def _told(outcome: Outcome) -> str:
    return name(outcome) if outcome.kind == "code" else outcome.text.strip()


def name(outcome: Outcome) -> str:
    """Returns the fingerprint of generated code, which is the package's fingerprint too."""
    return sha256(outcome.text.encode()).hexdigest()[:12]


def first_difference(before: str, after: str) -> str:
    """Returns the first two lines that differ, and the line's number."""
    pairs = enumerate(zip_longest(before.splitlines(), after.splitlines(), fillvalue="(the end)"), 1)
    number, (a, b) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    return f"line {number}:\n- {a.strip()[:SHOWN]}\n+ {b.strip()[:SHOWN]}"


def show(verdicts: dict[Case, tuple[str, str]]) -> None:
    """Prints every case that has a reason, then how many cases there are of each kind."""
    for case, (verdict, why) in verdicts.items():
        if why:
            click.echo("\n    ".join([f"{verdict}: {case}", *why.splitlines()]))
    counts = Counter(verdict for verdict, _ in verdicts.values())
    click.echo(f"{len(verdicts)} cases: {', '.join(f'{counts[kind]} {kind}' for kind in COMPARED)}")


@click.command()
@click.argument("folders", metavar="BEFORE AFTER", nargs=2, type=FOLDER)
@options(timeout=300.0)
@click.option("--only", default="", help="cases whose name contains this, such as 'best bf16 128'")
@click.option("--kernel-only", is_flag=True, help="leave the host's plan out")
def main(folders: tuple[Path, Path], jobs: int, timeout: float, only: str, kernel_only: bool) -> None:
    """Compare the kernels of two checkouts."""
    checkouts = [*map(Checkout, folders)]
    cases = [case for case in all_cases(*checkouts) if only in str(case)]
    if not cases:
        raise click.UsageError(f"neither checkout has a schedule whose case has {only!r} in its name")
    sides = [lower_all(side, cases, jobs, timeout) for side in checkouts]
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = dict(zip(cases, pool.map(compared, *sides, [kernel_only] * len(cases)), strict=True))
    show(verdicts)
    if {DIFFERENT, BROKEN} & {verdict for verdict, _ in verdicts.values()}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
