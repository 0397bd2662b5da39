"""Entries of a cell are timed in turn in this process, and cells are recorded as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from tl_attention.lab.measure.cell_records import AGAIN, CellRow, Timed
from tl_attention.lab.measure.cells import with_times
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.measure.timing import TimedBatch
from tl_attention.lab.measure.trials import Samples, in_turn
from tl_attention.lab.show.cells import summary


def timed(entries: Sequence[Timed], batches: Mapping[str, TimedBatch], rounds: int) -> dict[str, Timed]:
    """Samples the batches of these entries in turn, the first entry twice, and returns the entries by name."""
    named = {entry.name: (entry, batches[entry.name]) for entry in entries}
    for first, batch in list(named.values())[:1]:
        named[first.name + AGAIN] = replace(first, name=first.name + AGAIN), batch
    found = [(Samples(batch.calls), batch) for _, batch in named.values()]
    for samples, batch in in_turn(found, rounds):
        ms, clock = batch.sample()
        samples.add([ms], clock)
        time.sleep(batch.pause_s)
    return {name: with_times(entry, samples) for (name, (entry, _)), (samples, _) in zip(named.items(), found)}


def record(rows: Iterable[CellRow], output: Path) -> None:
    """Appends cells to a file as they are measured, and says what came of each."""
    results = ResultsFile(output)
    for row in rows:
        results.append(row)
        click.echo(summary(row))
