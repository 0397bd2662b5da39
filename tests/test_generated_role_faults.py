"""Faults put into the generated code of warp-specialised kernels: each is refused, in words that name it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from generated_faults import prove
from generated_kernels import KERNELS
from once import lowered

from tl_attention.errors import ScheduleRefused

# The kernel, what stands in its code (a pattern), what in its place, the reason.
SPECIALISED_FAULTS = {
    "a wait that lets a product go": (
        "ping-pong",
        r"wait_wgmma<0>",
        "wait_wgmma<1>",
        r"line \d+: acc_s of a product is not fenced before what follows it",
    ),
    "a release lost": ("ping-pong", r"K_empty\[[^;]*arrive\(rank\);", "", "expected arrive K_empty"),
    "a release in one block only": (
        "ping-pong",
        r"(V_empty\[[^;]*arrive)\(rank\w*\);",
        r"\1(0);",
        r"arrive V_empty.* of blocks \(0,\), expected .* of blocks \(0, 1\)",
    ),
    "a release by every lane": (
        "ping-pong",
        r"if \(tl::tl_shuffle_elect<32>\(\)\) \{(\s+Q_empty)",
        r"{\1",
        r"arrive Q_empty\[0\] \(32\)",
    ),
    "the other parity": (
        "ping-pong",
        r"(K_full\[[^;]*)\.wait\((.*)\);",
        r"\1.wait((\2 ^ 1));",
        r"wait K_full\[0\] \(1\), expected .* \(0\)",
    ),
    "a barrier that counts one warp less": (
        "ping-pong",
        r"K_empty\[0\].init\(16\)",
        "K_empty[0].init(15)",
        r"K_empty\[0\] 15",
    ),
    "no fence after the initialisation": (
        "ping-pong",
        r"tl::fence_barrier_init\(\);",
        "",
        r"starts with init Q_full\[0\] .* \(16\), sync \(0\)",
    ),
    "a cluster that does not start together": (
        "ping-pong",
        r"tl::cluster_sync\(\);",
        "",
        r"the producer of block 0 starts with .* init fence \(0\), sync \(0\), fewer registers",
    ),
    "a product left out": (
        "ping-pong",
        r"((?s:.*)\n) *tl::warpgroup_arrive\(\);\n"
        r" *#.*\n *for \(int ki_\d+ .*\n *tl::wgmma_rs<.*\n *\}\n *tl::warpgroup_commit_batch\(\);\n",
        r"\1",
        r"expected product V\[0\]",
    ),
    "a product of an unknown kind": (
        "ping-pong",
        r"tl::wgmma_rs<",
        "tl::wgmma_nothing<",
        r"cannot be read: line \d+: 'tl::wgmma_nothing<.*' is nothing that is known",
    ),
    "a product that reads another buffer": (
        "ping-pong",
        r"(desc_b\w*, )\(\(base_\w+ & 1\) \*",
        r"\g<1>(1 *",
        r"is product K\[1\] \(0\), expected product K\[0\]",
    ),
    "a load into another buffer": (
        "ping-pong",
        r"& 1\) \* 22528\)",
        "& 1) * 0)",
        r"a load into slot 0 of K on \[\('K_full', 1\)\]",
    ),
    "loads from the first block": (
        "ping-pong",
        r"\(\(\(blocks_\w+ \* 176\) - \(j \* 176\)\) - 176\)",
        "(j * 176)",
        "its producer does not load V of the same rows as K",
    ),
    "a load for one block only": (
        "ping-pong",
        r"\(uint16_t\)\(3\)",
        "(uint16_t)(1)",
        r"load K.* of blocks \(0,\), expected load .* of blocks \(0, 1\)",
    ),
    "too few bytes": (
        "ping-pong",
        r"expect_transaction\(45056\)",
        "expect_transaction(22528)",
        r"line \d+: 22528 bytes of a tile of 45056",
    ),
    "a producer that does not acquire": (
        "ping-pong",
        r"V_empty\[[^;]*\.wait\(.*\);",
        "",
        r"the producer .*expected wait V_empty\[0\]",
    ),
    "a turn not waited for": (
        "ping-pong",
        r"tl::__sync_thread_partial\(\(wg\w* \+ 1\), 256\);",
        "",
        r"expected sync named barrier\[1\] \(256\)",
    ),
    "the turn of the other": (
        "ping-pong",
        r"tl::__named_barrier_arrive\(\(2 - wg\w*\), 256\);",
        "tl::__named_barrier_arrive(1, 256);",
        r"signal named barrier\[1\] \(256\), expected signal named barrier\[2\]",
    ),
    "a barrier more": (
        "ping-pong",
        r"(Q_full\[[^;]*\.wait\(.*\);)",
        r"\1\n      tl::__sync_thread_partial(3, 256);",
        r"is sync named barrier\[3\] \(256\)",
    ),
    "a barrier of an unknown kind": (
        "ping-pong",
        r"(Q_full\[[^;]*\.wait\(.*\);)",
        r"\1\n      tl::syncthreads_partial(other);",
        r"cannot be read: line \d+: 'tl::syncthreads_partial\(other\);' is nothing that is known",
    ),
    "rings that start again with every tile": (
        "ping-pong",
        r"(base\w*) = \(\1 \+ blocks\w*\);",
        "",
        r"wait K_empty\[0\]|wait K_full\[0\]",
    ),
    "a tile's number not released": (
        "dynamic",
        r"tile_empty\[[^;]*\.arrive\(\);",
        "",
        r"expected arrive tile_empty\[0\] \(1\)",
    ),
    "a tile's number not waited for": (
        "dynamic",
        r"tile_full\[[^;]*\.wait\(.*\);",
        "",
        r"expected wait tile_full\[0\]",
    ),
    "Q released before it is in registers": (
        "registers",
        r"(Q_full\[[^;]*\.wait\(.*\);)",
        r"\1\n if (tl::tl_shuffle_elect<32>()) {\n Q_empty[0].arrive();\n }",
        "expected read Q",
    ),
    "Q released before the output went through it": (
        "output through Q",
        r"tl::tma_store_wait<0, true>\(\);",
        "",
        r"expected stored \(0\)",
    ),
    "an output that is not complete": (
        "output through Q",
        r"tl::fence_proxy_async\(\);(\s+tl::__sync_thread_partial.*)",
        "",
        r"expected fence \(0\)",
    ),
    "blocks beyond the diagonal": (
        "ping-pong",
        r"blocks = min\(blocks, .*\);",
        "",
        "the first rows of K of a tile are not those that its rows of Q need",
    ),
    "rows of another tile": (
        "ping-pong",
        r"(tma_load\(Q_desc.*\) \+ first_row_\d+)\)",
        r"\1 + 128)",
        "block 0 loads rows of Q from 128 on",
    ),
    "a structure that cannot be read": ("ping-pong", r"int turn_\w+ = turn;", "", "cannot be read: name 'turn_"),
}


@pytest.mark.parametrize("name", SPECIALISED_FAULTS)
def test_a_specialised_kernel_with_a_fault_is_refused(name):
    kernel, pattern, replacement, words = SPECIALISED_FAULTS[name]
    schedule, code = KERNELS[kernel].schedule, lowered(KERNELS[kernel])
    source, found = re.subn(pattern, replacement, code.source, count=1)
    assert found == 1
    with pytest.raises(ScheduleRefused, match=words):
        prove(schedule, replace(code, source=source))
