"""mma_sync refuses by rules, each with its words and its key."""

from typing import Any

import pytest
import yaml
from mma_sync_schedules import EAGER, SHIPPED, changed
from mutations import SCHEDULES, shipped
from pydantic import ValidationError

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.mask import FULL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation
from tl_attention.schedule.schedule import Schedule


def test_others_have_no_loads_of_fragments():
    best = shipped()["best"]
    with pytest.raises(
        ValidationError, match="no statement frag_k in this schedule: lowering warp_specialized has none"
    ):
        Schedule(**best.model_dump() | {"group": [*best.group[:-1], [*best.group[-1], "frag_k"]]})


def whole_file(name: str) -> dict[str, Any]:
    return yaml.safe_load((SCHEDULES / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_fits_the_schema(name, validator):
    assert validator.is_valid(whole_file(name))


@pytest.mark.parametrize("size", [8, 40, 72, 96, 192, 256, "192/128"])
def test_it_computes_head_sizes_64_and_128(size):
    with pytest.raises(
        ScheduleRefused, match=f"^head_dim {size}, which lowering mma_sync does not compute, expected one of 64, 128$"
    ):
        refuse_unless_safe(Planned(SHIPPED["mma_sync_d64"]), size)


def test_chunks_of_mma0_fill_the_head_size():
    with pytest.raises(ScheduleRefused, match=r"^split\.mma0: 16 .* = 64 columns, expected head_dim 128$") as refused:
        refuse_unless_safe(Planned(SHIPPED["mma_sync_d64"]), 128)
    assert refused.value.key == ("split", "mma0")


def test_all_threads_copy_whole_rows():
    with pytest.raises(
        ScheduleRefused, match="384 threads do not fit a KV block of 64 keys: its 1024 copies of 16 bytes"
    ):
        refuse_unless_safe(Planned(changed(SHIPPED["mma_sync"], block_M=192, threads=384)), 128)


def test_registers_that_there_are_not_are_refused_with_all_that_need_some():
    words = (
        "^needs 432 registers .* 128 threads have 255: acc_s 128, acc_o 256, Q 16, K 16, row vectors 16; use a smaller"
    )
    with pytest.raises(ScheduleRefused, match=words):
        refuse_unless_safe(Planned(changed(block_M=256)), 128)


@pytest.mark.parametrize("name,there", [("softcap", {"softcap"}), ("softcap, sinks", {"softcap", "Sinks"})])
def test_a_softcap_and_sinks_are_refused(name, there):
    lowering = lowering_of(EAGER)
    with pytest.raises(ScheduleRefused, match=f"^{name}, which lowering mma_sync does not compute$"):
        lowering.check_variant(EAGER, Variant(128, "float16", FULL, optional=frozenset(there)))
    lowering.check_variant(EAGER, Variant(128, "float16", FULL, optional=frozenset({"LSE"})))
    best = shipped()["best"]
    lowering_of(best).check_variant(best, Variant(128, "float16", FULL, optional=frozenset(there)))


def test_a_wait_stands_between_its_load_and_the_first_who_reads_it():
    for place in ("max_prev", "row_max", "frag_v.0", "mma1.3", "load_v", "frag_k.0"):
        refuse_unless_safe(Planned(changed(wait_before={"load_k": place})), 128)
    with pytest.raises(ScheduleRefused) as refused:
        derive(changed(wait_before={"load_k": "load_k"}))
    words = str(refused.value)
    assert words.startswith(
        "wait_before.load_k: load_k does not come between the issue of load_k(t) and frag_k.0(t-1), which reads it: "
        "expected one of load_v, frag_k.0, max_prev,"
    )
    assert refused.value.key == ("wait_before", "load_k")


@pytest.mark.parametrize("place,lag", [("frag_k.0", 1), ("load_v", 1), ("mma1.0", 0), ("max_prev", 0)])
def test_a_wait_may_stand_an_iteration_before_the_read(place, lag):
    operations = derive(changed(wait_before={"load_k": place})).consumer
    asked = operations.index(Operation("wait", "load_k", lag))
    behind = next(op for op in operations[asked:] if op.kind in ("run", "issue"))
    assert behind.statement == place
