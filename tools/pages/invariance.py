"""Makes the table of what invariant calls cost, from the record in which each stands beside a call that is not."""

from __future__ import annotations

from statistics import geometric_mean

from pages.cells import SHORT, length, measured_on, read, record, speeds
from tl_attention.measure.cell import NOT_INVARIANT
from tl_attention.measure.cell_records import CellRow
from tl_attention.problem.mask import kind_of
from tl_attention.show.table import markdown

HEADINGS = ("head_dim", "mask", "softcap", "dtype", "keys", "speed of an invariant call", "lowest")
MASKS = {"full": "", "causal": "causal", "window": "window", "causal_window": "causal window"}


def invariance() -> str:
    """Makes a line for each case: the geometric mean over its lengths of an invariant call's speed, and the lowest."""
    rows = read(record("invariance"))
    cases: dict[tuple[str, ...], list[CellRow]] = {}
    for row in rows:
        shape = row.shape
        cap = f"{shape.asked['softcap']:g}" if shape.asked["softcap"] else ""
        words = (str(shape.head_size), MASKS[kind_of(shape.mask)], cap, SHORT[shape.dtype])
        cases.setdefault(words, []).append(row)
    lines = []
    for case, of_case in cases.items():
        found = speeds(of_case, NOT_INVARIANT)
        lengths = ", ".join(length(row.shape.seq_kv) for row in of_case)
        lines.append([*case, lengths, f"{geometric_mean(found):.3f}", f"{min(found):.3f}"])
    later = [run for run in dict.fromkeys(row.run for row in rows) if run != rows[0].run]
    others = f" Other lines are of later runs: {', '.join(later)}." if later else ""
    return f"{measured_on(rows[0])}{others}\n\n{markdown(HEADINGS, lines)}"
