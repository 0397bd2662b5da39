"""This module computes what a thread block takes of the SM, shared memory and registers, and words the refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize, sizes_of, tile_size
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.warpgroup import WARPGROUP
from tl_attention.program.derivation import PLACE_KEYS
from tl_attention.program.planned import Planned
from tl_attention.schedule.loop.loops import CUT_SIZES, stages_option
from tl_attention.schedule.loop.table import Buffer
from tl_attention.schedule.schedule import Schedule

# The lanes that share a row of a product's result each hold a number of the row, in registers of 4 bytes.
LANES_OF_A_ROW, REGISTER_BYTES = 4, 4
# What ptxas needs for a product beside its accumulators, of the registers that a block is launched with.
PRODUCT_REGISTERS = 30
# Dynamic shared memory follows the static, from the next address where swizzled tiles may start.
DYNAMIC_ALIGNMENT = 1024


@dataclass(frozen=True)
class Resources:
    """Resources are the shared memory, mbarriers and registers that a block takes, and the registers it may take."""

    rings: Mapping[str, int]  # by ring, such as K_shared, how many buffers it has
    shared_bytes: int  # what these and the resident tiles take
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


def tile_sizes(schedule: Schedule, size: HeadSize) -> dict[str | int, int]:
    """Returns the sizes of a schedule's tile by the names that buffers of a loop's Table have for them."""
    columns, columns_v = sizes_of(tile_size(size))
    return {"block_M": schedule.block_M, "block_N": schedule.block_N, "head_dim": columns, "head_dim_v": columns_v}


def shared_bytes(planned: Planned, size: HeadSize) -> int:
    """Returns how many bytes of dynamic shared memory a block takes for the buffers of its loop that lie there."""
    sizes = tile_sizes(planned.schedule, size)
    return sum(
        planned.rings.get(buffer.name, 1) * buffer.elements(sizes) * buffer.bytes
        for buffer in _buffers(planned.schedule, "shared")
    )


def fragment_registers(schedule: Schedule, size: HeadSize) -> dict[str, int]:
    """Returns, by name, how many registers of a thread each fragment takes that lives across statements.

    A thread holds block_M / threads of a row's columns, those of 16 bits packed by two, and its four lanes each hold a
    row vector's number.
    """
    sizes = tile_sizes(schedule, size)
    registers: dict[str, int] = {}
    for buffer in sorted(_buffers(schedule, "registers"), key=lambda one: (one.columns == 1, one.place == "resident")):
        name, lanes = ("row vectors", LANES_OF_A_ROW) if buffer.columns == 1 else (buffer.symbol, 1)
        held = lanes * buffer.elements(sizes) * buffer.bytes // REGISTER_BYTES // schedule.threads
        registers[name] = registers.get(name, 0) + held
    addresses = schedule.table.addresses
    return registers | ({"addresses": addresses} if addresses else {})


def _buffers(schedule: Schedule, place: str) -> list[Buffer]:
    return [buffer for buffer in schedule.table.buffers if place in buffer.places(schedule.kernel)]


def check_fits(schedule: Schedule, size: HeadSize, takes: Resources, card: Card = HOPPER) -> None:
    """Raises ScheduleRefused if a kernel takes too much of the SM, or chunks of columns do not add up to head_dim.

    `takes` says what the lowering's kernel takes, and what a block may take.
    """
    _check_shared_memory(schedule, size, takes, card)
    _check_chunks(schedule, size)
    _check_registers(schedule, takes, card)
    _check_product(schedule, takes, card)


def _check_chunks(schedule: Schedule, size: HeadSize) -> None:
    sizes = tile_sizes(schedule, size)
    for name, cut in CUT_SIZES.items():
        widths = schedule.split.columns(name)
        # The columns that add up to a block's are the lowering's rules to check.
        if cut != "block_N" and widths and sum(widths) != sizes[cut]:
            raise ScheduleRefused(
                f"split.{name}: {' + '.join(map(str, widths))} = {sum(widths)} columns, expected {cut} {sizes[cut]}",
                *("split", name),
                others=(("head_dims",),),
            )


def of_other_card(card: Card) -> str:
    """Returns " of" and the card's name, for a message about its SM, or "" if the card is Hopper."""
    return "" if card.arch == HOPPER.arch else f" of {card}"


def buffers_text(count: float) -> str:
    """Returns a number of buffers as text, such as `2 buffers`."""
    return "1 buffer" if count == 1 else f"{count:g} buffers"


def shared_text(schedule: Schedule, size: HeadSize, rings: Mapping[str, int]) -> str:
    """Returns the formula of the bytes in shared memory as text, from the tile's sizes and the numbers of buffers."""
    sizes = tile_sizes(schedule, size)
    same = sizes["head_dim"] == sizes["head_dim_v"]
    tiles: dict[int, dict[str | int, list[Buffer]]] = {}
    others: dict[int, list[str]] = {}
    for buffer in _buffers(schedule, "shared"):
        if buffer.place == "fragment":
            rows, columns = (f"{of} {sizes[of]}" for of in (buffer.rows, buffer.columns))
            others.setdefault(buffer.bytes, []).append(f"{rows} * {columns} of {buffer.name}")
        else:
            columns_of = "head_dim" if same and buffer.columns == "head_dim_v" else buffer.columns
            tiles.setdefault(buffer.bytes, {}).setdefault(columns_of, []).append(buffer)
    texts = []
    for bytes_of, of_columns in tiles.items():
        terms = [_tiles_text(columns, buffers, sizes, rings) for columns, buffers in of_columns.items()]
        terms += others.get(bytes_of, [])
        texts.append(f"{_together(terms)} * {bytes_of}")
    return " + ".join(texts)


def _tiles_text(
    columns: str | int, buffers: Sequence[Buffer], sizes: Mapping[str | int, int], rings: Mapping[str, int]
) -> str:
    """Returns how many elements tiles of these columns have as text, such as `block_M 128 * head_dim 64`."""
    terms = []
    for rows in dict.fromkeys(buffer.rows for buffer in buffers):
        alike, height = [buffer for buffer in buffers if buffer.rows == rows], f"{rows} {sizes[rows]}"
        counts = [rings[buffer.name] for buffer in alike if buffer.name in rings]
        residents = len(alike) - len(counts)
        terms += [height if residents == 1 else f"{residents} * {height}"] if residents else []
        many = f"({' + '.join(map(str, counts))} buffers)" if len(counts) > 1 else "".join(map(buffers_text, counts))
        terms += [f"{many} * {height}"] if counts else []
    return " + ".join(terms) if columns == 1 else f"{_together(terms)} * {columns} {sizes[columns]}"


def _together(terms: Sequence[str]) -> str:
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"


def _check_shared_memory(schedule: Schedule, size: HeadSize, takes: Resources, card: Card) -> None:
    static = takes.static_bytes
    need, limit = static + takes.shared_bytes, card.shared_available(takes.blocks)
    if need <= limit:
        return
    before = f" after {static:,} that hold {takes.barrier_bytes} of mbarriers" if static else ""
    table = schedule.table
    operands = [buffer.operand for buffer in table.buffers if buffer.place == "fragment" and buffer.operand]
    stages = [*map(stages_option, table.loads)]
    kernel_keys = [("kernel", key) for key in (*stages, *operands, "blocks_per_sm")]
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
    operands = [buffer.operand for buffer in schedule.table.buffers if buffer.operand]
    kernel_keys = [("kernel", key) for key in ("registers", *operands, "blocks_per_sm")]
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
    accumulators, name = max((takes.fragments.get(name, 0), name) for name in schedule.table.accumulators)
    if accumulators + PRODUCT_REGISTERS <= takes.launched:
        return
    raise ScheduleRefused(
        f"needs {accumulators} + {PRODUCT_REGISTERS} registers per thread for the product in {name}: with {takes.blocks} "
        f"blocks on an SM{of_other_card(card)} a thread is launched with {takes.launched}; use fewer blocks_per_sm",
        "kernel",
        "blocks_per_sm",
        others=(("block_M",), ("block_N",), ("threads",), ("lowering",)),
    )
