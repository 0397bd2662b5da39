"""Compiles the shipped schedules of mma_sync for all its cards, and records what ptxas made of them. Needs no GPU.

    python tools/measure.py cards --output results/cards.jsonl

The record has a line for each schedule, head size that it is meant for, dtype, mask and card, as in `tl-attention bench
--arch`. A kernel that is refused for a card has a line too, with the reason. A kernel takes 10 s of a core the first
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from tl_attention.errors import InputError
from tl_attention.kernels.registry import LOWERINGS
from tl_attention.lab.measure.bench import compile_alone
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.records import Row
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.measure.trials import SILENT
from tl_attention.problem.card import CARDS, Card
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.catalogue import all_names
from tl_attention.schedule.files.named import Named, resolve

LOWERING = "mma_sync"
# Sizes are read at run time, so any will do.
SEQ = 128


def candidates(schedules: Sequence[Named], card: Card) -> list[Candidate]:
    """Returns what is compiled of the schedules for a card."""
    return [
        Candidate(
            named.name,
            AttentionShape(1, 1, SEQ, SEQ, sizes_of(size)[0], dtype, mask, sizes_of(size)[1]),
            Planned(named.schedule),
            sms=card.sms,
            arch=card.arch,
        )
        for named in schedules
        for size in named.head_dims
        for dtype in DTYPES
        for mask in (FULL, CAUSAL)
    ]


@click.command()
@click.option("--only", default="*", metavar="GLOB", help="schedules of these names, such as 'mma_sync/*'")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="JSON lines")
def main(only: str, output: Path) -> None:
    """Compile what ships of mma_sync for every card."""
    named = [resolve(name) for name in all_names() if fnmatchcase(name, only)]
    schedules = [found for found in named if found.schedule.lowering == LOWERING]
    if not schedules:
        raise InputError(f"no schedule of lowering {LOWERING} ships with such a name, expected one or more")
    results = ResultsFile(output)

    def record(row: Row) -> None:
        results.append(row)
        click.echo(f"{row.name} {row.shape} {row.arch}: {row.status} {row.reason}".rstrip())

    for arch in LOWERINGS[LOWERING].archs:
        compile_alone(candidates(schedules, CARDS[arch]), arch, record, SILENT)
