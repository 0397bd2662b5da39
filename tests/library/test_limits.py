"""Sizes, limits and the problem's arithmetic; thread blocks share an SM, and each may take only its part."""

from dataclasses import replace

import pytest
from code_mutants.kernels import Kernel
from golden_kernels import KERNELS
from mutations import shipped
from once import lowered, proved
from specialized import REST, fa3
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, kv_index
from tl_attention.program import limits
from tl_attention.program.limits import Resources
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule


def takes(schedule: Schedule, head_dim: int = 128) -> Resources:
    return lowering_of(schedule).resources(Planned(schedule), head_dim)


def check_fits(schedule: Schedule, head_dim: int, card: Card = HOPPER) -> None:
    limits.check_fits(schedule, head_dim, takes(schedule, head_dim), card)


def test_flops_count_unmasked_pairs_only():
    assert AttentionShape(4, 64, 8192, 8192, 128).flops == 4 * 4 * 64 * 8192 * 8192 * 128 == 8_796_093_022_208
    causal = AttentionShape(1, 1, 3, 5, 64, mask=CAUSAL)
    assert causal.pairs == 3 + 4 + 5 and causal.past_len == 2


def specialized(rows: int = 128, **changes) -> Schedule:
    return Schedule(**fa3(*REST).model_dump() | {"block_M": rows, "threads": 2 * rows} | changes)


def test_k_and_v_have_rings_of_their_own_depth():
    three = specialized(kernel={"k_stages": 3, "v_stages": 1})
    assert takes(three).rings == {"K_shared": 3, "V_shared": 1}
    assert takes(three).shared_bytes == (128 + (3 + 1) * 176) * 128 * 2
    with pytest.raises(
        ScheduleRefused,
        match=(
            r"needs 259,072 bytes of shared memory, the SM has 232,448: \(block_M 128 \+ \(3 \+ 2 buffers\) \* block_N "
            r"176\) \* head_dim 128 \* 2 bytes after 1,024 that hold 112 of mbarriers; use"
        ),
    ):
        check_fits(specialized(kernel={"k_stages": 3}), 128)


@pytest.mark.parametrize(
    "rows, kernel, expected",
    [
        (128, {}, 8 * 2 * (2 + 2 + 2)),
        (128, {"k_stages": 3, "v_stages": 1}, 8 * 2 * (2 + 3 + 1)),
        (192, {}, 8 * 2 * (3 + 2 + 2)),
        (64, {"tile_scheduler": "dynamic", "cluster": 1}, 8 * 2 * (1 + 2 + 2 + 2) + 2 * 4),
    ],
)
def test_the_mbarriers_stand_in_static_shared_memory(rows, kernel, expected):
    assert takes(specialized(rows, kernel=kernel)).barrier_bytes == expected
    assert takes(shipped()["seed"]).barrier_bytes == 0


def test_static_and_dynamic_shared_memory_fit_together_to_the_byte():
    """The rings begin at a multiple of 1,024, after the mbarriers."""
    needed = (128 + 4 * 176) * 128 * 2 + 1024
    just = replace(HOPPER, shared_bytes_per_sm=needed + HOPPER.shared_bytes_reserved)
    check_fits(specialized(), 128, just)
    less = replace(just, shared_bytes_per_sm=just.shared_bytes_per_sm - 1)
    with pytest.raises(ScheduleRefused, match=f"needs {needed:,} bytes of shared memory, the SM has {needed - 1:,}"):
        check_fits(specialized(), 128, less)


def test_chunks_of_rescale_fill_head_dim():
    halves = fa3("exp", "row_sum", "cast", "rescale.0", "rescale.1", split={"rescale": (96, 32)})
    check_fits(halves, 128)
    with pytest.raises(ScheduleRefused, match=r"^split.rescale: 96 \+ 32 = 128 columns, expected head_dim_v 64$"):
        check_fits(halves, 64)


def test_registers_are_those_of_the_schedule_or_of_its_tile():
    assert takes(specialized()).registers == 240
    assert takes(specialized(192)).registers == 160
    assert takes(specialized(64)).registers == 255
    assert takes(specialized(kernel={"registers": (216, 32)})).registers == 216
    with pytest.raises(ScheduleRefused, match=r"needs 206 registers per thread .* have 200: acc_s 88"):
        check_fits(specialized(kernel={"registers": (200, 32)}), 128)


def test_q_in_registers_takes_half_of_what_acc_o_takes():
    q = {"kernel": {"q_operand": "registers"}}
    assert takes(specialized(**q)).fragment_registers - takes(specialized()).fragment_registers == 128 * 128 // 512
    check_fits(specialized(**q), 128)
    with pytest.raises(ScheduleRefused, match=r"needs 250 registers .* acc_o 64, Q 32, row vectors 10;"):
        check_fits(specialized(block_N=192, **q), 128)


def test_p_in_shared_memory_takes_that_and_no_registers():
    p = {"kernel": {"p_operand": "shared"}}
    wide = specialized(192, block_N=192, **p)
    assert takes(wide, 64).fragments == {"acc_s": 96, "acc_o": 32, "row vectors": 10}
    assert takes(wide, 64).shared_bytes == ((192 + 4 * 192) * 64 + 192 * 192) * 2
    with pytest.raises(ScheduleRefused, match=r"needs 186 registers .* have 160: .* acc_s_cast 48, "):
        check_fits(specialized(192, block_N=192), 64)
    with pytest.raises(ScheduleRefused, match=r"needs 170 registers .* have 160: acc_s 96, acc_o 64"):
        check_fits(specialized(192, block_N=192, kernel={"p_operand": "shared", "k_stages": 1, "v_stages": 1}), 128)
    with pytest.raises(
        ScheduleRefused,
        match=(
            r"\(\(block_M 128 \+ \(2 \+ 2 buffers\) \* block_N 176\) \* head_dim 128 \+ block_M 128 \* block_N 176 of acc_s_cast\) "
            r"\* 2 bytes after"
        ),
    ):
        check_fits(specialized(**p), 128)


def test_causal_tiles_stop_at_the_diagonal_and_short_loops_are_padded():
    shape = AttentionShape(1, 1, 512, 512, 64, mask=CAUSAL)
    assert [kv_blocks(shape, 128, 64, tile) for tile in range(4)] == [range(2), range(4), range(6), range(8)]
    assert kv_blocks(AttentionShape(1, 1, 1, 1, 64), 128, 64, 0, at_least=3) == range(3)
    assert [kv_index(step, range(3), "descending") for step in range(3)] == [2, 1, 0]


SHORT = Schedule(**shipped()["short_d64"].model_dump() | {"block_N": 64})
# The kernel, its thread blocks on 132 SMs, and of how many on an SM ptxas gives them the registers.
MADE = {
    "short": (KERNELS["short"], 264, 2),
    "short, asked": (KERNELS["short, asked"], 264, 2),
    "three_blocks, asked": (KERNELS["three_blocks, asked"], 396, 3),
    "wide": (Kernel("short_d256", head_dim=256), 132, 1),
}


@pytest.mark.parametrize("name", sampled(MADE, ["short", "three_blocks, asked"]))
def test_a_kernel_is_made_and_proved_for_as_many(name):
    kernel, grid, blocks = MADE[name]
    code = lowered(kernel)
    workers = kernel.schedule.workers(HOPPER.sms)
    assert code.plan.grid[0].at({"workers": workers}) == grid and f"__launch_bounds__(256, {blocks})" in code.source
    assert proved(kernel).digest


@exhaustive
def test_a_block_for_each_tile_may_share_its_sm_too(tmp_path):
    file = tmp_path / "other"
    file.with_suffix(".yaml").write_text("base: short_d64\nkernel: {tile_scheduler: one_tile, part_blocks: null}\n")
    kernel = Kernel(str(file), head_dim=64)
    code = lowered(kernel)
    assert code.plan.grid[0].at({"batch": 8, "heads": 32, "seq_q": 65}) == 512
    assert proved(kernel).digest


@exhaustive
@pytest.mark.parametrize(
    "options,sms,grid",
    [
        ("tile_scheduler: dynamic, tile_order: tapered", 132, 264),
        ("tile_scheduler: dynamic", 1, 2),
        ("cluster: 2, tile_order: sections", 131, 262),
        ("cluster: 2", 1, 2),
    ],
)
def test_other_orders_of_tiles_fill_every_place(options, sms, grid, tmp_path):
    file = tmp_path / "other"
    file.with_suffix(".yaml").write_text(f"base: short_d64\nkernel: {{{options}, part_blocks: null}}\n")
    kernel = Kernel(str(file), causal=True, head_dim=64)
    code = lowered(kernel)
    assert code.plan.grid[0].at({"workers": kernel.schedule.workers(sms)}) == grid
    assert proved(kernel).digest


def changed(**keys) -> Schedule:
    return Schedule(**SHORT.model_dump() | keys)


def with_kernel(**options) -> Schedule:
    return changed(kernel=SHORT.kernel.model_dump() | options)


def test_setmaxnreg_moves_what_a_share_has():
    assert with_kernel(registers=(232, 24)).kernel.registers == (232, 24)
    with pytest.raises(ValueError, match=r"\[240, 24\] take 33,792 registers, the block is launched with 32,768"):
        with_kernel(registers=(240, 24))
    with pytest.raises(
        ValueError,
        match=r"the first at least 80 and the second at most 80: with block_M 64 and 3 blocks on an SM a thread is",
    ):
        with_kernel(registers=(232, 96), blocks_per_sm=3)
    with pytest.raises(ValueError, match="blocks_per_sm"):
        with_kernel(blocks_per_sm=4)


@pytest.mark.parametrize(
    "schedule,head_dim,words",
    [
        (changed(num_stages=4), 128, "needs 148,480 bytes of shared memory, each of 2 blocks of an SM has 115,712"),
        (SHORT, 192, "needs 173,056 bytes of shared memory, each of 2 blocks of an SM has 115,712"),
        (
            changed(block_N=32, num_stages=1),
            256,
            r"needs 128 \+ 30 registers .* acc_o: with 2 blocks .* launched with 128",
        ),
        (changed(block_M=128, threads=256, num_stages=1), 64, "256 threads have 80: acc_s"),
    ],
)
def test_what_does_not_fit_beside_the_others_is_refused_with_the_arithmetic(schedule, head_dim, words):
    with pytest.raises(ScheduleRefused, match=words):
        refuse_unless_safe(Planned(schedule), head_dim)
