"""The kernel as TileLang sees it, held to the statement table and to the Program. Compiles for sm_90a, runs nothing."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import Any

import pytest
from mutations import shipped
from overlap import overlap

from tl_attention.compile import CompiledKernel, compile_kernel
from tl_attention.errors import ScheduleRefused
from tl_attention.kernel.calls import Place
from tl_attention.kernel.generated import ring_buffers, unrolled
from tl_attention.kernel.lowered import check_generated
from tl_attention.kernel import warp_specialized
from tl_attention.kernel.pipelined import attention_kernel
from tl_attention.kernel.trace import specialized_statements, traced_statements
from tl_attention.limits import accumulator_registers, shared_bytes
from tl_attention.lowering import kernel_arguments
from tl_attention.derivation import derive
from tl_attention.schedule import Schedule
from tl_attention.schedule_file import load
from tl_attention.statements import SOURCE, whole

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
    assert len(traced) == len(SOURCE.statements)
    for found, entry in zip(traced, SOURCE.statements):
        assert found.reads == set(entry.reads), entry.name
        assert found.writes == set(entry.writes), entry.name
        assert found.kind in TILELANG_KIND[entry.kind], entry.name


@pytest.mark.parametrize("form", ["overlap", "source order", "three stages"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_specialised_table_is_what_tilelang_traced(form, causal):
    """In the Program's order; the mask only in the loop over boundary blocks, if there is one.

    Vector statements in a row that write the same buffer are parts of one.
    """
    schedule = overlap(form)
    kernel = warp_specialized.attention_kernel(
        head_dim=128, dtype="float16", causal=causal, **kernel_arguments(schedule)
    )
    emitted = [op.statement for op in derive(schedule).consumer if op.kind in ("run", "issue")]
    *boundary, unmasked = specialized_statements(kernel)
    assert len(boundary) <= 1 and (boundary or not causal)
    for loop in (*boundary, unmasked):
        names = [statement for statement in emitted if loop is not unmasked or statement != "mask"]
        parts = [list(group) for _, group in groupby(loop, key=lambda part: (part.kind == "wgmma_gemm", part.writes))]
        assert len(parts) == len(names)
        for part, name in zip(parts, names):
            entry = schedule.table.by_name[name]
            assert set().union(*(found.reads for found in part)) == {whole(buffer) for buffer in entry.reads}, name
            assert part[0].writes == {whole(buffer) for buffer in entry.writes}, name


# Form, causal, kernel options.
VARIANTS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "ping-pong": ("overlap", True, {"ping_pong": True}),
    "dynamic": ("overlap", False, {"ping_pong": True, "cluster": 1, "tile_scheduler": "dynamic"}),
    "registers": ("one warpgroup", False, {"q_operand": "registers", "tile_scheduler": "one_tile"}),
    "three stages": ("three stages", True, {"tile_order": "sections", "k_stages": 1}),
    "three warpgroups": ("three warpgroups", False, {"v_stages": 1}),
    "output through Q": ("one warpgroup", False, {"output": "tma"}),
}


def variant(name: str) -> tuple[Schedule, CompiledKernel]:
    form, causal, options = VARIANTS[name]
    schedule = overlap(form, **options)
    return schedule, compile_kernel(schedule, head_dim=128, dtype="float16", causal=causal)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_specialised_code_runs_the_events_of_its_roles(name):
    """`compile_kernel` proves it; here the loads that the proof reads are counted by hand."""
    schedule, compiled = variant(name)
    elements = {"Q": 64 * 128, "K": schedule.block_N * 128, "V": schedule.block_N * 128}
    warpgroups = schedule.block_M // 64
    place = Place(y=warpgroups, elements=elements, tiles=3, next_tile=lambda tile: tile + 132)
    rows = schedule.block_M * schedule.kernel.cluster
    sizes = {"batch": 2, "heads": 300, "seq_q": rows, "seq_kv": rows + 7 * schedule.block_N}
    blocks = -(-sizes["seq_kv"] // schedule.block_N)
    tiles = 1 if schedule.kernel.tile_scheduler == "one_tile" else 3
    loads = Counter(event.name for event in unrolled(compiled.source)(sizes, place) if event.kind == "load")
    assert loads == {"K": tiles * blocks, "V": tiles * blocks, "Q": tiles * warpgroups}


def test_fixed_sizes_of_the_specialised_kernel_are_proved_too():
    compiled = compile_kernel(overlap(), head_dim=128, dtype="float16", causal=True, sizes=(1, 2, 100, 200))
    assert compiled.shared_bytes >= shared_bytes(overlap(), 128)


EVENT = r"operation \d+ of {} of block 0 is {}, expected {}"
# The variant, what stands in its code (a pattern), what in its place, the reason.
SPECIALISED_FAULTS = {
    "a wait that lets a product go": (
        "ping-pong", r"wait_wgmma<0>", "wait_wgmma<1>",
        EVENT.format("warpgroup 0", r"products wait \(1\)", r"products wait \(0\)"),
    ),
    "a release lost": ("ping-pong", r"K_free\[[^;]*arrive\(rank\);", "", "expected arrive K_free"),
    "a release in one block only": (
        "ping-pong", r"(V_free\[[^;]*arrive)\(rank\w*\);", r"\1(0);",
        r"arrive V_free.* of blocks \(0,\), expected .* of blocks \(0, 1\)",
    ),
    "a release by every lane": (
        "ping-pong", r"if \(tl::tl_shuffle_elect<32>\(\)\) \{(\s+Q_free)", r"{\1", r"arrive Q_free\[0\] \(32\)",
    ),
    "the other parity": (
        "ping-pong", r"(K_full\[[^;]*)\.wait\((.*)\);", r"\1.wait((\2 ^ 1));",
        r"wait K_full\[0\] \(1\), expected .* \(0\)",
    ),
    "a barrier that counts one warp less": (
        "ping-pong", r"K_free\[0\].init\(16\)", "K_free[0].init(15)", r"K_free\[0\] 15",
    ),
    "no fence after the initialisation": (
        "ping-pong", r"tl::fence_barrier_init\(\);", "", "not initialised before anything else",
    ),
    "a cluster that does not start together": (
        "ping-pong", r"tl::cluster_sync\(\);", "", EVENT.format("the producer", ".*", r"sync cluster\[0\]"),
    ),
    "a product left out": ("ping-pong", r"tl::wgmma_rs<", "tl::wgmma_nothing<", "expected mma1"),
    "a product that reads another buffer": (
        "ping-pong", r"(desc_b\w*, )\(\(base_\w+ & 1\) \*", r"\g<1>(1 *",
        r"is mma0 K\[1\] \(0\), expected mma0 K\[0\]",
    ),
    "a load into another buffer": (
        "ping-pong", r"& 1\) \* 22528\)", "& 1) * 0)", "cannot be read: a load into slot 0 of K on K_full",
    ),
    "loads from the first block": (
        "ping-pong", r"\(\(\(blocks_\w+ \* 176\) - \(j \* 176\)\) - 176\)", "(j * 176)", "loads rows",
    ),
    "a load for one block only": (
        "ping-pong", r"\(uint16_t\)\(3\)", "(uint16_t)(1)",
        r"load K.* of blocks \(0,\), expected load .* of blocks \(0, 1\)",
    ),
    "too few bytes": (
        "ping-pong", r"expect_transaction\(45056\)", "expect_transaction(22528)", r"expect K_full\[0\] \(0.5\)",
    ),
    "a producer that does not acquire": (
        "ping-pong", r"V_free\[[^;]*\.wait\(.*\);", "", r"the producer .*expected wait V_free\[0\]",
    ),
    "a turn not waited for": (
        "ping-pong", r"tl::__sync_thread_partial\(\(wg\w* \+ 1\), 256\);", "",
        r"expected sync named barrier\[1\] \(256\)",
    ),
    "the turn of the other": (
        "ping-pong", r"tl::__named_barrier_arrive\(\(2 - wg\w*\), 256\);", "tl::__named_barrier_arrive(1, 256);",
        r"signal named barrier\[1\] \(256\), expected signal named barrier\[2\]",
    ),
    "a barrier more": (
        "ping-pong", r"(Q_full\[[^;]*\.wait\(.*\);)", r"\1\n      tl::__sync_thread_partial(3, 256);",
        r"is sync named barrier\[3\] \(256\)",
    ),
    "a barrier of an unknown kind": (
        "ping-pong", r"(Q_full\[[^;]*\.wait\(.*\);)", r"\1\n      tl::syncthreads_partial(other);",
        "is tl::syncthreads_partial",
    ),
    "rings that start again with every tile": (
        "ping-pong", r"(base\w*) = \(\1 \+ blocks\w*\);", "", r"wait K_free\[0\]|wait K_full\[0\]",
    ),
    "a tile's number not released": (
        "dynamic", r"tile_free\[[^;]*\.arrive\(\);", "", r"expected arrive tile_free\[0\] \(1\)",
    ),
    "a tile's number not waited for": (
        "dynamic", r"tile_full\[[^;]*\.wait\(.*\);", "", r"expected wait tile_full\[0\]",
    ),
    "Q released before it is in registers": (
        "registers", r"(Q_full\[[^;]*\.wait\(.*\);)", r"\1\n      if (tl::tl_shuffle_elect<32>()) {\n Q_free[0].arrive();\n }",
        "expected read Q",
    ),
    "Q released before the output went through it": (
        "output through Q", r"tl::tma_store_wait<0, true>\(\);", "", r"expected stored \(0\)",
    ),
    "an output that is not complete": (
        "output through Q", r"tl::fence_proxy_async\(\);(\s+tl::__sync_thread_partial.*)", "", r"expected fence \(0\)",
    ),
    "a structure that cannot be read": ("ping-pong", r"int turn_\w+ = turn;", "", "cannot be read: name 'turn_"),
}


@pytest.mark.parametrize("name", SPECIALISED_FAULTS)
def test_a_specialised_kernel_with_a_fault_is_refused(name):
    kernel, pattern, replacement, words = SPECIALISED_FAULTS[name]
    schedule, compiled = variant(kernel)
    source, found = re.subn(pattern, replacement, compiled.source, count=1)
    assert found == 1
    with pytest.raises(ScheduleRefused, match=words):
        check_generated(schedule, derive(schedule), source, compiled.shared_bytes, 128)


def test_the_inferred_kernel_has_the_same_statements():
    arguments = kernel_arguments(load("schedules/inferred.yaml"))
    assert arguments["pipeline"] == {"num_stages": 2}
    kernel = attention_kernel(head_dim=128, dtype="float16", causal=False, **arguments)
    assert len(traced_statements(kernel)) == len(SOURCE.statements)


@pytest.mark.parametrize("name,causal", [("seed", True), ("prefetch", False), ("prefetch_late", False)])
def test_the_code_as_generated_is_the_programs(name, causal):
    """`compile_kernel` proves it; here what the proof reads is held to numbers worked out by hand."""
    schedule = shipped()[name]
    program = derive(schedule)
    compiled = compile_kernel(schedule, head_dim=128, dtype="float16", causal=causal)
    assert ring_buffers(compiled.source, compiled.shared_bytes, schedule.block_N * 256) == program.buffers
    for blocks in (program.least_blocks, 8):
        run = unrolled(compiled.source)({"seq_q": 1, "seq_kv": blocks * schedule.block_N})
        kinds = Counter(event.kind for event in run)
        assert kinds["mma0"] == kinds["mma1"] == blocks
        assert Counter(event.name for event in run if event.kind == "load") == {"load_k": blocks, "load_v": blocks}
    assert compiled.shared_bytes == shared_bytes(schedule, 128)
    assert compiled.report.registers >= accumulator_registers(schedule, 128) * 0.8


# What TileLang 0.1.15 generates for the seed, and the races that it must not have.
FAULTS = {
    "a wait that leaves the last load in flight": (
        "tl::cp_async_wait<1>();", "tl::cp_async_wait<3>();", r"mma\d\(\d\) does not wait for load_",
    ),
    "no barrier between the wait and the product": ("__syncthreads();", "", "does not wait for load_"),
    "a ring with a buffer less": (
        "void* V_shared = ((void*)((char*)buf_dyn_shmem + 98304));",
        "void* V_shared = ((void*)((char*)buf_dyn_shmem + 65536));", "1 buffers for load_k, the Program has 2",
    ),
    "a product left out": ("tl::wgmma_rs<", "tl::wgmma_nothing<", "not in the Program's order"),
    "a product not waited for": ("tl::warpgroup_wait<0>();", "tl::warpgroup_wait<1>();", "is not waited for at once"),
    "a structure that cannot be read": ("(seq_kv + 127)", "(unheard_of + 127)", "cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_generated_code_with_a_fault_is_refused(name):
    schedule = shipped()["seed"]
    compiled = compile_kernel(schedule, head_dim=128, dtype="float16", causal=True)
    before, after, words = FAULTS[name]
    assert before in compiled.source
    with pytest.raises(ScheduleRefused, match=words):
        check_generated(
            schedule, derive(schedule), compiled.source.replace(before, after), compiled.shared_bytes, 128
        )


def test_a_loop_that_overwrites_a_buffer_in_use_is_refused():
    schedule = shipped()["prefetch_late"]
    compiled = compile_kernel(schedule, head_dim=128, dtype="float16", causal=False)
    lines = compiled.source.splitlines()
    loop = next(n for n, line in enumerate(lines) if line.startswith("  for (int k"))
    barriers = [n for n in range(loop, len(lines)) if "__syncthreads" in lines[n]]
    for barrier in barriers[:2]:
        source = "\n".join(lines[:barrier] + lines[barrier + 1:])
        with pytest.raises(ScheduleRefused, match="with no barrier between|does not wait for"):
            check_generated(schedule, derive(schedule), source, compiled.shared_bytes, 128)


def test_an_order_for_which_tilelang_waits_too_little_is_refused():
    """V before K in one iteration: the wait before mma0 leaves the K load in flight; on a GPU the result is wrong."""
    label = "pipelined_128x128_t256_n2_0o1s0_1-2o2s0_3-10o3s0_11o4s0_12o5s0_13p_14o0s1"
    with pytest.raises(ScheduleRefused, match=r"mma0\(1\) does not wait for load_k\(1\)"):
        compile_kernel(Schedule.from_label(label), head_dim=128, dtype="float16", causal=False)


def test_fixed_sizes_without_a_steady_state_are_proved_too():
    compiled = compile_kernel(
        shipped()["seed"], head_dim=128, dtype="float16", causal=False, sizes=(1, 2, 100, 200)
    )
    assert compiled.shared_bytes == shared_bytes(shipped()["seed"], 128)


def test_schedules_that_differ_give_different_code_and_equal_ones_the_same():
    seed, split = shipped()["seed"], shipped()["seed"].model_copy(
        update={
            "group": (("load_k",), ("mask",), ("mma0",), *shipped()["seed"].group[2:]),
            "order": (-1, 0, 1, 4, 2, -1, 3), "stage": (-1, 0, 0, 0, 1, -1, 1),
        }
    )
    options = {"head_dim": 128, "dtype": "float16", "causal": True}
    other = shipped()["prefetch_late"]
    assert compile_kernel(seed, **options).fingerprint == compile_kernel(split, **options).fingerprint
    assert compile_kernel(seed, **options).fingerprint != compile_kernel(other, **options).fingerprint
