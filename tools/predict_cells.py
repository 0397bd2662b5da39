"""Predicts the times of all schedules of a record's cells, without a GPU.

    python tools/predict_cells.py results/model-h200.jsonl --machine h200 --output results/predictions/h200.json

The record is of `tl-attention compare results/model.yaml`. A kernel is compiled where the store does not have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
from pages.model import schedules_of

from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.device import card_of_arch
from tl_attention.lab.measure.records import read_all
from tl_attention.lab.model.machine import load
from tl_attention.lab.model.prediction import predict
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve


def jobs(record: Path) -> Iterator[tuple[str, str, CellRow]]:
    """Yields (cell, schedule, the cell's row) for each schedule that a record timed."""
    for row in read_all(CellRow, record):
        for schedule, _ in schedules_of(row):
            yield row.cell, schedule, row


def predicted(machine: str, cell: str, schedule: str, row: CellRow) -> dict[str, object]:
    """Returns the line of one prediction, with a reason instead of a time where there is none."""
    numbers = load(machine)
    card = card_of_arch(numbers.arch)
    planned = Planned(resolve(schedule).schedule)
    candidate = Candidate(schedule, row.shape, planned, sms=numbers.sms, arch=card.arch)
    line: dict[str, object] = {"cell": cell, "schedule": schedule}
    try:
        found = predict(candidate, numbers)
    except InputError as error:
        return {**line, "reason": str(error)}
    times = {"ms": round(found.ms, 6), "cycles": round(found.cycles), "clock_mhz": round(found.clock_mhz, 1)}
    loop = {
        "iteration": round(found.iteration, 1),
        "tile": round(found.tile, 1),
        "instructions": found.instructions,
        "keys": planned.schedule.block_N,
    }
    return {**line, **times, **loop, "limit": found.limit[0], "busy": round(found.limit[1], 4)}


@click.command()
@click.argument("record", type=click.Path(path_type=Path, exists=True))
@click.option("--machine", default="h200", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(record: Path, machine: str, output: Path) -> None:
    """Predict all schedules of a RECORD."""
    asked = sorted(jobs(record), key=lambda job: (job[1], job[2].shape.head_dim, str(job[2].shape.mask)))
    with ProcessPoolExecutor() as pool:
        found = pool.map(predicted, [machine] * len(asked), *zip(*asked), chunksize=2)
        lines = {(job[0], job[1]): line for job, line in zip(asked, found)}
    texts = (json.dumps(lines[cell, schedule]) for cell, schedule, _ in jobs(record))
    output.write_text("[\n" + ",\n".join(texts) + "\n]\n")
    click.echo(f"{len(lines)} predictions in {output}")


if __name__ == "__main__":
    main()
