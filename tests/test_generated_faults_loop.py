"""Synchronisation deleted in the steady-state loop that masks: no size that is a multiple of the tile enters it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from generated_faults import KERNELS, prove
from once import lowered, proved

from tl_attention.errors import ScheduleRefused

LOOP = re.compile(r"\n( +)for \(int t = 0; .*?\n\1\}\n", re.DOTALL)
SYNCHRONISES = re.compile(r"\.wait\(|\.arrive\(|wait_wgmma<|__sync_thread_partial\(|__named_barrier_arrive\(")
MISSED = r"expected (wait|arrive|sync|signal|products wait)\b|acc_\w of a product is not fenced before what follows it"
# Lines of one turn: for each product two waits and a release, and two more where warpgroups take turns.
LINES = {"best_causal": 8, "ws_seed": 6, "ws_three_stages": 6, "ws_fa3_64x128": 6}


def lines(kernel: str) -> list[int]:
    """Line numbers, from 0, of what synchronises in the first loop of the steady state."""
    source = lowered(KERNELS[kernel]).source
    (loop,) = LOOP.finditer(source)
    first = source.count("\n", 0, loop.start() + 1)
    return [first + n for n, line in enumerate(loop[0].strip("\n").splitlines()) if SYNCHRONISES.search(line)]


@pytest.mark.parametrize("kernel, nth", [(kernel, nth) for kernel, count in LINES.items() for nth in range(count)])
def test_a_line_deleted_in_the_masked_loop_is_missed(kernel, nth):
    code, found = lowered(KERNELS[kernel]), lines(kernel)
    assert len(found) == LINES[kernel]
    text = code.source.splitlines(keepends=True)
    del text[found[nth]]
    with pytest.raises(ScheduleRefused, match=MISSED):
        prove(KERNELS[kernel].schedule, replace(code, source="".join(text)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_as_it_is_generated_passes(kernel):
    assert proved(KERNELS[kernel]).digest
