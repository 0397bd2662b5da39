"""A schedule fixes these constants of the mma.sync kernel, and a block of it takes these resources of an SM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.mma_sync.dialect import ROWS_OF_A_PRODUCT, rows_at_once
from tl_attention.kernels.shared.constants import EmittedConstants
from tl_attention.kernels.shared.loop import emitted
from tl_attention.problem.card import Card
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.warpgroup import WARP
from tl_attention.program import limits
from tl_attention.program.limits import Resources, shared_bytes
from tl_attention.program.planned import Planned
from tl_attention.schedule.loop.attention import FRAGMENTS
from tl_attention.schedule.loop.table import chunk_names
from tl_attention.schedule.schedule import Schedule

# Of an mma.sync: the columns that one multiplies.
DEPTH = ROWS_OF_A_PRODUCT
BUFFERS = {"frag_q": "Q_local", "frag_k": "K_local", "frag_v": "V_local"}


class Chunk(NamedTuple):
    """A Chunk is the part of an operand that a statement loads or multiplies, in steps of 16 columns from `first`."""

    first: int = 0
    steps: int | None = None  # how many; None for all
    q: int = 0  # where the first step is among the fragments of Q that there is room for
    k: int = 0  # of K
    v: int = 0  # of V


class Fragments(NamedTuple):
    """Fragments holds each statement's Chunk, and how many steps of Q, K and V fit in registers, None for all."""

    chunks: dict[str, Chunk]
    q_steps: int | None = None
    k_steps: int | None = None
    v_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class FragmentConstants(EmittedConstants):
    """FragmentConstants are the constants of an mma.sync kernel, with its threads and its statements' fragments."""

    threads: int
    rows: int  # that all warps together compute at a time
    fragments: Fragments


def schedule_values(planned: Planned) -> dict[str, Any]:
    """Returns, by name, the constants of an mma.sync kernel that the schedule determines, such as its fragments.

    Its rings begin anew with each tile.
    """
    schedule, of_fragments = planned.schedule, fragments(planned.schedule)
    named = {name: chunk._asdict() for name, chunk in of_fragments.chunks.items()}
    return {
        **emitted(planned, named, rings_of_a_tile=True),
        "threads": schedule.threads,
        "rows": rows_at_once(schedule.threads),
        "fragments": of_fragments,
    }


def fragments(schedule: Schedule) -> Fragments:
    """Returns Fragments, which give each statement its steps of Q, K and V, and their place in registers."""
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


HEAD_DIMS = (64, 128)
# Elements of 16 bytes, which a thread copies at a time.
COPIED = 8
# scores_max and denominator of a thread's two rows of a product's 16; the others live between the products.
ROW_VECTORS = 2 * 2


def resources(planned: Planned, size: HeadSize, card: Card) -> Resources:
    """Returns the registers and shared memory that one block of the mma.sync kernel takes of an SM of the card.

    Raises ScheduleRefused for a head size, or a tile, that the kernel does not have.
    """
    schedule = planned.schedule
    columns, columns_v = sizes_of(size)
    if columns not in HEAD_DIMS or columns_v != columns:
        raise ScheduleRefused(
            f"head_dim {size}, which lowering {schedule.lowering} does not compute, expected one of "
            f"{', '.join(map(str, HEAD_DIMS))}",
            "lowering",
            others=(("head_dims",),),
        )
    _check_copies(schedule, columns)
    registers = card.registers_available(schedule.threads, schedule.kernel.blocks_per_sm)
    return Resources(
        rings=planned.rings,
        shared_bytes=shared_bytes(planned, size),
        fragments=fragment_registers(schedule, columns),
        registers=registers,
        launched=registers,
        barriers={},
        blocks=schedule.kernel.blocks_per_sm,
        team=WARP,
    )


def fragment_registers(schedule: Schedule, head_dim: int) -> dict[str, int]:
    """Returns, by buffer, the fewest registers that a thread needs at mma0 or at mma1, whichever needs more.

    A thread has its part of the loop's fragments, and of K and V a warp's part, packed by two. acc_s_cast takes the
    place of acc_s. Of what comes from shared memory again for each block one step of 16 columns is counted, however
    many the order has in flight: ptxas moves a load to the product that needs it where registers are few.
    """
    held = limits.fragment_registers(schedule, head_dim)
    rows = {"row vectors": ROW_VECTORS * schedule.block_M // rows_at_once(schedule.threads)}
    acc_o, kept = {"acc_o": held["acc_o"]}, {"Q": held["Q"]} if "Q" in held else {}
    q = kept or {"Q": schedule.block_M * DEPTH // schedule.threads // 2}
    of_k, of_v = (columns * DEPTH // WARP // 2 for columns in (schedule.block_N, head_dim))
    mma0 = {"acc_s": held["acc_s"], **acc_o, **q, "K": of_k, **rows}
    mma1 = {"acc_s_cast": held["acc_s_cast"], **acc_o, "V": of_v, **kept, **rows}
    return max(mma0, mma1, key=lambda of: sum(of.values()))


def _check_copies(schedule: Schedule, head_dim: int) -> None:
    """Raises ScheduleRefused unless the threads share the 16-byte copies of a KV block equally."""
    copies, at_once = schedule.block_N * head_dim // COPIED, schedule.threads
    if copies % at_once:
        raise ScheduleRefused(
            f"{at_once} threads do not fit a KV block of {schedule.block_N} keys: its {copies} copies of 16 bytes are no "
            f"multiple of {at_once}",
            "threads",
            others=(("block_N",),),
        )
