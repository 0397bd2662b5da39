"""Faults in what the warp-specialised kernel does between threads and with TMA: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

LANES = r"if \(tl::tl_shuffle_elect<32>\(\)\) \{"
Q_WAIT = r"( +)(Q_full\[[^;]*\]\.wait\(.*\);\n)"
FAULTS: dict[str, Fault] = {
    "a product that is not committed": fault(
        "best", r"(desc_b_1 [^\n]*\n *\}\n) *tl::warpgroup_commit_batch\(\);\n", r"\1"
    ),
    "the last product not committed": fault(
        "best_causal", r"(desc_b_5 [^\n]*\n *\}\n) *tl::warpgroup_commit_batch\(\);\n", r"\1"
    ),
    "a product without its arrive": fault("best", r"tl::warpgroup_arrive\(\);\n(( *#.*\n)? *for \(int ki_1 )", r"\1"),
    "the arrive after its product": fault(
        "best", r" *tl::warpgroup_arrive\(\);\n(.*\n.*ki_1 = 0.*\n.*\n *\}\n)", r"\1tl::warpgroup_arrive();\n"
    ),
    "a store that is not committed": fault("output_tma", r" *tl::tma_store_arrive\(\);\n"),
    "a store that is committed before it is issued": fault(
        "output_tma",
        r"( *#pragma unroll\n *for \(int i_\d+ = 0;.*\n *tl::tma_store\(.*\n *\}\n)( *tl::tma_store_arrive\(\);\n)",
        r"\2\1",
    ),
    "the second box of K into the next slot": fault(
        "best", r"(multicast\(K_desc.*?K_shared\)\[\(\(\()\(base_2 \+ j\)( & 1\) \* 22528\))", r"\1((base_2 + j) + i)\2"
    ),
    "the second box of V over the first": fault("best", r"(multicast\(V_desc.*?)\(i_2 \* 11264\)", r"\1(i_2 * 0)"),
    "the second box of K not issued": fault("best", r"i < 2(; \+\+i\) \{\n *tl::tma_load_multicast\(K)", r"i < 1\1"),
    "the second box of K of the first columns": fault("best", r"(multicast\(K_desc.*?), \(i \* 64\),", r"\1, (i * 0),"),
    "a third box of K": fault("best_causal", r"i < 2(; \+\+i\) \{\n *tl::tma_load\(K)", r"i < 3\1"),
    "K of the next head": fault("best", r"(multicast\(K_desc.*), head_2,", r"\1, (head_2 + 1),"),
    "V of the first batch": fault("best", r"(multicast\(V_desc.*), bz_2\)", r"\1, 0)"),
    "registers that are not given back": fault("best", r" *tl::warpgroup_reg_dealloc<24>\(\);\n"),
    "registers that are not taken": fault("best", r" *tl::warpgroup_reg_alloc<240>\(\);\n"),
    "more registers than there are": fault("best", "reg_alloc<240>", "reg_alloc<248>"),
    "fewer registers given back": fault("best_causal", "reg_dealloc<24>", "reg_dealloc<40>"),
    "registers given back by the consumers": Fault("best", (("reg_alloc<240>", "reg_dealloc<24>"),)),
    "a wait by two lanes": fault(
        "best", Q_WAIT, r"\1if (((((int)threadIdx.x) == 0) || (((int)threadIdx.x) == 127))) {\n\1  \2\1}\n"
    ),
    "a wait by every other lane": fault("best", Q_WAIT, r"\1if ((((int)threadIdx.x) & 1) == 0) {\n\1  \2\1}\n"),
    "a barrier more by lane 5": fault(
        "best", Q_WAIT, r"\1\2\1if (((int)threadIdx.x) == 5) {\n\1  tl::__sync_thread_partial(3, 256);\n\1}\n"
    ),
    "an arrival more by warp 3": fault(
        "best", Q_WAIT, r"\1\2\1if (((int)threadIdx.x) == 101) {\n\1  K_empty[0].arrive(0);\n\1}\n"
    ),
    "a wait of warpgroup 1 only": fault("best", Q_WAIT, r"\1if (wg_2 == 1) {\n\1  \2\1}\n"),
    "a wait of rank 0 only": fault("best", Q_WAIT, r"\1if (tl::block_rank_in_cluster() == 0) {\n\1  \2\1}\n"),
    "a parity wrong from the third block on": fault(
        "best", r"(\n *K_full\[[^;]*\+ t\)[^;]*\]\.wait\()(.*)\);", r"\1(\2 ^ ((2 <= t) ? 1 : 0)));"
    ),
    "a parity wrong from the fortieth block on": fault(
        "best", r"(\n *K_full\[[^;]*\+ t\)[^;]*\]\.wait\()(.*)\);", r"\1(\2 ^ ((40 <= t) ? 1 : 0)));"
    ),
    "a parity wrong from the fifth tile on": fault(
        "best", r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);", r"\1(\2 ^ ((4 <= turn_3) ? 1 : 0)));"
    ),
    "a parity wrong in every ninth tile": fault(
        "best", r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);", r"\1(\2 ^ (((turn_3 % 9) == 8) ? 1 : 0)));"
    ),
    "a parity wrong in the last tile": fault(
        "best",
        r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ ((((tile_1 + 66) < ((seq_q + 255) >> 8)) ? 0 : 1))));",
    ),
    "a parity wrong for one row tile": fault(
        "best", r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);", r"\1(\2 ^ ((first_row_1 == 512) ? 1 : 0)));"
    ),
    "a slot wrong from the third block on": fault(
        "best",
        r"(increase_descriptor_offset<int>\(desc_b_1, \(\()(.*)( & 1\) \* 45056\)\);)",
        r"\1(\2 + ((2 <= t) ? 1 : 0))\3",
    ),
    "a product of a slot that does not exist": fault(
        "best", r"(increase_descriptor_offset<int>\(desc_b_1, \(\(.*) & 1(\) \* 45056\)\);)", r"\1 & 3\2"
    ),
    "a product half a slot further": fault(
        "best", r"(increase_descriptor_offset<int>\(desc_b_1, )(.*& 1\) \* 45056\))\);", r"\1(\2 + 22528));"
    ),
    "the second half of a product in the next slot": fault(
        "best", r"(desc_b_1 \+ \(\(\(\(ki_1 >> 2\) \* )22528", r"\g<1>45056"
    ),
    "a product of the other warpgroup's Q": fault("best", r"(desc_a_1, \()wg_2( \* 16384)", r"\1(1 - wg_2)\2"),
    "a product of K in V": fault("best", r"(desc_b_1, \(&\(\(\(half_t\*\))K_shared", r"\1V_shared"),
    "half of a product": fault("best", r"ki_1 < 8", "ki_1 < 4"),
    "a product that starts anew": fault("best", r"(desc_b_2 .*, )\(\(0 < ki_2\) \? 1 : .*\)\);", r"\g<1>0);"),
    "a product under a condition on data": fault(
        "best", r"( +)(for \(int ki_1 = 0;.*\n.*\n *\}\n)", r"\1if (scores_max[0] != 1.0f) {\n\1\2\1}\n"
    ),
    "a release under a condition on data": fault(
        "best", rf"{LANES}(\s+#pragma unroll\s+for \(int rank_1 = 0)", r"if (scores_max[0] != 1.0f) {\1"
    ),
    "a release under a vote on data": fault(
        "rescale_threshold",
        rf"( +){LANES}(\s+Q_empty\[.*\s+\}}\n)",
        r"\1if (tl_attention_grew(scores_scale)) {\n\1if (tl::tl_shuffle_elect<32>()) {\2\1}\n",
    ),
    "a fence of the TMA store dropped": fault("output_tma", r" *tl::fence_proxy_async\(\);\n"),
    "the barrier after the fence dropped": fault(
        "output_tma", r"(tl::fence_proxy_async\(\);\n) *tl::__sync_thread_partial\(\(wg_2 \+ 4\), 128\);\n", r"\1"
    ),
    "the store of one column block": fault(
        "output_tma", r"i_21 < 2(; \+\+i_21\) \{\n *tl::tma_store\()", r"i_21 < 1\1"
    ),
    "the output written by half of the threads": fault(
        "output_tma",
        r"( +)(\*\(uint1\*\)\(\(\(half_t\*\)Q_shared\).*\n)",
        r"\1if (((int)threadIdx.x) < 64) {\n\1\2\1}\n",
    ),
    "Q read by half of the threads": fault(
        "q_registers", r"( +)(\*\(uint1\*\)\(Q_local .*Q_shared\).*\n)", r"\1if (((int)threadIdx.x) < 64) {\n\1\2\1}\n"
    ),
    "a tile's number of the other slot": fault(
        "best_causal", r"( tile_1 = next_tile\[\()turn_1( & 1\)\];)", r"\1(turn_1 + 1)\2"
    ),
    "a counter that jumps": fault("best_causal", r"TileCounter\[0\]\)\), 1\)", "TileCounter[0])), 2)"),
    "a counter that is not reset": fault("best_causal", r" *TileCounter\[0\] = 0;\n"),
    "a counter that is reset by every block": fault("best_causal", r"if \(if_condition\) \{", "{"),
    "a counter that is reset too early": fault("best_causal", r"== 131\);", "== 130);"),
    "tiles from the counter that overlap the first ones": fault("best_causal", r"\+ 132\);", "+ 131);"),
    "tiles from the counter that leave one out": fault("best_causal", r"\+ 132\);", "+ 133);"),
    "a barrier that lies in another": fault(
        "best", r"(K_full = reinterpret_cast<Barrier\*>\()K_full_mem", r"\1Q_full_mem"
    ),
    "a barrier of too little memory": fault("best", r"uint64_t K_full_mem\[2\]", "uint64_t K_full_mem[1]"),
    "K in V's shared memory": fault("best", r"(void\* K_shared .*buf_dyn_shmem \+ )\d+", r"\g<1>0"),
    "shared memory of K that is not declared": fault("best", r" *void\* K_shared = .*\n"),
    "a turn for fewer threads": fault("best", r"(__named_barrier_arrive\(1, )256", r"\g<1>128"),
    "the first turn not given": fault("best", r"if \(wg == 1\) \{", "if (wg == 2) {"),
    "the last turn not taken": fault("best", r"( +if \(wg == 0\) \{\n) *tl::__sync_thread_partial\(1, 256\);\n", r"\1"),
    "a warpgroup that takes itself for another": fault("best", r"wg = __shfl_sync.*;", "wg = 0;"),
    "a producer of two warps": fault("best", r"(\(\(int\)threadIdx.x\) < )32", r"\g<1>64"),
    "a producer that is a consumer": fault("best", r"(\(\(int\)threadIdx.y\) == )2", r"\g<1>1"),
    "the cluster that does not end together": fault("best", r"  tl::cluster_sync\(\);\n\}", "}"),
    "an initialisation by every warp": fault(
        "best", r"if \(tl::tl_shuffle_elect<0>\(\)\) \{(\s+Q_full)", r"if (tl::tl_shuffle_elect<32>()) {\1"
    ),
    "a return before the end": fault("best", Q_WAIT, r"\1\2\1if (((int)threadIdx.x) == 5) {\n\1  return;\n\1}\n"),
    "a loop left early": fault(
        "best", r"( +)(base_1 = \(base_1 \+ blocks_1\);\n)", r"\1if ((3 <= turn_1)) { break; }\n\1\2"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_warp_specialised_kernel_is_refused(name):
    refused(FAULTS[name])
