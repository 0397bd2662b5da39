"""Nothing may be left out of the steady-state loop that masks, which no size enters that is a multiple of the tile."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from code_mutants.reading import prove
from explained import BLOCK_LOOP, explained
from golden_kernels import KERNELS
from mutations import fitting_head_dim, shipped
from once import Given, Kernel, lowered, proved
from tiers import exhaustive, sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant

MASK_LOOP = re.compile(
    r"(for \(int \w+ = 0; \w+ < \d+; \+\+\w+\) \{\s+float condval\w*;\s+if \([^;{]*\) \{\s+condval\w* = -CUDART_INF_F;)"
)
# Each kind of line, and what is said where one is missing.
SYNCHRONISES = {
    "wait": (r"_full\[.*\.wait\(", r"expected wait [KV]_full\["),
    "arrive": (r"_empty\[.*\.arrive\(", r"expected arrive [KV]_empty\["),
    "turn": (r"__sync_thread_partial\(", r"expected sync named barrier\["),
    "pass": (r"__named_barrier_arrive\(", r"expected signal named barrier\["),
    "products": (
        r"wait_wgmma<",
        r"expected products wait \(|acc_\w+ is (?:used|written) before the wait for|is not fenced before",
    ),
    "hold": (r"tl_attention_hold_last<", r"expected hold last exponentials\["),
}


def check(kernel: Kernel) -> None:
    """Checks that the proof refuses the loop without any one of its waits, arrivals, turns, waits for products and holds."""
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
    words = r"operation \d+ of warpgroup \d of block \d is .*, expected (hold|resume)"
    for line in lines:
        source = code.source[: line.start()] + code.source[line.end() :]
        with pytest.raises(ScheduleRefused, match=words):
            prove(schedule, replace(code, source=source))
