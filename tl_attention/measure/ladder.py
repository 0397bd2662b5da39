"""Runs a ladder: its steps, compiled, verified and timed beside each other, each compared with the step that it goes on from."""

from __future__ import annotations

from collections.abc import Callable

from tl_attention.configurations.space import space
from tl_attention.files.ladder_file import Ladder
from tl_attention.hardware.card import Card
from tl_attention.measure import bench, compile_only
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.choice import choose
from tl_attention.measure.compile_pool import CompilePool
from tl_attention.measure.progress import Progress
from tl_attention.measure.records import Row
from tl_attention.measure.session import Session
from tl_attention.program.planned import Planned

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
    is there. Where the ladder chooses, a row of each configuration, and a second one of the best of each tile.

    Raises as `bench.measure` does.
    """
    candidates = [
        Candidate(step.name, ladder.shape, Planned(step.schedule.schedule), ladder.fixed, card.sms, arch=card.arch)
        for step in ladder.steps
        if step.schedule
    ]
    # Before a GPU is asked for anything: compiling leaves it alone.
    tiles = [
        Candidate(
            tile.schedule.name, ladder.shape, Planned(tile.schedule.schedule), ladder.fixed, card.sms, arch=card.arch
        )
        for tile in ladder.tiles
    ]
    compiled = _compiled(tiles, card, record, progress) if tiles else []
    against = {step.name: step.against for step in ladder.steps if step.against}
    options = bench.Options(rounds, tuple(ladder.peers), seed, None, ladder.product, against)
    rows = compiled + bench.measure(candidates, options, record, progress)
    # What is chosen is the fastest: without times there is nothing to choose.
    is_timed = any(row.median_ms for row in rows)
    return rows + (_chosen(ladder, card, record, progress, seed) if ladder.choose and is_timed else [])


def _chosen(
    ladder: Ladder, card: Card, record: Callable[[Row], object], progress: Progress, seed: int | None
) -> list[Row]:
    """A row of each configuration of the text's space, and a second one of the best of each tile."""
    configurations = list(space())
    compilers = CompilePool(len(configurations))
    with Session(record, seed=seed, arch=card.arch, compilers=compilers) as session:
        choice = choose(configurations, ladder.shape, session, progress=progress)
    return [*choice.rows, *choice.best]


def _compiled(tiles: list[Candidate], card: Card, record: Callable[[Row], object], progress: Progress) -> list[Row]:
    progress.phase("compile tiles", len(tiles))
    rows: list[Row] = []
    for row in compile_only.compiled(tiles, card.arch):
        record(row)
        rows.append(row)
        progress.advance(row.name)
    return rows
