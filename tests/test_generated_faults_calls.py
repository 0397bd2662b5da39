"""Faults in what the threads of the warp-specialised kernel do: waits, products and TMA. Each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

LANES = r"if \(tl::tl_shuffle_elect<32>\(\)\) \{"
Q_WAIT = r"( +)(Q_full\[[^;]*\]\.wait\(.*\);\n)"
FAULTS: dict[str, Fault] = {
    "an output from other registers": fault(
        "best", r"(tl_attention_store<.*>\()acc_o,", r"\1(&(acc_o[4])),", words="stores rows from register 4 on"
    ),
    "a product that is not committed": fault(
        "best",
        r"(desc_b_1 [^\n]*\n *\}\n) *tl::warpgroup_commit_batch\(\);\n",
        r"\1",
        words="wait stands among a product's instructions",
    ),
    "the last product not committed": fault(
        "best_causal",
        r"(desc_b_5 [^\n]*\n *\}\n) *tl::warpgroup_commit_batch\(\);\n",
        r"\1",
        words="signal stands among a product's instructions",
    ),
    "a product without its arrive": fault(
        "best",
        r"tl::warpgroup_arrive\(\);\n(( *#.*\n)? *for \(int ki_1 )",
        r"\1",
        words="issued with no warpgroup_arrive before it",
    ),
    "the arrive after its product": fault(
        "best",
        r" *tl::warpgroup_arrive\(\);\n(.*\n.*ki_1 = 0.*\n.*\n *\}\n)",
        r"\1tl::warpgroup_arrive();\n",
        words="issued with no warpgroup_arrive before it",
    ),
    "a store that is not committed": fault(
        "output_tma", r" *tl::tma_store_arrive\(\);\n", words="waits for a store that is not committed"
    ),
    "a store that is committed before it is issued": fault(
        "output_tma",
        r"( *#pragma unroll\n *for \(int i_\d+ = 0;.*\n *tl::tma_store\(.*\n *\}\n)( *tl::tma_store_arrive\(\);\n)",
        r"\2\1",
        words="waits for a store that is not committed",
    ),
    "the second box of K into the next slot": fault(
        "best",
        r"(multicast\(K_desc.*?K_shared\)\[\(\(\()\(base_2 \+ j\)( & 1\) \* 22528\))",
        r"\1((base_2 + j) + i)\2",
        words=r"elements \[\(0, 0\), \(64, 33792\)\] of K, expected \[\(0, 0\), \(64, 11264\)\]",
    ),
    "the second box of V over the first": fault(
        "best",
        r"(multicast\(V_desc.*?)\(i_2 \* 11264\)",
        r"\1(i_2 * 0)",
        words=r"elements \[\(0, 0\), \(64, 0\)\] of V, expected \[\(0, 0\), \(64, 11264\)\]",
    ),
    "the second box of K not issued": fault(
        "best",
        r"i < 2(; \+\+i\) \{\n *tl::tma_load_multicast\(K)",
        r"i < 1\1",
        words=r"elements \[\(0, 0\)\] of K, expected \[\(0, 0\), \(64, 11264\)\]",
    ),
    "the second box of K of the first columns": fault(
        "best",
        r"(multicast\(K_desc.*?), \(i \* 64\),",
        r"\1, (i * 0),",
        words=r"columns and elements \[\(0, 0\), \(0, 11264\)\] of K, expected",
    ),
    "a third box of K": fault(
        "best_causal",
        r"i < 2(; \+\+i\) \{\n *tl::tma_load\(K)",
        r"i < 3\1",
        words=r"\(64, 8192\), \(128, 16384\)\] of K, expected \[\(0, 0\), \(64, 8192\)\]",
    ),
    "K of the next head": fault(
        "best", r"(multicast\(K_desc.*), head_2,", r"\1, (head_2 + 1),", words="does not load V of the same rows as K"
    ),
    "V of the first batch": fault(
        "best",
        r"(multicast\(V_desc.*), bz_2\)",
        r"\1, 0)",
        words="the first rows of V of a tile are not those that its rows of Q need",
    ),
    "registers that are not given back": fault(
        "best",
        r" *tl::warpgroup_reg_dealloc<24>\(\);\n",
        words=r"the producer of block 0 starts with .* sync cluster\[0\] \(0\), wait K_empty",
    ),
    "registers that are not taken": fault(
        "best",
        r" *tl::warpgroup_reg_alloc<240>\(\);\n",
        words=r"warpgroup 0 of block 0 starts with .* sync cluster\[0\] \(0\), wait Q_full",
    ),
    "more registers than there are": fault(
        "best",
        "reg_alloc<240>",
        "reg_alloc<248>",
        words=r"warpgroup 0 of block 0 starts with .* more registers \(248\)",
    ),
    "fewer registers given back": fault(
        "best_causal",
        "reg_dealloc<24>",
        "reg_dealloc<40>",
        words=r"the producer of block 0 starts with .* fewer registers \(40\)",
    ),
    "registers given back by the consumers": Fault(
        "best",
        (("reg_alloc<240>", "reg_dealloc<24>"),),
        words=r"warpgroup 0 of block 0 starts with .* fewer registers \(24\)",
    ),
    "a wait by two lanes": fault(
        "best",
        Q_WAIT,
        r"\1if (((((int)threadIdx.x) == 0) || (((int)threadIdx.x) == 127))) {\n\1  \2\1}\n",
        words="2 of the 128 threads of warpgroup 0 of block 0 run it",
    ),
    "a wait by every other lane": fault(
        "best",
        Q_WAIT,
        r"\1if ((((int)threadIdx.x) & 1) == 0) {\n\1  \2\1}\n",
        words="64 of the 128 threads of warpgroup 0 of block 0 run it",
    ),
    "a barrier more by lane 5": fault(
        "best",
        Q_WAIT,
        r"\1\2\1if (((int)threadIdx.x) == 5) {\n\1  tl::__sync_thread_partial(3, 256);\n\1}\n",
        words="1 of the 128 threads of warpgroup 0 of block 0 run it",
    ),
    "an arrival more by warp 3": fault(
        "best",
        Q_WAIT,
        r"\1\2\1if (((int)threadIdx.x) == 101) {\n\1  K_empty[0].arrive(0);\n\1}\n",
        words="not the same number of lanes of each warp of warpgroup 0 of block 0 run it",
    ),
    "a wait of warpgroup 1 only": fault(
        "best", Q_WAIT, r"\1if (wg_2 == 1) {\n\1  \2\1}\n", words=r"warpgroup 0 of block 0 is wait K_full\[0\] \(0\)"
    ),
    "a wait of rank 0 only": fault(
        "best",
        Q_WAIT,
        r"\1if (tl::block_rank_in_cluster() == 0) {\n\1  \2\1}\n",
        words=r"warpgroup 0 of block 1 is wait K_full\[0\] \(0\)",
    ),
    "a parity wrong from the third block on": fault(
        "best",
        r"(\n *K_full\[[^;]*\+ t\)[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ ((2 <= t) ? 1 : 0)));",
        words="depends on an iteration, but neither affinely nor with a period",
    ),
    "a parity wrong from the fortieth block on": fault(
        "best",
        r"(\n *K_full\[[^;]*\+ t\)[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ ((40 <= t) ? 1 : 0)));",
        words="depends on an iteration, but neither affinely nor with a period",
    ),
    "a parity wrong from the fifth tile on": fault(
        "best",
        r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ ((4 <= turn_3) ? 1 : 0)));",
        words="depends on an iteration, but neither affinely nor with a period",
    ),
    "a parity wrong in every ninth tile": fault(
        "best",
        r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ (((turn_3 % 9) == 8) ? 1 : 0)));",
        words=r"is wait Q_full\[0\] \(1\), expected wait Q_full\[0\] \(0\)",
    ),
    "a producer's parity of tiles' numbers wrong from the third tile on": fault(
        "dynamic",
        r"(tile_empty\[[^;]*\]\.wait\(\(\(\(turn & 3\) >> )1",
        r"\g<1>2",
        words=r"is wait tile_empty\[0\] \(1\), expected wait tile_empty\[0\] \(0\)",
    ),
    "a consumer's parity of tiles' numbers wrong from the third tile on": fault(
        "dynamic",
        r"(tile_full\[[^;]*\]\.wait\(\(\(turn_1 & 3\) >> )1",
        r"\g<1>2",
        words=r"is wait tile_full\[0\] \(0\), expected wait tile_full\[0\] \(1\)",
    ),
    "a parity wrong in the last tile": fault(
        "best",
        r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ ((((tile_1 + 66) < ((seq_q + 255) >> 8)) ? 0 : 1))));",
        words="seq_q, tile_1 decides what happens in an iteration",
    ),
    "a parity wrong for one row tile": fault(
        "best",
        r"(\n *Q_full\[[^;]*\]\.wait\()(.*)\);",
        r"\1(\2 ^ ((first_row_1 == 512) ? 1 : 0)));",
        words="first_row_1 decides what happens in an iteration",
    ),
    "a slot wrong from the third block on": fault(
        "best",
        r"(increase_descriptor_offset<int>\(desc_b_1, \(\()(.*)( & 1\) \* 45056\)\);)",
        r"\1(\2 + ((2 <= t) ? 1 : 0))\3",
        words="depends on an iteration, but neither affinely nor with a period",
    ),
    "a product of a slot that does not exist": fault(
        "best",
        r"(increase_descriptor_offset<int>\(desc_b_1, \(\(.*) & 1(\) \* 45056\)\);)",
        r"\1 & 3\2",
        words=r"is product K\[3\] \(0\), expected product K\[1\] \(0\)",
    ),
    "a product half a slot further": fault(
        "best",
        r"(increase_descriptor_offset<int>\(desc_b_1, )(.*& 1\) \* 45056\))\);",
        r"\1(\2 + 22528));",
        words="instruction 0 of a product reads other columns of its operands",
    ),
    "the second half of a product in the next slot": fault(
        "best",
        r"(desc_b_1 \+ \(\(\(\(ki_1 >> 2\) \* )22528",
        r"\g<1>45056",
        words="instruction 4 of a product reads other columns of its operands",
    ),
    "a product of the other warpgroup's Q": fault(
        "best",
        r"(desc_a_1, \()wg_2( \* 16384)",
        r"\1(1 - wg_2)\2",
        words="instruction 0 of a product reads other columns of its operands",
    ),
    "a product of K in V": fault(
        "best",
        r"(desc_b_1, \(&\(\(\(half_t\*\))K_shared",
        r"\1V_shared",
        words=r"a product of \('Q', .*\), \('V', .*\) and acc_s",
    ),
    "half of a product": fault("best", r"ki_1 < 8", "ki_1 < 4", words="a product of 4 instructions, expected 8"),
    "a product that starts anew": fault(
        "best",
        r"(desc_b_2 .*, )\(\(0 < ki_2\) \? 1 : .*\)\);",
        r"\g<1>0);",
        words=r"a product's instructions read slots \[0\] and keep \[0, 0,",
    ),
    "a product under a condition on data": fault(
        "best",
        r"( +)(for \(int ki_1 = 0;.*\n.*\n *\}\n)",
        r"\1if (scores_max[0] != 1.0f) {\n\1\2\1}\n",
        words=r"cannot be read: line \d+: .* in 'scores_max\[0\] != 1.0f'",
    ),
    "a release under a condition on data": fault(
        "best",
        rf"{LANES}(\s+#pragma unroll\s+for \(int rank_1 = 0)",
        r"if (scores_max[0] != 1.0f) {\1",
        words=r"cannot be read: line \d+: .* in 'scores_max\[0\] != 1.0f'",
    ),
    "a release under a vote on data": fault(
        "rescale_threshold",
        rf"( +){LANES}(\s+Q_empty\[.*\s+\}}\n)",
        r"\1if (tl_attention_grew(scores_scale)) {\n\1if (tl::tl_shuffle_elect<32>()) {\2\1}\n",
        words=r"line \d+ cannot be read: ",
    ),
    "a fence of the TMA store dropped": fault(
        "output_tma", r" *tl::fence_proxy_async\(\);\n", words=r"is store Q\[0\] \(0\), expected fence"
    ),
    "the barrier after the fence dropped": fault(
        "output_tma",
        r"(tl::fence_proxy_async\(\);\n) *tl::__sync_thread_partial\(\(wg_2 \+ 4\), 128\);\n",
        r"\1",
        words=r"is store Q\[0\] \(0\), expected sync named barrier\[4\] \(128\)",
    ),
    "the store of one column block": fault(
        "output_tma",
        r"i_21 < 2(; \+\+i_21\) \{\n *tl::tma_store\()",
        r"i_21 < 1\1",
        words=r"elements \[\(0, 0\)\] of Q, expected \[\(0, 0\), \(64, 4096\)\]",
    ),
    "the output written by half of the threads": fault(
        "output_tma",
        r"( +)(\*\(uint1\*\)\(\(\(half_t\*\)Q_shared\).*\n)",
        r"\1if (((int)threadIdx.x) < 64) {\n\1\2\1}\n",
        words="write of Q is not of one slot, each element once",
    ),
    "Q read by half of the threads": fault(
        "q_registers",
        r"( +)(\*\(uint1\*\)\(Q_local .*Q_shared\).*\n)",
        r"\1if (((int)threadIdx.x) < 64) {\n\1\2\1}\n",
        words="read of Q is not of one slot, each element once",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_warp_specialised_kernel_is_refused(name):
    refused(FAULTS[name])
