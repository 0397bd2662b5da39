"""mma_sync refuses by rules, each with its words and its key."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from mma_sync_schedules import EAGER, SHIPPED, changed
from mutations import SCHEDULES, shipped
from pydantic import ValidationError

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.mask import FULL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

# Of a file that says `base: mma_sync/eager`: its lines, and the error.
REFUSED = {
    "rows for each warp": (
        "block_M: 192\nthreads: 256",
        "threads: 256 threads do not fit block_M 192: each of 8 warps computes 16 rows at a time, so expected block_M to be "
        "a multiple of 128",
    ),
    "keys of mma1": ("split: {mma1: [16, 16, 16, 32]}", "split.mma1: 80 columns in total, expected block_N 64"),
    "an option of warp_specialized": (
        "kernel: {cluster: 1}",
        "kernel.cluster: only lowering warp_specialized takes it, remove it from lowering mma_sync",
    ),
    "another": ("kernel: {ping_pong: true}", "kernel.ping_pong: only lowering warp_specialized takes it, remove it"),
    "of the softmax": ("softmax: {row_max: chains}", "softmax.row_max: only lowering warp_specialized takes it"),
    "a wait for a product": (
        "wait_before: {mma1: exp}",
        "wait_before.mma1: only lowering warp_specialized takes it, remove it from lowering mma_sync",
    ),
    "a release": ("release_before: {load_k: exp}", "release_before: only lowering warp_specialized takes it"),
    "a chunk that is none": (
        "wait_before: {load_k: mma0}",
        "wait_before.load_k: no statement mma0 in this schedule: split.mma0",
    ),
    "fragments are cut with their product": (
        "wait_before: {load_k: frag_k}",
        "wait_before.load_k: no statement frag_k in this schedule: split.mma0 cuts it into frag_k.0 to frag_k.7",
    ),
    "Q stays in registers": (
        "kernel: {q_operand: registers}",
        "group[1]: no statement frag_q.0 in this schedule: lowering mma_sync has none with these options",
    ),
    "buffers that the place decides": (
        "kernel: {k_stages: 1}",
        "kernel.k_stages: load_k has a position, which says how many buffers it fills: expected -1 for it, or no k_stages",
    ),
    "a fused statement": (
        "wait_before: {load_k: max_init}",
        "wait_before.load_k: max_init has no place of its own here, expected another statement",
    ),
}
# Options of this lowering alone, in a file that says `base: best`.
REFUSED_ELSEWHERE = {
    "kernel: {swizzle: false}": "kernel.swizzle: only lowering mma_sync takes it, remove it from lowering warp_specialized",
    "kernel: {ldmatrix: x2}": "kernel.ldmatrix: only lowering mma_sync takes it",
    "split: {mma0: [64, 64]}": "split.mma0: only lowering mma_sync takes it",
    "wait_before: {load_k: exp.0}": "wait_before.load_k: only lowering mma_sync takes it",
}


def error_of(tmp_path: Path, base: str, text: str) -> str:
    """Returns the error of a file of this base, with its line and its key in front."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: {base}\n{text}\n")
    with pytest.raises(InputError) as error:
        load(file)
    assert "\n" not in str(error.value)
    return str(error.value).partition(".yaml:")[2].partition(": ")[2]


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_take_is_refused_in_one_line(name, tmp_path):
    text, words = REFUSED[name]
    assert words in error_of(tmp_path, "mma_sync/eager", text)


@pytest.mark.parametrize("text", REFUSED_ELSEWHERE)
def test_others_do_not_take_its_options(text, tmp_path):
    assert REFUSED_ELSEWHERE[text] in error_of(tmp_path, "best", text)


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
