"""Faults in how the warp-specialised kernel's roles start, take tiles and turns, and end: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

Q_WAIT = r"( +)(Q_full\[[^;]*\]\.wait\(.*\);\n)"
FAULTS: dict[str, Fault] = {
    "a tile's number of the other slot": fault(
        "best_causal",
        r"( tile_1 = next_tile\[\()turn_1( & 1\)\];)",
        r"\1(turn_1 + 1)\2",
        words=r"is read tile\[1\] \(0\), expected read tile\[0\] \(0\)",
    ),
    "a counter that jumps": fault(
        "best_causal",
        r"TileCounter\[0\]\)\), 1\)",
        "TileCounter[0])), 2)",
        words="its blocks work on 660 of 1188 tiles, 660 times",
    ),
    "a counter that is not reset": fault(
        "best_causal",
        r" *TileCounter\[0\] = 0;\n",
        words=r"leaves the counters of tiles as {'TileCounter': \[1188, 0\]}",
    ),
    "a counter that is reset by every block": fault(
        "best_causal",
        r"if \(if_condition\) \{",
        "{",
        words="132 threads write TileCounter, expected the last that added to it",
    ),
    "a counter that is reset too early": fault(
        "best_causal", r"== 131\);", "== 130);", words="1 threads write TileCounter, expected the last that added to it"
    ),
    "tiles from the counter that overlap the first ones": fault(
        "best_causal", r"\+ 132\);", "+ 131);", words="its blocks work on 1188 of 1188 tiles, 1189 times"
    ),
    "tiles from the counter that leave one out": fault(
        "best_causal", r"\+ 132\);", "+ 133);", words="its blocks work on 1187 of 1188 tiles, 1187 times"
    ),
    "a barrier that lies in another": fault(
        "best",
        r"(K_full = reinterpret_cast<Barrier\*>\()K_full_mem",
        r"\1Q_full_mem",
        words=r"Q_full_mem\);' is nothing that is known",
    ),
    "a barrier of too little memory": fault(
        "best",
        r"uint64_t K_full_mem\[2\]",
        "uint64_t K_full_mem[1]",
        words="its mbarriers are .*'K_full': 1, .* expected .*'K_full': 2",
    ),
    "V in K's shared memory": fault(
        "best",
        r"(void\* V_shared .*buf_dyn_shmem \+ )\d+",
        r"\g<1>0",
        words="it has 0 buffers for load_k from byte 0 on, the Program has 2",
    ),
    "shared memory of K that is not declared": fault(
        "best", r" *void\* K_shared = .*\n", words="shared buffer K is not declared"
    ),
    "a turn for fewer threads": fault(
        "best",
        r"(__named_barrier_arrive\(1, )256",
        r"\g<1>128",
        words=r"is signal named barrier\[1\] \(128\), expected signal named barrier\[1\] \(256\)",
    ),
    "the first turn not given": fault(
        "best",
        r"if \(wg == 1\) \{",
        "if (wg == 2) {",
        words=r"warpgroup 1 of block 0 is wait Q_full\[1\] \(0\), expected signal named barrier\[1\] \(256\)",
    ),
    "the last turn not taken": fault(
        "best",
        r"( +if \(wg == 0\) \{\n) *tl::__sync_thread_partial\(1, 256\);\n",
        r"\1",
        words=r"warpgroup 0 of block 0 is sync cluster\[0\] \(0\), expected sync named barrier\[1\] \(256\)",
    ),
    "a warpgroup that takes itself for another": fault(
        "best",
        r"wg = __shfl_sync.*;",
        "wg = 0;",
        words="instruction 0 of a product reads other columns of its operands",
    ),
    "a producer of two warps": fault(
        "best", r"(\(\(int\)threadIdx.x\) < )32", r"\g<1>64", words="32 of the 96 threads of an idle warp run it"
    ),
    "a producer that is a consumer": fault(
        "best",
        r"(\(\(int\)threadIdx.y\) == )2",
        r"\g<1>1",
        words="the producer of block 0 starts with .* more registers",
    ),
    "the cluster that does not end together": fault(
        "best", r"  tl::cluster_sync\(\);\n\}", "}", words=r"the producer of block 0 ends before sync cluster\[0\]"
    ),
    "an initialisation by every warp": fault(
        "best",
        r"if \(tl::tl_shuffle_elect<0>\(\)\) \{(\s+Q_full)",
        r"if (tl::tl_shuffle_elect<32>()) {\1",
        words="4 threads of one role run it, expected one",
    ),
    "a return before the end": fault(
        "best",
        Q_WAIT,
        r"\1\2\1if (((int)threadIdx.x) == 5) {\n\1  return;\n\1}\n",
        words="'return;' is nothing that is known",
    ),
    "a loop left early": fault(
        "best",
        r"( +)(base_1 = \(base_1 \+ blocks_1\);\n)",
        r"\1if ((3 <= turn_1)) { break; }\n\1\2",
        words=r"tile 4 of block 0: .* of output of warpgroup 0 is \[-1, -1, -1\], expected",
    ),
    "Q released without a fence": fault(
        "q_registers",
        r" *tl::fence_proxy_async\(\);\n( *if \(tl::tl_shuffle_elect<32>\(\)\) \{\n *Q_empty)",
        r"\1",
        words=r"is arrive Q_empty\[0\] \(1\) of blocks \(0,\), expected fence",
    ),
    "Q released before its fence": fault(
        "q_registers",
        r"( *tl::fence_proxy_async\(\);\n)( *if \(tl::tl_shuffle_elect<32>\(\)\) \{\n *Q_empty.*\n *\}\n)",
        r"\2\1",
        words=r"is arrive Q_empty\[0\] \(1\) of blocks \(0,\), expected fence",
    ),
    "a fence before Q is read": fault(
        "q_registers",
        r"( *#pragma unroll\n.*\n *\*\(uint1\*\)\(Q_local .*\n *\}\n)( *tl::fence_proxy_async\(\);\n)",
        r"\2\1",
        words=r"is arrive Q_empty\[0\] \(1\) of blocks \(0,\), expected fence",
    ),
    "a fence of one lane": fault(
        "q_registers",
        r" *tl::fence_proxy_async\(\);\n( *if \(tl::tl_shuffle_elect<32>\(\)\) \{\n)( *Q_empty)",
        r"\1tl::fence_proxy_async();\n\2",
        words=r"expected fence",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_roles_is_refused(name):
    refused(FAULTS[name])
