"""A schedule names the loop that it orders, and the loop's statements: all loops stand here, with the names they have.

To add a loop: its Table and a line here, then a lowering's dialect for it.
"""

from __future__ import annotations

from tl_attention.schedule.loop.attention import FRAGMENTS, INNER, SOURCE
from tl_attention.schedule.loop.gradients import DKDV, DQ
from tl_attention.schedule.loop.table import Table

FORWARD = "forward"
LOOPS: dict[str, Table] = {FORWARD: SOURCE, "dq": DQ, "dkdv": DKDV}

# What schedules name, by number: the statements of the forward, those that only some of its lowerings have, and those
# that only other loops have. A name has one number in all loops.
NAMES: tuple[str, ...] = tuple(
    dict.fromkeys((*SOURCE.names, *FRAGMENTS, *(name for table in LOOPS.values() for name in table.names)))
)
NUMBER: dict[str, int] = {name: number for number, name in enumerate(NAMES)}
# What may be waited for, and released.
LOADS: tuple[str, ...] = tuple(dict.fromkeys(load for table in LOOPS.values() for load in table.loads))
PRODUCTS: tuple[str, ...] = tuple(dict.fromkeys(name for table in LOOPS.values() for name in table.products))
# By each statement that `split` cuts, the size that the columns of its chunks add up to.
CUT_SIZES: dict[str, str | int] = {
    **{name: SOURCE.cut_size(name) for name in SOURCE.splittable},
    **INNER,
    **{name: table.cut_size(name) for table in LOOPS.values() for name in table.splittable},
}
# What may be in chunks: what is split, and what is cut with it.
IN_CHUNKS: tuple[str, ...] = (*CUT_SIZES, *FRAGMENTS)


def stages_option(load: str) -> str:
    """Returns the name of the option in `kernel` that says how many buffers a load fills, such as k_stages."""
    return f"{load.removeprefix('load_')}_stages"


def cut_like(statement: str) -> str:
    """Returns the statement whose chunks a statement has: a fragment is loaded in those of its product."""
    return FRAGMENTS.get(statement, statement)
