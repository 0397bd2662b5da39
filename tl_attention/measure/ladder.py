"""Runs a ladder: its steps, compiled, verified and timed beside each other, each compared with the step that it goes on from."""

from __future__ import annotations

from collections.abc import Callable

from tl_attention.files.ladder_file import Ladder
from tl_attention.hardware.card import Card
from tl_attention.measure import bench, compile_only
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.progress import Progress
from tl_attention.measure.records import Row

# Enough that an interval can be told for each step: see comparison.py.
ROUNDS = 9


def measure(
    ladder: Ladder,
    card: Card,
    record: Callable[[Row], object],
    progress: Progress,
    *,
    rounds: int = ROUNDS,
    seed: int | None = None,
) -> list[Row]:
    """A row for each tile, compiled alone; for each step that has a schedule, under the step's name; and for each peer that
    is there.

    Raises as `bench.measure` does.
    """
    candidates = [
        Candidate(step.name, ladder.shape, step.schedule.schedule, ladder.fixed, card.sms, arch=card.arch)
        for step in ladder.steps
        if step.schedule
    ]
    # Before a GPU is asked for anything: compiling leaves it alone.
    tiles = [
        Candidate(tile.schedule.name, ladder.shape, tile.schedule.schedule, ladder.fixed, card.sms, arch=card.arch)
        for tile in ladder.tiles
    ]
    compiled = _compiled(tiles, card, record, progress) if tiles else []
    against = {step.name: step.against for step in ladder.steps if step.against}
    options = bench.Options(rounds, tuple(ladder.peers), seed, None, ladder.product, against)
    return compiled + bench.measure(candidates, options, record, progress)


def _compiled(tiles: list[Candidate], card: Card, record: Callable[[Row], object], progress: Progress) -> list[Row]:
    progress.phase("compile tiles", len(tiles))
    rows: list[Row] = []
    for row in compile_only.compiled(tiles, card.arch):
        record(row)
        rows.append(row)
        progress.advance(row.name)
    return rows
