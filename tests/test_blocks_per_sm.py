"""Thread blocks share an SM: each may take only its part, and the kernel is made and proved for so many blocks."""

from __future__ import annotations

import pytest
from code_mutants.kernels import Kernel
from golden_kernels import KERNELS
from mutations import shipped
from once import lowered, proved
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.program.planned import Planned
from tl_attention.proof.code.host_plan import parse_host_source
from tl_attention.schedule.schedule import Schedule
from tl_attention.show.explain import explain

SHORT = shipped()["short"]
# The kernel, its thread blocks, and of how many on an SM ptxas gives them the registers.
MADE = {
    "short": (KERNELS["short"], 264, 2),
    "short, asked": (KERNELS["short, asked"], 264, 2),
    "three_blocks, asked": (KERNELS["three_blocks, asked"], 396, 3),
    "of 114 SMs": (Kernel("short", sms=114), 228, 2),
    "wide": (Kernel("short_wide", head_dim=256), 132, 1),
}


@pytest.mark.parametrize("name", sampled(MADE, ["short", "three_blocks, asked"]))
def test_a_kernel_is_made_and_proved_for_as_many(name):
    kernel, grid, blocks = MADE[name]
    code = lowered(kernel)
    plan = parse_host_source(code.host_source)
    assert plan.grid[0].at({}) == grid and f"__launch_bounds__(256, {blocks})" in code.source
    assert proved(kernel).digest


@exhaustive
def test_a_block_for_each_tile_may_share_its_sm_too():
    kernel = Kernel("experiments/short/one_tile")
    code = lowered(kernel)
    assert parse_host_source(code.host_source).grid[0].at({"batch": 8, "heads": 32, "seq_q": 65}) == 512
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
    file.with_suffix(".yaml").write_text(f"base: short\nkernel: {{{options}}}\n")
    kernel = Kernel(str(file), causal=True, sms=sms)
    code = lowered(kernel)
    assert parse_host_source(code.host_source).grid[0].at({}) == grid
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


def test_explain_and_label_have_it():
    text = explain(Planned(SHORT))
    assert "shared memory: 115,712 of 115,712 bytes" in text and "registers: 122 of 232 for fragments" in text
    assert "* kernel.blocks_per_sm 2: 2 thread blocks share an SM" in text
    assert "  kernel.blocks_per_sm 1: a thread block has an SM to itself" in explain(Planned(shipped()["best"]))
    assert Schedule.from_label(SHORT.label) == SHORT and "kernel.blocks_per_sm=2" in SHORT.label
