"""This module computes what a thread block takes of the SM, shared memory and registers, and words the refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, sizes_of, tile_size
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.problem.warpgroup import WARPGROUP
from tl_attention.program.derivation import PLACE_KEYS
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

# Row vectors (scores_max, scores_max_prev, scores_scale, denominator, a temporary): two rows of each per thread.
ROW_VECTOR_REGISTERS = 2 * 5
# What ptxas needs for a product beside its accumulators, of the registers that a block is launched with.
PRODUCT_REGISTERS = 30
# Dynamic shared memory follows the static, from the next address where swizzled tiles may start.
DYNAMIC_ALIGNMENT = 1024


@dataclass(frozen=True)
class Resources:
    """Resources are the shared memory, mbarriers and registers that a block takes, and the registers it may take."""

    rings: tuple[int, int]  # numbers of buffers of K_shared and of V_shared
    shared_bytes: int  # what these and Q_shared take
    fragments: Mapping[str, int]  # registers per thread of each fragment that lives across statements
    registers: int  # that each thread that computes may have
    launched: int  # registers that a thread is launched with
    barriers: Mapping[str, int]  # pairs of mbarriers, one for full and one for empty, by what they guard
    barrier_bytes: int = 0  # what the mbarriers take of static shared memory
    split: tuple[int, ...] | None = None  # with setmaxnreg, registers of a thread that computes and of a producer's
    producer_threads: int = 0  # threads that only load
    blocks: int = 1  # blocks on the SM, this one among them
    team: int = WARPGROUP  # threads that compute rows together

    @property
    def static_bytes(self) -> int:
        """Returns the bytes of static shared memory, rounded up to where dynamic shared memory may start."""
        return ceildiv(self.barrier_bytes, DYNAMIC_ALIGNMENT) * DYNAMIC_ALIGNMENT

    @property
    def fragment_registers(self) -> int:
        """Returns the registers per thread of all fragments together."""
        return sum(self.fragments.values())

    def blocks_that_fit(self, card: Card, threads: int, registers: int) -> int:
        """Returns how many blocks an SM of the card holds, from their threads, registers and shared memory.

        `threads` of a block compute, and each thread has so many `registers`, as compiled.
        """
        return card.blocks_that_fit(threads + self.producer_threads, registers, self.static_bytes + self.shared_bytes)


def shared_bytes(planned: Planned, size: HeadSize) -> int:
    """Returns how many bytes of dynamic shared memory Q, the buffers of K and V, and P take in a block.

    P counts where MMA1 reads P from shared memory.
    """
    schedule, (k, v), (columns, columns_v) = planned.schedule, planned.buffers, sizes_of(tile_size(size))
    elements = (schedule.block_M + k * schedule.block_N) * columns + v * schedule.block_N * columns_v
    p = schedule.block_M * schedule.block_N if schedule.kernel.p_operand == "shared" else 0
    return (elements + p) * DTYPE_BYTES


def fragment_registers(schedule: Schedule, size: HeadSize) -> dict[str, int]:
    """Returns, by name, how many registers of a thread each fragment takes that lives across statements.

    A thread holds block_M / threads of a row's columns: acc_s in fp32, acc_s_cast packed by two unless MMA1 reads P
    from shared memory, acc_o in fp32, and Q packed by two where MMA0 reads it from registers.
    """
    acc_s = schedule.block_M * schedule.block_N // schedule.threads
    of_q, acc_o = (schedule.block_M * columns // schedule.threads for columns in sizes_of(tile_size(size)))
    q = {"Q": of_q // 2} if schedule.kernel.q_operand == "registers" else {}
    p = {} if schedule.kernel.p_operand == "shared" else {"acc_s_cast": acc_s // 2}
    return {"acc_s": acc_s, **p, "acc_o": acc_o, **q, "row vectors": ROW_VECTOR_REGISTERS}


def check_fits(schedule: Schedule, size: HeadSize, takes: Resources, card: Card = HOPPER) -> None:
    """Raises ScheduleRefused if a kernel takes too much of the SM, or split.rescale does not add up to head_dim.

    `takes` says what the lowering's kernel takes, and what a block may take.
    """
    _check_shared_memory(schedule, size, takes, card)
    widths, (_, columns_v) = schedule.split.rescale, sizes_of(tile_size(size))
    if widths and sum(widths) != columns_v:
        raise ScheduleRefused(
            f"split.rescale: {' + '.join(map(str, widths))} = {sum(widths)} columns, expected head_dim {columns_v}",
            *("split", "rescale"),
            others=(("head_dims",),),
        )
    _check_registers(schedule, takes, card)
    _check_product(schedule, takes, card)


def of_other_card(card: Card) -> str:
    """Returns " of" and the card's name, for a message about its SM, or "" if the card is Hopper."""
    return "" if card.arch == HOPPER.arch else f" of {card}"


def buffers_text(count: float) -> str:
    """Returns a number of buffers as text, such as `2 buffers`."""
    return "1 buffer" if count == 1 else f"{count:g} buffers"


def shared_text(schedule: Schedule, size: HeadSize, rings: tuple[int, int]) -> str:
    """Returns the formula of the bytes in shared memory as text, from the tile's sizes and the numbers of buffers."""
    M, N, (k, v), (columns, columns_v) = schedule.block_M, schedule.block_N, rings, sizes_of(tile_size(size))
    if columns == columns_v:
        tiles = [f"(block_M {M} + ({k} + {v} buffers) * block_N {N}) * head_dim {columns}"]
    else:
        tiles = [f"(block_M {M} + {buffers_text(k)} * block_N {N}) * head_dim {columns}"]
        tiles.append(f"{buffers_text(v)} * block_N {N} * head_dim_v {columns_v}")
    if schedule.kernel.p_operand == "shared":
        tiles.append(f"block_M {M} * block_N {N} of P")
    elements = " + ".join(tiles)
    return f"{elements if len(tiles) == 1 else f'({elements})'} * {DTYPE_BYTES}"


def _check_shared_memory(schedule: Schedule, size: HeadSize, takes: Resources, card: Card) -> None:
    static = takes.static_bytes
    need, limit = static + takes.shared_bytes, card.shared_available(takes.blocks)
    if need <= limit:
        return
    before = f" after {static:,} that hold {takes.barrier_bytes} of mbarriers" if static else ""
    kernel_keys = [("kernel", key) for key in ("k_stages", "v_stages", "p_operand", "blocks_per_sm")]
    sm = of_other_card(card)
    has = f"the SM{sm} has" if takes.blocks == 1 else f"each of {takes.blocks} blocks of an SM{sm} has"
    raise ScheduleRefused(
        f"needs {need:,} bytes of shared memory, {has} {limit:,}: {shared_text(schedule, size, takes.rings)} "
        f"bytes{before}; use a smaller tile or fewer buffers",
        "num_stages",
        others=(("block_N",), ("block_M",), *kernel_keys, *PLACE_KEYS, ("lowering",)),
    )


def _check_registers(schedule: Schedule, takes: Resources, card: Card) -> None:
    if takes.fragment_registers <= takes.registers:
        return
    kernel_keys = [("kernel", key) for key in ("registers", "q_operand", "p_operand", "blocks_per_sm")]
    raise ScheduleRefused(
        f"needs {takes.fragment_registers} registers per thread for fragments alone, {schedule.threads} threads"
        f"{of_other_card(card)} have {takes.registers}: {fragments_text(takes)}; use a smaller block_N",
        "block_N",
        others=(("block_M",), ("threads",), *kernel_keys, ("lowering",)),
    )


def fragments_text(takes: Resources) -> str:
    """Returns, as text such as `acc_s 64, acc_o 64`, how many registers of a thread each fragment takes."""
    return ", ".join(f"{name} {count}" for name, count in takes.fragments.items())


def _check_product(schedule: Schedule, takes: Resources, card: Card) -> None:
    accumulators, name = max((takes.fragments.get(name, 0), name) for name in ("acc_s", "acc_o"))
    if accumulators + PRODUCT_REGISTERS <= takes.launched:
        return
    raise ScheduleRefused(
        f"needs {accumulators} + {PRODUCT_REGISTERS} registers per thread for the product in {name}: with {takes.blocks} "
        f"blocks on an SM{of_other_card(card)} a thread is launched with {takes.launched}; use fewer blocks_per_sm",
        "kernel",
        "blocks_per_sm",
        others=(("block_M",), ("block_N",), ("threads",), ("lowering",)),
    )
