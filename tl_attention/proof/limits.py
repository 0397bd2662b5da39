"""What a schedule needs of the SM: shared memory and registers, with the arithmetic in the refusal."""

from __future__ import annotations

from tl_attention.errors import ScheduleRefused
from tl_attention.hardware.device import HOPPER, DeviceSpec
from tl_attention.hardware.warpgroup import ROWS
from tl_attention.problem.shape import DTYPE_BYTES, HEAD_DIMS
from tl_attention.problem.tiling import ceildiv
from tl_attention.program.derivation import PLACE_KEYS, derive
from tl_attention.schedule.schedule import Schedule

# Row vectors (scores_max, scores_max_prev, scores_scale, logsum, a temporary): two rows of each per thread.
ROW_VECTOR_REGISTERS = 2 * 5

MBARRIER_BYTES, TILE_NUMBER_BYTES = 8, 4
# Dynamic shared memory follows the static, from where swizzled tiles may start.
DYNAMIC_ALIGNMENT = 1024

# Registers per thread of the warpgroups that compute and of the producer's, by block_M: they share those of the launch.
# With one warpgroup that gives every thread 255 already.
SPLIT_REGISTERS: dict[int, tuple[int, int]] = {128: (240, 24), 192: (160, 32)}


def split_registers(schedule: Schedule) -> tuple[int, ...] | None:
    """Registers per thread that compute and of the producer's, or None where all keep those of the launch."""
    return schedule.kernel.registers or SPLIT_REGISTERS.get(schedule.block_M)


def registers_available(schedule: Schedule, device: DeviceSpec = HOPPER) -> int:
    """Registers that each thread that computes may have."""
    if schedule.lowering != "warp_specialized":
        return device.registers_available(schedule.threads)
    split = split_registers(schedule)
    return split[0] if split else device.registers_per_thread


def ring_buffers(schedule: Schedule) -> tuple[int, int]:
    """Buffers of K_shared and of V_shared."""
    if not schedule.has_program:
        return schedule.num_stages, schedule.num_stages
    buffers = derive(schedule).buffers
    return buffers["load_k"], buffers["load_v"]


def shared_bytes(schedule: Schedule, head_dim: int) -> int:
    """Dynamic shared memory of one block: Q_shared and the rings of K_shared and V_shared."""
    rows = schedule.block_M + sum(ring_buffers(schedule)) * schedule.block_N
    return rows * head_dim * DTYPE_BYTES


def mbarrier_pairs(schedule: Schedule) -> dict[str, int]:
    """Pairs of mbarriers, one for full and one for free, of one block of the warp-specialised kernel.

    One for each warpgroup's rows of Q, for each buffer of K and V, and, where a counter gives the tiles, for the two
    numbers of the next tiles.
    """
    if schedule.lowering != "warp_specialized":
        return {}
    k, v = ring_buffers(schedule)
    tiles = {"tile number": 2} if schedule.kernel.tile_scheduler == "dynamic" else {}
    return {"Q": schedule.block_M // ROWS, "K": k, "V": v, **tiles}


def barrier_bytes(schedule: Schedule) -> int:
    """Static shared memory of one block: the mbarriers, and the numbers of the next tiles."""
    pairs = mbarrier_pairs(schedule)
    return sum(pairs.values()) * 2 * MBARRIER_BYTES + pairs.get("tile number", 0) * TILE_NUMBER_BYTES


def static_bytes(schedule: Schedule) -> int:
    """What static shared memory takes, up to where dynamic may start."""
    return ceildiv(barrier_bytes(schedule), DYNAMIC_ALIGNMENT) * DYNAMIC_ALIGNMENT


def fragment_registers(schedule: Schedule, head_dim: int) -> dict[str, int]:
    """Registers per thread of each fragment that lives across statements.

    A thread holds block_M / threads of a row's columns: acc_s in fp32, acc_s_cast packed by two, acc_o in fp32, and Q
    packed by two where MMA0 reads it from registers.
    """
    acc_s = schedule.block_M * schedule.block_N // schedule.threads
    acc_o = schedule.block_M * head_dim // schedule.threads
    q = {"Q": acc_o // 2} if schedule.kernel.q_operand == "registers" else {}
    return {"acc_s": acc_s, "acc_s_cast": acc_s // 2, "acc_o": acc_o, **q, "row vectors": ROW_VECTOR_REGISTERS}


def accumulator_registers(schedule: Schedule, head_dim: int) -> int:
    """Registers per thread of all of them."""
    return sum(fragment_registers(schedule, head_dim).values())


def check_head_dim(head_dim: int) -> None:
    """Raise unless the kernels support it."""
    if head_dim not in HEAD_DIMS:
        raise ScheduleRefused(f"head_dim {head_dim} is not supported, expected one of {HEAD_DIMS}")


def check_fits(schedule: Schedule, head_dim: int, device: DeviceSpec = HOPPER) -> None:
    """Raise ScheduleRefused when the tile cannot fit the SM."""
    check_head_dim(head_dim)
    M, N = schedule.block_M, schedule.block_N
    k, v = ring_buffers(schedule)
    barriers = barrier_bytes(schedule)
    static = static_bytes(schedule)
    need, limit = static + shared_bytes(schedule, head_dim), device.shared_bytes_per_block
    if need > limit:
        before = f" after {static:,} that hold {barriers} of mbarriers" if static else ""
        raise ScheduleRefused(
            f"needs {need:,} bytes of shared memory, the SM has {limit:,}: "
            f"(block_M {M} + ({k} + {v} buffers) * block_N {N}) * head_dim {head_dim} * {DTYPE_BYTES} bytes{before}; "
            "use a smaller tile or fewer buffers",
            "num_stages",
            others=(
                ("block_N",),
                ("block_M",),
                ("kernel", "k_stages"),
                ("kernel", "v_stages"),
                *PLACE_KEYS,
                ("lowering",),
            ),
        )
    widths = schedule.split.rescale
    if widths and sum(widths) != head_dim:
        raise ScheduleRefused(
            f"split.rescale: {' + '.join(map(str, widths))} = {sum(widths)} columns, expected head_dim {head_dim}",
            "split",
            "rescale",
        )
    q = "half as much for Q, " if schedule.kernel.q_operand == "registers" else ""
    registers, available = accumulator_registers(schedule, head_dim), registers_available(schedule, device)
    if registers > available:
        raise ScheduleRefused(
            f"needs {registers} registers per thread for fragments alone, {schedule.threads} threads have {available}: "
            f"acc_s {M}*{N}/{schedule.threads}, half as much for acc_s_cast, acc_o {M}*{head_dim}/{schedule.threads}, "
            f"{q}{ROW_VECTOR_REGISTERS} for row vectors; use a smaller block_N",
            "block_N",
            others=(("block_M",), ("threads",), ("kernel", "registers"), ("kernel", "q_operand"), ("lowering",)),
        )
