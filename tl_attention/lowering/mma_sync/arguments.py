"""Schedule -> the arguments of the mma.sync kernel. No tilelang here."""

from __future__ import annotations

from typing import Any, NamedTuple

from tl_attention.loop.attention import FRAGMENTS
from tl_attention.loop.table import chunk_names
from tl_attention.lowering.loop import emitted_arguments
from tl_attention.lowering.mma_sync.rules import ROWS_OF_A_PRODUCT, rows_at_once
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

# Of an mma.sync: the columns that one multiplies.
DEPTH = ROWS_OF_A_PRODUCT
BUFFERS = {"frag_q": "Q_local", "frag_k": "K_local", "frag_v": "V_local"}


class Chunk(NamedTuple):
    """What a statement multiplies, or loads to be multiplied, in steps of 16 columns: from `first`, `steps` of them.

    `q`, `k` and `v` are where its first step is among the fragments that there is room for. Without steps it is all.
    """

    first: int = 0
    steps: int | None = None
    q: int = 0
    k: int = 0
    v: int = 0


class Fragments(NamedTuple):
    """Chunks by their statements, and how many steps of Q, K and V there is room for: of all where that is None."""

    chunks: dict[str, Chunk]
    q_steps: int | None = None
    k_steps: int | None = None
    v_steps: int | None = None


def arguments(planned: Planned) -> dict[str, Any]:
    """What the schedule fixes of the kernel, whose rings begin with each tile."""
    schedule, of_fragments = planned.schedule, fragments(planned.schedule)
    named = {name: chunk._asdict() for name, chunk in of_fragments.chunks.items()}
    return {
        **emitted_arguments(planned, named, rings_of_a_tile=True),
        "threads": schedule.threads,
        "rows": rows_at_once(schedule.threads),
        "fragments": of_fragments,
    }


def fragments(schedule: Schedule) -> Fragments:
    """Which registers its statements load and multiply."""
    table = schedule.table
    chunks: dict[str, Chunk] = {}
    room: dict[str, int] = {}
    for product in dict.fromkeys(FRAGMENTS.values()):
        widths = schedule.split.columns(product)
        of_product = [name for name, other in FRAGMENTS.items() if other == product]
        for index, name in enumerate(chunk_names(product, widths)):
            if widths is None:
                chunks |= dict.fromkeys((*of_product, product), Chunk())
                continue
            first, end = table.by_name[name].columns or (0, 0)
            # Where Q stays in registers, all of it does.
            places = {fragment[-1]: first // DEPTH for fragment in of_product}
            for fragment in of_product:
                if slots := table.slots.get(BUFFERS[fragment]):
                    places[fragment[-1]] = index % slots * (max(widths) // DEPTH)
                    room[f"{fragment[-1]}_steps"] = slots * (max(widths) // DEPTH)
            chunk = Chunk(first // DEPTH, (end - first) // DEPTH, **places)
            chunks |= {name: chunk} | {f"{fragment}.{index}": chunk for fragment in of_product}
    return Fragments(chunks, **room)
