"""What a ladder's page has besides its steps: tiles, stalls, counted instructions, a choice, a grid, a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

import ladder_profile
from cells_page import read as read_cells
from pictures_of import panels
from pictures_of.panels import Key
from pictures_of.style import SHORT

from tl_attention.build.float_instructions import FloatInstructions, float_instructions
from tl_attention.files.ladder_file import Ladder
from tl_attention.measure.cell import OURS, SCHEDULE
from tl_attention.measure.cell_records import CellRow
from tl_attention.measure.records import Row
from tl_attention.problem.mask import CAUSAL
from tl_attention.show import configurations
from tl_attention.show import ladder as shown
from tl_attention.show.report import PEER_NAMES
from tl_attention.show.text_table import markdown

RESULTS = Path(__file__).parents[1] / "results"
GRID = RESULTS / panels.GRID
# What emulating every 10th exponential gained in the text, in percent: heads on heads of K and V, causal, dtype; 1k to 32k.
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


def extras(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """The sections, of all rows of a ladder's record."""
    if section := SECTIONS.get(ladder.name):
        yield from section(ladder, rows)


def waited_for(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Stalls."""
    yield from ladder_profile.stalls(ladder)


def profiled(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Bytes beside theory."""
    yield from ladder_profile.bytes_of_seed_and_best()


# --- from scratch ----------------------------------------------------------------------------------------------


def tiles(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """What whole tiles of fragments, and steps of them, take of the registers."""
    yield "## What tiles take"
    yield (
        "The text's reason for cutting tiles into steps is this table, of kernels 3 and 4 at five tiles; here compiled for "
        "the same card as above and not timed. What is refused is refused before it is compiled: accumulators, a Q that stays "
        "and one step of K are alive at the same time, and do not fit the registers that a thread can have. nvcc compiled "
        "such kernels for the text, and spilled."
    )
    yield markdown(shown.TILE_HEADINGS, shown.tile_lines(ladder, shown.tiles_by_name(rows, ladder)))
    yield from ladder_profile.stalls(ladder)


def counted_and_chosen(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """The softmax's instructions before and after, and the choice."""
    yield "## Floating-point instructions of the softmax"
    yield (
        "Of a thread, and so of a warp, for one KV block: by formula, and counted in the steady loop of the machine code. "
        "The text counts them by formula too and has 11.1 % fewer; what a share is of depends on what else is counted, such "
        "as the rescale of the output."
    )
    names = ("kernel 5", "kernel 6")
    steps = shown.by_name(rows, ladder)
    found = [_floats(ladder, steps, name) for name in names]
    kinds = list(found[0].formula)
    lines = [
        (f"{name}, {how}", *(str(counts[kind]) for kind in kinds), str(sum(counts.values())))
        for name, one in zip(names, found)
        for how, counts in (("by formula", one.formula), ("counted", one.counted))
    ]
    yield markdown(("kernel", *kinds, "all"), lines)
    before, after = (sum(one.counted.values()) for one in found)
    yield f"Counted, kernel 6 has {100 * (before - after) / before:.1f} % fewer."
    yield from ladder_profile.stalls(ladder)
    of_each, best = configurations.of_record(rows)
    if best:
        yield "## The choice"
        yield (
            "The text's space, all of it eager and swizzled: 64 or 128 rows, 32 or 64 keys, fragments of Q, K and V whole or "
            "in steps, a buffer for the next step or none, the softmax as in kernel 5 or 6; a buffer where nothing comes in steps is "
            "none, which leaves 120 of 128. A name in the text's notation is "
            "the name of a schedule here: `tl-attention run '(128, 64, 64, 4): "
            "async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax'`."
        )
        yield f"{configurations.counted(of_each)}. The best of each tile, timed beside each other, and the text's:"
        yield markdown(configurations.HEADINGS, configurations.best_of_tiles(best))


def _floats(ladder: Ladder, rows: Mapping[str, Row], name: str) -> FloatInstructions:
    named = ladder.step(name).schedule
    assert named is not None, "the step has a schedule"
    return float_instructions(named.schedule, ladder.shape.head_dim, rows[name].loops)


# --- FlashAttention-4 ------------------------------------------------------------------------------------------


def grid(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """The text's 48 problems: what its change does here, and where ours stands beside the peers."""
    cells = read_cells(GRID)
    row = cells[0]
    yield "## The text's grid"
    yield (
        f"Its 48 problems of 32768 tokens, head_dim 128, on one {row.device}, {row.run[:10]}, "
        f"[the record](../../results/{GRID.name}): {row.method}. What every 10th exponential by polynomial gains here, in "
        "percent of speed, and behind it in brackets what the text's change gained there."
    )
    lengths = sorted({cell.shape.seq_kv for cell in cells})
    groups: dict[Key, dict[int, CellRow]] = {}
    for cell in cells:
        groups.setdefault(panels.key_of(cell), {})[cell.shape.seq_kv] = cell
    headings = ("problem", *(f"{length // 1024}k" for length in lengths))
    yield markdown(headings, [_gains(key, of, lengths) for key, of in groups.items()])
    yield "![TFLOPS over length beside the peers](../pictures/lengths.svg)"
    yield "The speed of ours, all exponentials by the hardware, beside each peer: the geometric mean over lengths, and the lowest."
    yield markdown(("problem", *PEER_NAMES.values()), [_beside(key, of) for key, of in groups.items()])
    yield "![The same, cell by cell](../pictures/grid.svg)"
    yield "## Not here"
    yield (
        "The text also traced how long each role works and waits in an iteration (softmax 3091 ns, a product 1712 ns). That "
        "takes a timeline of the roles, which this project does not have yet."
    )


def _gains(key: Key, cells: Mapping[int, CellRow], lengths: Sequence[int]) -> tuple[str, ...]:
    found = []
    for length, text in zip(lengths, TEXT_GAINS[key.heads, key.heads_kv, key.mask == CAUSAL, SHORT[key.dtype]]):
        cell = cells[length]
        emulated = next(peer for peer in cell.peers if peer.startswith(SCHEDULE))
        speed = cell.speed(emulated, OURS)
        found.append(f"{100 * (speed.ratio - 1):+.1f} ({text:+.1f})" if speed else "")
    return panels.words(key), *found


def _beside(key: Key, cells: Mapping[int, CellRow]) -> tuple[str, ...]:
    found = []
    for peer in PEER_NAMES:
        ratios = [speed.ratio for cell in cells.values() if (speed := cell.speed(OURS, peer))]
        found.append(f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})" if ratios else "no fp16 in its wheel")
    return panels.words(key), *found


SECTIONS: dict[str, Callable[[Ladder, Sequence[Row]], Iterator[str]]] = {
    "rtx5090": waited_for,
    "rtx3090": tiles,
    "rtx3090_tuned": counted_and_chosen,
    "worklog": profiled,
    "fa4": grid,
}
