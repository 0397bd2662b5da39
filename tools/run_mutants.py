"""Runs mutants that the proof accepts on the GPU, each in a process of its own.

    python tools/run_mutants.py PACK RESULTS [--jobs 16] [--timeout 40]      a pack of `mutate_code.py pack`
    python tools/run_mutants.py PACK RESULTS --show                          the table of results that are there

A line of JSON is written for each mutant as it ends, and a run goes on where the last one ended. The kernels as they
are generated run as well: if one of them is not right, no other result can be believed, and the exit code is 1.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from checkouts import Progress
from code_mutants.on_gpu import FAULT, HUNG, OUTCOMES, RIGHT, TIMEOUT, Result, run
from code_mutants.packs import CONTROL, HARMLESS, unpacked
from code_mutants.rows import SAME, Row
from pebble import ProcessExpired, ProcessFuture, ProcessPool
from rich.console import Console
from rich.table import Table

# Lowering and proving, with a process on every core.
START_S = 120.0
# Imported once: each process is forked from one that has them, and has not touched the GPU.
IMPORTED = ("code_mutants.on_gpu", "tilelang", "tl_attention.oracle.reference", "tl_attention.proof.code.proof")
NO_GPU_YET = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
UNTOLD = ("source", "cubin")


def run_all(rows: Sequence[Row], file: Path, jobs: int, timeout_s: float) -> None:
    """Runs each mutant that has machine code of its own, and writes what became of every mutant."""
    progress = Progress("mutants run", len(rows))
    os.environ.update(NO_GPU_YET)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    pool = ProcessPool(jobs, max_tasks=1, context=context)
    with pool, file.open("a") as results:
        futures = [_scheduled(pool, row, timeout_s) for row in rows]
        for row, future in zip(rows, futures):
            result = _result(future) if future else Result(SAME)
            told = {field: value for field, value in row.items() if field not in UNTOLD}
            results.write(f"{json.dumps({**told, 'outcome': result.outcome, 'words': result.words})}\n")
            results.flush()
            progress.advance()


def _scheduled(pool: ProcessPool, row: Row, timeout_s: float) -> ProcessFuture | None:
    if row["machine"] == SAME and row["key"] != CONTROL:
        return None
    arguments = [row["kernel"], row["source"], base64.b64decode(row["cubin"]), timeout_s]
    return pool.schedule(run, arguments, timeout=START_S + timeout_s)


def _result(future: ProcessFuture) -> Result:
    try:
        result = future.result()
        assert isinstance(result, Result)
        return result
    except TimeoutError:
        return Result(TIMEOUT, "neither loaded nor run in time")
    except ProcessExpired as died:
        hung = died.exitcode == HUNG
        return Result(TIMEOUT, "the kernel did not come back") if hung else Result(FAULT, f"exit code {died.exitcode}")


def show(results: Sequence[Row]) -> None:
    """Prints a table of kinds by outcomes, and each unexpected mutant.

    A mutant of the numbers is unexpected if its result is right. A harmless mutant, or a kernel as it is generated, is
    unexpected if its result is not right.
    """
    counts = Counter((row["kind"], row["outcome"]) for row in results)
    table = Table("kind", *OUTCOMES, "all", title=f"{len(results)} run")
    for kind in sorted({row["kind"] for row in results}):
        line = [counts[kind, outcome] for outcome in OUTCOMES]
        table.add_row(kind, *(str(count) if count else "" for count in line), str(sum(line)))
    console = Console(width=160, highlight=False)
    console.print(table)
    for row in results:
        if row["outcome"] != SAME and (row["outcome"] == RIGHT) != (row["kind"] in HARMLESS):
            change = f"{row['operation']}, line {row['line']}: {row['shown']}" if row["key"] != CONTROL else CONTROL
            told = f"{row['kernel']}, {row['kind']}, {row['outcome']}: {change}"
            console.print(told, markup=False, soft_wrap=True)


@click.command()
@click.argument("pack", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("results", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--jobs", type=click.IntRange(1), default=16, show_default=True, help="processes at a time")
@click.option("--timeout", type=float, default=40.0, show_default=True, help="of a loaded kernel, in seconds")
@click.option("--show", "only_show", is_flag=True, help="run nothing")
def main(pack: Path, results: Path, jobs: int, timeout: float, only_show: bool) -> None:
    """Run the mutants of a pack."""
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    if not only_show:
        ended = {(row["kernel"], row["key"]) for row in done}
        missing = [row for row in unpacked(pack) if (row["kernel"], row["key"]) not in ended]
        run_all(missing, results, jobs, timeout)
        done = [json.loads(line) for line in results.read_text().splitlines()]
    show(done)
    if any(row["key"] == CONTROL and row["outcome"] != RIGHT for row in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
