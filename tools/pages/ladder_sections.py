"""A ladder's page has sections besides its steps: tiles, stalls, counted instructions, a choice, a grid, a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import geometric_mean

from pictures import panels
from pictures.panels import Key

from pages import ladder_profile, where_time_goes
from pages.cells import SHORT, record, speeds
from pages.cells import read as read_cells
from pages.float_instructions import by_formula, counted
from tl_attention.lab.files.ladder_file import Ladder
from tl_attention.lab.measure.cell import OURS, SCHEDULE
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import Row
from tl_attention.lab.show import ladder as shown
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown
from tl_attention.problem.mask import CAUSAL

GRID = record("grid")
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
    """Yields the sections of a ladder's page, from all rows of its record."""
    if section := SECTIONS.get(ladder.name):
        yield from section(ladder, rows)


def waited_for(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Makes the section of stalls."""
    yield from ladder_profile.stalls(ladder)


def profiled(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Makes the section of bytes beside theory."""
    yield from ladder_profile.bytes_of_seed_and_best()


# --- from scratch ----------------------------------------------------------------------------------------------


def tiles(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Says how many registers whole tiles of fragments take, and parts of them."""
    yield "## What tiles take"
    yield (
        "This table shows why the text cuts tiles of fragments into parts: it has kernels 3 and 4 at five tile sizes. Here they "
        "were compiled for the card above, but not timed. Some are refused before they are compiled: accumulators, a Q that stays "
        "in registers and one part of K are alive at the same time and do not fit the registers of a thread. In the text nvcc "
        "compiled such kernels, and they spilled."
    )
    yield shown.tile_table(ladder, shown.tiles_by_name(rows, ladder)).markdown()
    yield from ladder_profile.stalls(ladder)


def counted_and_chosen(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Compares the softmax's instructions before and after kernel 6, and shows the choice of a kernel."""
    yield "## Floating-point instructions of the softmax"
    yield (
        "The table counts the instructions of a warp for one KV block, once by formula and once in the steady loop of the "
        "machine code. The text also counts by formula: there kernel 6 has 11.1 % fewer than kernel 5. The percentage depends on "
        "what else is counted, such as the rescale of the output."
    )
    names = ("kernel 5", "kernel 6")
    steps = shown.by_name(rows, ladder)
    found = [_floats(ladder, steps, name) for name in names]
    kinds = list(found[0][0])
    lines = [
        (f"{name}, {how}", *(str(counts[kind]) for kind in kinds), str(sum(counts.values())))
        for name, both in zip(names, found)
        for how, counts in zip(("by formula", "counted"), both)
    ]
    yield markdown(("kernel", *kinds, "all"), lines)
    before, after = (sum(in_code.values()) for _, in_code in found)
    yield f"In the machine code kernel 6 has {100 * (before - after) / before:.1f} % fewer than kernel 5."
    yield from ladder_profile.stalls(ladder)
    of_each, best = shown.of_record(rows)
    if best:
        yield "## The choice"
        yield (
            "The text searches a space of 128 kernels, and all of them are eager and swizzled. A kernel has 128 rows or 64, and 64 "
            "keys or 32. It loads the fragments of Q, K and V whole or in parts. It has a buffer for the next part or none, and "
            "the softmax of kernel 5 or of kernel 6. A buffer changes nothing where no tensor comes in parts, which leaves 120 "
            "kernels. The text's notation also names a schedule here: `tl-attention run '(128, 64, 64, 4): "
            "async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax'`."
        )
        yield (
            f"{shown.counted(of_each)}. The table has our fastest kernel of each tile size, all timed beside "
            "each other, and below it the text's fastest with the text's figures:"
        )
        yield shown.best_of_tiles(best).markdown()


def _floats(ladder: Ladder, rows: Mapping[str, Row], name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Returns a step's instructions by formula, and as counted in its machine code."""
    named, head_dim = ladder.step(name).schedule, ladder.shape.head_dim
    assert named is not None, "the step has a schedule"
    return by_formula(named.schedule, head_dim), counted(named.schedule, head_dim, rows[name].loops)


# --- FlashAttention-4 ------------------------------------------------------------------------------------------


def grid(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Shows for the text's 48 problems what the text's change does here, and where ours stands beside the peers."""
    cells = read_cells(GRID)
    row = cells[0]
    yield "## The text's grid"
    yield (
        f"The text has 48 problems of 32768 tokens with head_dim 128. We measured all of them on one {row.device} on "
        f"{row.run[:10]} ([the record](../../results/{GRID.name})). Method: {row.method}. The first number of a cell says how many "
        "percent faster our kernel gets when every 10th exponential takes the polynomial. The number in brackets is the gain in "
        "the text."
    )
    lengths = sorted({cell.shape.seq_kv for cell in cells})
    groups: dict[Key, dict[int, CellRow]] = {}
    for cell in cells:
        groups.setdefault(panels.key_of(cell), {})[cell.shape.seq_kv] = cell
    headings = ("problem", *(f"{length // 1024}k" for length in lengths))
    yield markdown(headings, [_gains(key, of, lengths) for key, of in groups.items()])
    yield "![TFLOPS over length beside the peers](../pictures/lengths.svg)"
    yield (
        "In the next table the hardware computes all exponentials. A number is the speed of tl-attention divided by the speed of "
        "the peer: the geometric mean over the lengths and, in brackets, the lowest."
    )
    yield markdown(("problem", *PEER_NAMES.values()), [_beside(key, of) for key, of in groups.items()])
    yield f"![The speed beside each peer, cell by cell](../pictures/{GRID.stem}.svg)"
    yield "## Not here"
    yield (
        "The text also traces how long each role works and waits in an iteration: the softmax takes 3091 ns, and a product 1712 "
        "ns. This project cannot record such a trace yet."
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
        ratios = speeds(cells.values(), peer)
        found.append(f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})" if ratios else "no fp16 in its wheel")
    return panels.words(key), *found


def grid_and_time(ladder: Ladder, rows: Sequence[Row]) -> Iterator[str]:
    """Makes the sections of where the time of each step goes, and of the text's grid."""
    yield "## Where the time of each step goes"
    yield (
        "`tl-attention trace` noted what each role did, on the same problem ([how](../timelines.md)). The cycles are those of a "
        "role for a KV block, the mean of all roles that multiply: a consumer has 64 rows and 176 keys, a warp of `mma_sync` 32 "
        "rows and 64 keys. *Row maximum* is the part of the softmax that has it, *other vector* the rest. Marks take time, so "
        "that the tensor pipe is less busy than without them."
    )
    traced = {step.name: step.schedule.name.rpartition("/")[2] for step in ladder.steps if step.schedule}
    yield where_time_goes.steps({step: f"fa4-{name}" for step, name in traced.items()})
    yield (
        "With a polynomial the vector parts take 75 to 160 cycles more than with hardware alone, and the issues give little of it "
        "back. So the tensor pipe waits for the softmax: a consumer comes later to its turn."
    )
    yield from grid(ladder, rows)


SECTIONS: dict[str, Callable[[Ladder, Sequence[Row]], Iterator[str]]] = {
    "rtx5090": waited_for,
    "rtx3090": tiles,
    "rtx3090_tuned": counted_and_chosen,
    "worklog": profiled,
    "fa4": grid_and_time,
}
