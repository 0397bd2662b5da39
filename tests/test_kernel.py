"""The kernel as TileLang sees it, held to the statement table and to the Program. Compiles for sm_90a, runs nothing."""

from __future__ import annotations

import pytest
from mutations import shipped

from tl_attention.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.kernel.attention import attention_kernel
from tl_attention.kernel.lowered import LoweredLoop, check_lowered, lowered_loop
from tl_attention.kernel.trace import traced_statements
from tl_attention.limits import accumulator_registers, shared_bytes
from tl_attention.lowering import kernel_arguments
from tl_attention.problem import AttentionShape
from tl_attention.program import derive
from tl_attention.schedule_file import load
from tl_attention.statements import RING, STATEMENTS
from tl_attention.tiling import kv_blocks

TILELANG_KIND = {"load": {"copy"}, "product": {"gemm"}, "vector": {"copy", "fill", "parallel", "reduce"}}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [None, (1, 2, 256, 512)])
@pytest.mark.parametrize("kv_order", ["ascending", "descending"])
@pytest.mark.parametrize("dtype,head_dim", [("float16", 128), ("bfloat16", 64)])
def test_the_statement_table_is_what_tilelang_traced(causal, sizes, kv_order, dtype, head_dim):
    schedule = shipped()["seed"].model_copy(update={"kv_order": kv_order})
    kernel = attention_kernel(
        head_dim=head_dim, dtype=dtype, causal=causal, sizes=sizes, **kernel_arguments(schedule)
    )
    traced = traced_statements(kernel)
    assert len(traced) == len(STATEMENTS)
    for found, entry in zip(traced, STATEMENTS):
        assert found.reads == set(entry.reads), entry.name
        assert found.writes == set(entry.writes), entry.name
        assert found.kind in TILELANG_KIND[entry.kind], entry.name


def test_the_inferred_kernel_has_the_same_statements():
    arguments = kernel_arguments(load("schedules/inferred.yaml"))
    assert arguments["pipeline"] == {"num_stages": 2}
    kernel = attention_kernel(head_dim=128, dtype="float16", causal=False, **arguments)
    assert len(traced_statements(kernel)) == len(STATEMENTS)


@pytest.mark.parametrize("name,causal", [("seed", True), ("prefetch", False), ("prefetch_late", False)])
def test_the_loop_as_lowered_is_the_programs(name, causal):
    """Buffers, trips of the steady state, shared memory and registers: predicted, and found in the generated code."""
    schedule = shipped()[name]
    program = derive(schedule)
    compiled = compile_kernel(schedule, head_dim=128, dtype="float16", causal=causal)
    slot = schedule.block_N * 128 * 2
    loop = lowered_loop(compiled.source, compiled.shared_bytes, dict.fromkeys(RING, slot))
    assert loop.buffers == program.buffers
    for seq_q, seq_kv in ((128, 128), (300, 1000), (1, 4096)):
        shape = AttentionShape(1, 1, seq_q, seq_kv, 128, causal=causal)
        blocks = kv_blocks(shape, schedule.block_M, schedule.block_N, 0, program.least_blocks)
        assert loop.trips_at(seq_q=seq_q, seq_kv=seq_kv) == blocks - program.least_blocks
    assert compiled.shared_bytes == shared_bytes(schedule, 128)
    assert compiled.report.registers >= accumulator_registers(schedule, 128) * 0.8


def test_a_kernel_with_other_buffers_than_the_program_is_not_passed_off_as_proved():
    program = derive(shipped()["seed"])
    with pytest.raises(InputError, match="TileLang made 1 buffers for load_k, the Program has 2"):
        check_lowered(program, LoweredLoop({"load_k": 1, "load_v": 2}, "0"), "seed")


def test_schedules_that_differ_give_different_code_and_equal_ones_the_same():
    seed, split = shipped()["seed"], shipped()["seed"].model_copy(
        update={
            "group": (("load_k",), ("mask",), ("mma0",), *shipped()["seed"].group[2:]),
            "order": (-1, 0, 1, 4, 2, -1, 3), "stage": (-1, 0, 0, 0, 1, -1, 1),
        }
    )
    options = {"head_dim": 128, "dtype": "float16", "causal": True}
    assert compile_kernel(seed, **options).fingerprint == compile_kernel(split, **options).fingerprint
    assert compile_kernel(seed, **options).fingerprint != compile_kernel(shipped()["prefetch_late"], **options).fingerprint
