"""The facts of a loop stand in its Table: limits, mbarriers, names and messages follow from it."""

from dataclasses import replace

import pytest
from mutations import shipped

from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.warp_specialized.dialect import mbarrier_pairs
from tl_attention.program.limits import check_fits, fragment_registers, shared_bytes, shared_text
from tl_attention.program.planned import Planned
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.attention import FRAGMENTS, SOURCE
from tl_attention.schedule.loop.loops import CUT_SIZES, LOOPS, NAMES, NUMBER, stages_option
from tl_attention.schedule.loop.table import Buffer, Table, whole
from tl_attention.schedule.options import KernelOptions, Releases, Split, Waits
from tl_attention.schedule.schedule import Schedule


def with_buffers(monkeypatch: pytest.MonkeyPatch, schedule: Schedule, *more: Buffer) -> Schedule:
    """Returns the schedule, whose loop has these buffers besides."""
    table = schedule.dialect.table
    changed = Dialect(**vars(schedule.dialect) | {"table": replace(table, buffers=(*table.buffers, *more))})
    monkeypatch.setattr(Keys, "dialect", changed)
    return schedule


def test_a_buffer_more_is_counted_wherever_buffers_are(monkeypatch):
    best = shipped()["best"]
    least, registers = shared_bytes(Planned(best), 64), fragment_registers(best, 64)
    with_buffers(
        monkeypatch,
        best,
        Buffer("dO_shared", "resident", "block_M", "head_dim_v", 2),
        Buffer("dP", "fragment", "block_M", "block_N", 4),
        Buffer("D", "fragment", "block_M", 1, 4),
    )
    assert shared_bytes(Planned(best), 64) == least + 128 * 64 * 2
    assert fragment_registers(best, 64) == {**registers, "dP": 88, "row vectors": registers["row vectors"] + 2}
    assert mbarrier_pairs(Planned(best)) == {"Q": 2, "dO": 2, "K": 2, "V": 2}
    assert shared_text(best, 64, Planned(best).rings) == (
        "(2 * block_M 128 + (2 + 2 buffers) * block_N 176) * head_dim 64 * 2"
    )
    takes = lowering_of(best).resources(Planned(best), 128)
    with pytest.raises(
        ValueError, match=r"needs 296 registers .* acc_s 88, acc_s_cast 44, acc_o 64, dP 88, row vectors"
    ):
        check_fits(Schedule(**best.model_dump() | {"num_stages": 1}), 128, replace(takes, shared_bytes=0))


def test_row_vectors_and_tiles_of_other_bytes_are_added_up_apart(monkeypatch):
    best = shipped()["best"]
    with_buffers(monkeypatch, best, Buffer("LSE_shared", "resident", "block_N", 1, 4))
    assert shared_text(best, "192/128", Planned(best).rings) == (
        "((block_M 128 + 2 buffers * block_N 176) * head_dim 192 + 2 buffers * block_N 176 * head_dim_v 128) * 2 + "
        "block_N 176 * 4"
    )


@pytest.mark.parametrize("table", LOOPS.values(), ids=LOOPS)
def test_every_buffer_that_statements_touch_has_its_size(table: Table):
    touched = {buffer for s in table.statements for buffer in (*s.reads, *s.writes)}
    inputs = {buffer for load in table.loads for buffer in table.by_name[load].reads}
    assert touched - inputs == {buffer.name for buffer in table.buffers}
    assert {buffer.name for buffer in table.buffers if buffer.place == "ring"} == {*table.rings}
    written = {whole(buffer) for s in table.statements if s.kind == "product" for buffer in s.writes}
    assert {*table.accumulators} == written


def test_names_and_numbers_are_those_of_the_tables():
    assert NAMES[: len(SOURCE.names) + len(FRAGMENTS)] == (*SOURCE.names, *FRAGMENTS)
    assert {*NAMES} - {*FRAGMENTS} == {name for table in LOOPS.values() for name in table.names}
    assert [NUMBER[name] for name in NAMES] == [*range(len(NAMES))]
    loads = dict.fromkeys(load for table in LOOPS.values() for load in table.loads)
    products = dict.fromkeys(name for table in LOOPS.values() for name in table.products)
    assert [*Waits.model_fields] == [*loads, *products] and [*Releases.model_fields] == [*loads]
    assert [*Split.model_fields] == [*CUT_SIZES]
    assert {*map(stages_option, loads)} <= {*KernelOptions.model_fields}
