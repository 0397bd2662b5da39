"""The warp-specialised kernel as generated, held to the events of its roles. Compiles for sm_90a, runs nothing."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from explained import BLOCK_LOOP, explained
from generated_kernels import KERNELS, built
from mutations import shipped
from overlap import overlap
from tl_attention.proof.generated.reader import unrolled

from tl_attention.build.compile import compile_kernel
from tl_attention.errors import ScheduleRefused
from tl_attention.hardware.device import HOPPER
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.tiling import ceildiv
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.proof.generated.calls import Thread


@pytest.mark.parametrize("name", KERNELS)
def test_the_specialised_code_runs_the_events_of_its_roles(name):
    """`compile_kernel` proves it; here the loads that the proof reads are counted by hand."""
    schedule, compiled = built(name)
    elements = {"Q": 64 * 128, "K": schedule.block_N * 128, "V": schedule.block_N * 128}
    warpgroups = schedule.block_M // 64
    thread = Thread(y=warpgroups, elements=elements, tiles=3, next_tile=lambda tile: tile + HOPPER.sms)
    rows = schedule.block_M * schedule.kernel.cluster
    sizes = {"batch": 2, "heads": 300, "seq_q": rows, "seq_kv": rows + 7 * schedule.block_N}
    blocks = ceildiv(sizes["seq_kv"], schedule.block_N)
    tiles = 1 if schedule.kernel.tile_scheduler == "one_tile" else 3
    loads = Counter(event.name for event in unrolled(compiled.source)(sizes, thread) if event.kind == "load")
    assert loads == {"K": tiles * blocks, "V": tiles * blocks, "Q": tiles * warpgroups}


def test_fixed_sizes_of_the_specialised_kernel_are_proved_too():
    schedule = overlap()
    compiled = compile_kernel(schedule, Variant(128, "float16", CAUSAL, sizes=Sizes(1, 2, 100, 200)))
    source = compiled.source.replace("wait_wgmma<0>", "wait_wgmma<1>", 1)
    assert source != compiled.source
    with pytest.raises(ScheduleRefused, match=r"is products wait \(1\), expected products wait \(0\)"):
        lowering_of(schedule).check_generated(schedule, derive(schedule), replace(compiled.generated, source=source))


MASK_LOOP = re.compile(
    r"(for \(int \w+ = 0; \w+ < \d+; \+\+\w+\) \{\s+float condval\w*;\s+if \([^;{]*\) \{\s+condval\w* = -CUDART_INF_F;)"
)
MARK = 9  # a named barrier that no kernel has


# Iterations that still run masked for a statement that lags: Rescale(t-1) of the seed.
@pytest.mark.parametrize("name,lag", [("best_causal", 0), ("best", 0), ("ws_seed", 1)])
@pytest.mark.parametrize("seq_q,seq_kv", [(1, 1), (128, 128), (256, 1000), (700, 700), (896, 2000)])
def test_only_blocks_with_hidden_keys_are_masked(name, lag, seq_q, seq_kv):
    """Each mask of the generated code is marked with an event, and those of a warpgroup's tiles are counted."""
    schedule = shipped()[name]
    block_M, block_N, cluster = schedule.block_M, schedule.block_N, schedule.kernel.cluster
    compiled = compile_kernel(schedule, Variant(128, "float16", CAUSAL))
    source, masks = MASK_LOOP.subn(rf"tl::__sync_thread_partial({MARK}, 128);\n\1", compiled.source)
    assert masks >= 2
    sizes = {"batch": 1, "heads": 1, "seq_q": seq_q, "seq_kv": seq_kv}
    clusters, rows = HOPPER.sms // cluster, block_M * cluster
    row_tiles = ceildiv(seq_q, rows)
    for tile in range(row_tiles):
        for rank, warpgroup in product(range(cluster), range(block_M // 64)):
            thread = Thread(
                y=warpgroup, block=tile * cluster + rank, rank=rank, tiles=1, next_tile=lambda tile: tile + clusters
            )
            events = unrolled(source)(sizes, thread)
            # Longest tiles first.
            row_tile = row_tiles - 1 - tile
            first_row = row_tile * rows + rank * block_M + 64 * warpgroup
            blocks = ceildiv(min(seq_kv, (row_tile + 1) * rows + seq_kv - seq_q), block_N)
            seen_by_all = min(first_row + seq_kv - seq_q + 1, seq_kv)
            hidden = sum((block + 1) * block_N > seen_by_all for block in range(blocks))
            found = sum((event.kind, event.index) == ("sync", MARK) for event in events)
            # The last block comes first, in the prologue, which masks it in any case.
            assert found == min(max(hidden + lag, 1), blocks), (tile, rank, warpgroup)


MASKED = [name for name, schedule in shipped().items() if schedule.lowering == "warp_specialized"]
SYNCHRONISES = {
    "wait": r"_full\[.*\.wait\(",
    "arrive": r"_empty\[.*\.arrive\(",
    "turn": r"__sync_thread_partial\(",
    "pass": r"__named_barrier_arrive\(",
    "products": r"wait_wgmma<",
    "hold": r"tl_attention_hold_last<",
}


@pytest.mark.parametrize("name", MASKED)
def test_nothing_of_the_loop_over_masked_blocks_may_be_left_out(name):
    """Each wait, arrival, turn, wait for products and hold of it is deleted in turn."""
    schedule = shipped()[name]
    compiled = compile_kernel(schedule, Variant(128, "float16", CAUSAL))
    source, program = compiled.source, derive(schedule)
    masked, unmasked = BLOCK_LOOP.finditer(source)
    assert MASK_LOOP.search(masked[0]) and not MASK_LOOP.search(unmasked[0])
    # One of each kind for each ring, and as many waits for products as products; an arrival stands once for a cluster.
    found = {kind: len(re.findall(pattern, masked[0])) for kind, pattern in SYNCHRONISES.items()}
    turns = schedule.kernel.ping_pong
    held = [op for op in explained(schedule)["Steady state"].operations if op.kind == "hold"]
    assert found == {"wait": 2, "arrive": 2, "turn": turns, "pass": turns, "products": 2, "hold": len(held)}
    for pattern in SYNCHRONISES.values():
        for line in re.finditer(rf"^.*{pattern}.*\n", masked[0], re.MULTILINE):
            deleted = source[: masked.start() + line.start()] + source[masked.start() + line.end() :]
            with pytest.raises(ScheduleRefused, match=r"operation \d+ of warpgroup 0 of block 0 is "):
                lowering_of(schedule).check_generated(schedule, program, replace(compiled.generated, source=deleted))
