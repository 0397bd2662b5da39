"""Makes the table of what invariant calls cost, from the record in which each stands beside a call that is not."""

from __future__ import annotations

from statistics import geometric_mean

from pages.cells import SHORT, length, read, record, speeds
from tl_attention.lab.measure.cell import NOT_INVARIANT
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import grouped
from tl_attention.lab.show.table import markdown
from tl_attention.problem.mask import kind_of

HEADINGS = ("head_dim", "mask", "feature", "dtype", "keys", "speed of an invariant call", "lowest")


def invariance() -> str:
    """Makes a line for each case: the geometric mean over its lengths of an invariant call's speed, and the lowest."""
    rows = read(record("invariance"))

    def case(row: CellRow) -> tuple[str, ...]:
        shape = row.shape
        return str(shape.head_size), kind_of(shape.mask), str(shape.asked), SHORT[shape.dtype]

    lines = []
    for words, of_case in grouped(rows, case).items():
        found = speeds(of_case, NOT_INVARIANT)
        lengths = ", ".join(length(row.shape.seq_kv) for row in of_case)
        lines.append([*words, lengths, f"{geometric_mean(found):.3f}", f"{min(found):.3f}"])
    return markdown(HEADINGS, lines)
