"""Predictions as a table: the fastest first, with what limits each."""

from __future__ import annotations

from collections.abc import Sequence

from tl_attention.lab.model.prediction import Prediction
from tl_attention.lab.show.table import Column, Table, number

# The model's names of pipes, in the words of tables.
WORDS = {
    "mufu": "special function unit",
    "alu": "ALU pipe",
    "fma": "FMA pipe",
    "imad": "IMAD",
    "uniform": "uniform datapath",
    "shuffle": "shuffles",
    "shared": "loads and stores",
    "mma_sync": "tensor core, by mma.sync",
}

COLUMNS = (
    Column("schedule", lambda p: p.name, 0),
    Column("predicted ms", lambda p: number(p.ms, 3), 1),
    Column("TFLOP/s", lambda p: number(p.shape.flops / p.ms / 1e9), 2),
    Column("limited by", lambda p: WORDS.get(p.limit[0], p.limit[0]), 3),
    Column("of the time", lambda p: f"{p.limit[1]:.0%}", 4),
    Column("cycles of a KV block", lambda p: number(p.iteration), 5),
    Column("and of a tile's ends", lambda p: number(p.tile - p.blocks * p.iteration), 6),
    Column("most of its waits", lambda p: _longest_wait(p), 7),
    Column("clock, MHz", lambda p: number(p.clock_mhz), 8),
)


def table(predictions: Sequence[Prediction]) -> Table:
    """Returns a table of one problem's predictions, by time."""
    first = predictions[0]
    rows = sorted(predictions, key=lambda prediction: prediction.ms)
    return Table.of(f"predicted for {first.shape} on {first.machine}", COLUMNS, rows)


def _longest_wait(prediction: Prediction) -> str:
    if not prediction.waits:
        return ""
    what, cycles = max(prediction.waits.items(), key=lambda item: item[1])
    return f"{what}: {cycles / prediction.tile:.0%}"


def resources(prediction: Prediction) -> Table:
    """Returns a table of the resources of an SM, those that are taken most of the time first."""
    busy = sorted(prediction.busy.items(), key=lambda item: -item[1])
    rows = [(WORDS.get(what, what), f"{part:.0%}") for what, part in busy]
    return Table.plain("how much of the time each resource of an SM is taken", ("resource", "of the time"), rows)


def waits(prediction: Prediction) -> Table:
    """Returns a table of what a consumer waits for, the longest wait first."""
    found = sorted(prediction.waits.items(), key=lambda item: -item[1])
    rows = [(what, number(cycles / prediction.blocks), f"{cycles / prediction.tile:.1%}") for what, cycles in found]
    headings = ("what for", "cycles of a KV block", "of the time")
    return Table.plain(f"what a consumer waits for, in a tile of {prediction.blocks} KV blocks", headings, rows)
