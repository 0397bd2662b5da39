"""A ladder's page has sections besides its steps: tiles, stalls, counted instructions, a choice, a grid, a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean

from pictures import panels
from pictures.panels import Key

from pages import ladder_profile, where_time_goes
from pages.cells import SHORT, record, speeds
from pages.cells import read as read_cells
from pages.float_instructions import by_formula, counted
from pages.made import laid_out
from tl_attention.lab.files.ladder_file import Ladder
from tl_attention.lab.measure.cell import OURS, SCHEDULE
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import Row, grouped
from tl_attention.lab.show import ladder as shown
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown
from tl_attention.problem.mask import CAUSAL

GRID = record("grid")
# What emulating every 10th exponential gained in the text, in percent: heads on KV heads, causal, dtype; 1k to 32k.
TEXT_GAINS: dict[tuple[int, int, bool, str], tuple[float, ...]] = {
    (16, 16, False, "bf16"): (0.8, 1.1, 0.2, 2.9, 2.5, 2.3),
    (16, 16, False, "fp16"): (0.8, 1.1, 2.2, 2.0, 2.5, 3.1),
    (16, 16, True, "bf16"): (-0.1, 0.2, 0.5, 2.1, 0.3, 1.7),
    (16, 16, True, "fp16"): (0.2, 0.3, 0.4, 0.8, 0.6, 1.3),
    (40, 8, False, "bf16"): (1.0, 2.4, 2.4, 2.8, 2.9, 2.7),
    (40, 8, False, "fp16"): (0.8, 1.2, 2.6, 1.9, 2.9, 2.2),
    (40, 8, True, "bf16"): (0.4, 0.9, 1.3, -2.0, 0.9, 1.1),
    (40, 8, True, "fp16"): (0.3, 0.0, 1.1, 0.2, 0.2, 2.1),
}


def more(ladder: Ladder, rows: Sequence[Row]) -> str:
    """Makes the sections of a ladder's page besides its steps, from all rows of its record."""
    return laid_out(f"ladder-{ladder.name}", **PARTS[ladder.name](ladder, rows))


def waited_for(ladder: Ladder, rows: Sequence[Row]) -> dict[str, object]:
    """Returns the section of stalls."""
    return {"stalls": ladder_profile.stalls(ladder)}


# --- from scratch ----------------------------------------------------------------------------------------------


def tiles(ladder: Ladder, rows: Sequence[Row]) -> dict[str, object]:
    """Returns the table of how many registers whole tiles of fragments take, and parts of them."""
    table = shown.tile_table(ladder, shown.tiles_by_name(rows, ladder))
    return {"tiles": table.markdown(), **waited_for(ladder, rows)}


def counted_and_chosen(ladder: Ladder, rows: Sequence[Row]) -> dict[str, object]:
    """Returns the softmax's instructions before and after kernel 6, and the choice of a kernel."""
    names = ("kernel 5", "kernel 6")
    steps = shown.by_name(rows, ladder)
    found = [_floats(ladder, steps, name) for name in names]
    kinds = list(found[0][0])
    lines = [
        (f"{name}, {how}", *(str(counts[kind]) for kind in kinds), str(sum(counts.values())))
        for name, both in zip(names, found)
        for how, counts in zip(("by formula", "counted"), both)
    ]
    before, after = (sum(in_code.values()) for _, in_code in found)
    of_each, best = shown.shown_record(rows)
    return {
        "instructions": markdown(("kernel", *kinds, "all"), lines),
        "fewer": 100 * (before - after) / before,
        "count": shown.counted(of_each),
        "best": shown.best_of_tiles(best).markdown(),
        **waited_for(ladder, rows),
    }


def _floats(ladder: Ladder, rows: Mapping[str, Row], name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Returns a step's instructions by formula, and as counted in its machine code."""
    named, head_dim = ladder.step(name).schedule, ladder.shape.head_dim
    assert named is not None, "the step has a schedule"
    return by_formula(named.schedule, head_dim), counted(named.schedule, head_dim, rows[name].loops)


# --- FlashAttention-4 ------------------------------------------------------------------------------------------


def grid_and_time(ladder: Ladder, rows: Sequence[Row]) -> dict[str, object]:
    """Returns where each step's time goes, and the text's 48 problems: its change here, and ours beside the peers."""
    cells = read_cells(GRID)
    lengths = sorted({cell.shape.seq_kv for cell in cells})
    groups = grouped(cells, panels.key_of)
    headings = ("problem", *(f"{length // 1024}k" for length in lengths))
    traced = {step.name: step.schedule.name.rpartition("/")[2] for step in ladder.steps if step.schedule}
    return {
        "row": cells[0],
        "gains": markdown(headings, [_gains(key, of) for key, of in groups.items()]),
        "beside": markdown(("problem", *PEER_NAMES.values()), [_beside(key, of) for key, of in groups.items()]),
        "steps": where_time_goes.steps({step: f"fa4-{name}" for step, name in traced.items()}),
    }


def _gains(key: Key, cells: Sequence[CellRow]) -> tuple[str, ...]:
    found = []
    of_text = TEXT_GAINS[key.heads, key.heads_kv, key.mask == CAUSAL, SHORT[key.dtype]]
    for cell, text in zip(sorted(cells, key=lambda cell: cell.shape.seq_kv), of_text, strict=True):
        emulated = next(peer for peer in cell.peers if peer.startswith(SCHEDULE))
        speed = cell.speed(emulated, OURS)
        found.append(f"{100 * (speed.ratio - 1):+.1f} ({text:+.1f})" if speed else "")
    return panels.words(key), *found


def _beside(key: Key, cells: Sequence[CellRow]) -> tuple[str, ...]:
    found = []
    for peer in PEER_NAMES:
        ratios = speeds(cells, peer)
        found.append(f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})" if ratios else "no fp16 in its wheel")
    return panels.words(key), *found


PARTS: dict[str, Callable[[Ladder, Sequence[Row]], dict[str, object]]] = {
    "rtx5090": waited_for,
    "rtx3090": tiles,
    "rtx3090_tuned": counted_and_chosen,
    "worklog": lambda ladder, rows: ladder_profile.profile_parts(),
    "fa4": grid_and_time,
}
