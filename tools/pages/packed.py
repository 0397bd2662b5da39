"""Makes the tables of packed sequences' speed in docs/pytorch-measurements.md from their record."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from pages.cells import read, record, span, speeds, spread
from tl_attention.lab.measure.cell import DENSE, OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import grouped
from tl_attention.lab.show.table import markdown
from tl_attention.problem.mask import CAUSAL

# What the names of lengths in results/packed.yaml mean, in the tables' order.
LENGTHS = {
    "eq1k": "equal, 1k",
    "eq4k": "equal, 4k",
    "eq16k": "equal, 16k",
    "drawn": "drawn from 1 to 4k",
    "mixed": "one of 16k among 64 of 256",
    "n512x64": "512 of 64",
    "n8192x4": "8192 of 4",
}
HEADS = {"h16": "16 heads of 128", "h32_8": "32 on 8 heads of 128", "d64": "32 heads of 64"}
MLA = {"mla16": "16 heads", "mla128": "128 heads"}


def packed() -> str:
    """Makes the tables: each kind of lengths beside FlashAttention-3, full and causal, then latent attention."""
    rows = read(record("packed"))
    lines = [[words, *(_both(rows, of, name) for of in HEADS)] for name, words in LENGTHS.items()]
    dense = [row for row in rows if DENSE in row.peers]
    of_group = {group: speeds(of, "fa3") for group, of in grouped(rows, attrgetter("group")).items()}
    latent = [
        f"{words}, causal {span(of_group[of])}, unmasked {span(of_group[f'{of}_context'])}" for of, words in MLA.items()
    ]
    equal = speeds(dense, DENSE)
    return (
        f"{markdown(['sequences', *HEADS.values()], lines)}\n\n"
        f"With head_dim 192/128 and the LSE, as in a prefill of multi-head latent attention (MLA), speeds are: "
        f"{'; '.join(latent)}. Equal lengths have {spread(equal)} of the speed of `attention()` on the same batch."
    )


def _both(rows: Sequence[CellRow], of: str, name: str) -> str:
    """Gives our speed beside FlashAttention-3 in a group's cells of these lengths, `full; causal`."""
    mine = [row for row in rows if row.group.removesuffix("_ragged").removesuffix("_short") == of]
    found = {}
    for row in mine:
        if f"-{name}" in row.cell and (speed := row.speed(OURS, "fa3")):
            found[row.shape.mask == CAUSAL] = f"{speed.ratio:.3f}"
    return f"{found[False]}; {found[True]}"
