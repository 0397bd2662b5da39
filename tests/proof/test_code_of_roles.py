"""The warp-specialised kernel as generated runs its roles' events, and its masked loop needs each of its lines."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from code_events import role_events
from code_mutants.reading import prove
from explained import BLOCK_LOOP, explained
from golden_kernels import KERNELS
from mutations import fitting_head_dim, shipped
from once import Given, Kernel, lowered, proved, reading
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.tiling import ceildiv
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.events import Process
from tl_attention.schedule.files.named import resolve

# Multicast, each order of tiles, and each place of Q, P and the output.
KINDS = (
    "best",
    "best_causal",
    "one_tile",
    "sections",
    "ws_three_stages",
    "q_registers",
    "p_shared",
    "output_tma",
    "short",
)


@pytest.mark.parametrize("name", sampled(KINDS, ["one_tile", "p_shared"]))
def test_the_specialised_code_runs_the_events_of_its_roles(name):
    """The code is proved, and the loads that the proof reads are counted by hand."""
    kernel = KERNELS[name]
    schedule = kernel.schedule
    assert proved(kernel).digest
    rows = schedule.block_M * schedule.kernel.cluster
    sizes = Sizes(2, 300, rows, rows + 7 * schedule.block_N)
    blocks = ceildiv(sizes.seq_kv, schedule.block_N)
    tiles = 1 if schedule.kernel.tile_scheduler == "one_tile" else 3
    events = role_events(schedule, lowered(kernel), sizes, tiles=3)
    loads = Counter(event.name for event in events[Process(0, -1, 1)] if event.kind == "load")
    assert loads == {"K": tiles * blocks, "V": tiles * blocks, "Q": tiles * (schedule.block_M // 64)}


def test_fixed_sizes_of_the_specialised_kernel_are_proved_too():
    kernel = KERNELS["best, fixed"]
    assert proved(kernel).digest
    code = lowered(kernel)
    source = code.source.replace("wait_wgmma<0>", "wait_wgmma<1>", 1)
    assert source != code.source
    with pytest.raises(ScheduleRefused, match=r"acc_s is used before the wait for the product into it"):
        reading.prove(kernel.schedule, replace(code, source=source))


# Its masked loop runs twice in some tiles of large grids only.
WIDE = "warp_specialized_64x192_t128_n2_desc_0p_1-2o0s0_3-10o2s0_11o3s0_12o4s0_13p_14o1s1"


@exhaustive
def test_a_line_that_only_a_grid_reaches_is_proved_in_all_of_its_states():
    kernel = Given(resolve(WIDE).schedule, Variant(128, "bfloat16", CAUSAL))
    assert proved(kernel).digest
    code = lowered(kernel)
    parity = re.compile(r"(K_full\[\(\(\(\w+ \+ t\) \+ 1\) & 1\)\]\.wait\(.* & 3\) >> )1\)\);")
    faulty, found = parity.subn(r"\g<1>2));", code.source)
    assert found == 1
    with pytest.raises(ScheduleRefused, match=r"the value of wait K_full of warpgroup \d of block \d is 0, expected"):
        reading.prove(kernel.schedule, replace(code, source=faulty))


# Iterations that still run masked for a statement that lags: Rescale(t-1) of the seed.
LAGS = {"best_causal": 0, "best": 0, "ws_seed": 1}


@pytest.mark.parametrize("name", sampled(LAGS, ["best_causal"]))
@pytest.mark.parametrize("seq_q,seq_kv", [(1, 1), (128, 128), (256, 1000), (700, 700), (896, 2000)])
def test_only_blocks_with_hidden_keys_are_masked(name, seq_q, seq_kv):
    """The masks are counted that each warpgroup of a grid's first tiles applies."""
    schedule = shipped()[name]
    block_N, rows = schedule.block_N, schedule.block_M * schedule.kernel.cluster
    code = lowered(Given(schedule, Variant(128, "float16", CAUSAL)))
    row_tiles = ceildiv(seq_q, rows)
    events = role_events(schedule, code, Sizes(1, 1, seq_q, seq_kv), clusters=row_tiles)
    for process, found in events.items():
        if process.warpgroup < 0:
            continue
        # Longest tiles first.
        tile, rank = divmod(process.block, schedule.kernel.cluster)
        row_tile = row_tiles - 1 - tile
        first_row = row_tile * rows + rank * schedule.block_M + 64 * process.warpgroup
        blocks = ceildiv(min(seq_kv, (row_tile + 1) * rows + seq_kv - seq_q), block_N)
        seen_by_all = min(first_row + seq_kv - seq_q + 1, seq_kv)
        hidden = sum((block + 1) * block_N > seen_by_all for block in range(blocks))
        # The last block comes first, in the prologue, which masks it in any case.
        assert sum(event.kind == "mask" for event in found) == min(max(hidden + LAGS[name], 1), blocks), process


MASK_LOOP = re.compile(
    r"(for \(int \w+ = 0; \w+ < \d+; \+\+\w+\) \{\s+float condval\w*;\s+if \([^;{]*\) \{\s+condval\w* = -CUDART_INF_F;)"
)
# Each kind of line, and what is said where one is missing.
SYNCHRONISES = {
    "wait": (r"_full\[.*\.wait\(", r"(?:expected|before) wait [KV]_full\["),
    "arrive": (r"_empty\[.*\.arrive\(", r"(?:expected|before) arrive [KV]_empty\["),
    "turn": (r"__sync_thread_partial\(", r"(?:expected|before) sync named barrier\["),
    "pass": (r"__named_barrier_arrive\(", r"(?:expected|before) signal named barrier\["),
    "products": (
        r"wait_wgmma<",
        r"expected products wait \(|acc_\w+ is (?:used|written) before the wait for|is not fenced before",
    ),
    "hold": (r"tl_attention_hold_last<", r"(?:expected|before) hold last exponentials\["),
}


def check(kernel: Kernel) -> None:
    """Checks that the proof refuses the loop without any one of its lines of SYNCHRONISES."""
    schedule = kernel.schedule
    assert proved(kernel).digest
    code = lowered(kernel)
    source = code.source
    masked, unmasked = BLOCK_LOOP.finditer(source)
    assert MASK_LOOP.search(masked[0]) and not MASK_LOOP.search(unmasked[0])
    # One of each kind for each ring, and as many waits for products as products; an arrival stands once for a cluster.
    found = {kind: len(re.findall(pattern, masked[0])) for kind, (pattern, _) in SYNCHRONISES.items()}
    turns = schedule.kernel.ping_pong
    held = [op for op in explained(schedule)["Steady state"].operations if op.kind == "hold"]
    assert found == {"wait": 2, "arrive": 2, "turn": turns, "pass": turns, "products": 2, "hold": len(held)}
    for pattern, words in SYNCHRONISES.values():
        for line in re.finditer(rf"^.*{pattern}.*\n", masked[0], re.MULTILINE):
            deleted = source[: masked.start() + line.start()] + source[masked.start() + line.end() :]
            with pytest.raises(ScheduleRefused, match=words):
                prove(schedule, replace(code, source=deleted))


LOOPS = ("best_causal", "fa3_overlap", "short", "ws_fa3_64x128", "ws_seed", "ws_three_stages")


@pytest.mark.parametrize("name", sampled(LOOPS, ["best_causal"]))
def test_nothing_of_the_masked_loop_may_be_left_out(name: str) -> None:
    check(KERNELS[name])


@exhaustive
@pytest.mark.parametrize("name", [name for name, of in shipped().items() if of.lowering == "warp_specialized"])
def test_nothing_of_the_masked_loop_of_a_shipped_schedule_may_be_left_out(name: str) -> None:
    check(Given(shipped()[name], Variant(fitting_head_dim(name), "float16", CAUSAL)))


HELD = r"^.*tl_attention_(?:hold|hold_last|resume)(?:<[\d, ]+>)?\((?:acc_s|scores_max), .*\n"


@pytest.mark.parametrize("name,count", [("best_causal", 2), ("waits_exact", 6), ("waits_free", 0)])
def test_no_hold_of_the_generated_code_may_be_left_out(name: str, count: int) -> None:
    """Holds are in the loop over boundary blocks, and in the other loop."""
    schedule, code = KERNELS[name].schedule, lowered(KERNELS[name])
    lines = list(re.finditer(HELD, code.source, re.MULTILINE))
    assert len(lines) == count
    words = r"warpgroup \d of block \d (does|ends) .*(hold|resume)|the index of hold exponentials of warpgroup"
    for line in lines:
        source = code.source[: line.start()] + code.source[line.end() :]
        with pytest.raises(ScheduleRefused, match=words):
            prove(schedule, replace(code, source=source))
