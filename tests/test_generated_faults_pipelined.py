"""Faults in the generated code of pipelined kernels: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

# A cp.async of K or V in the loop: up to the slot, up to the tensor, up to the row.
K_LOAD = r"(\n *tl::cp_async_gs_conditional<16>\(\(&\(\(\(half_t\*\)K_shared\)\[\(*)kv( & 1\) \* 16384\).*?)\(&\(K\["
V_LOAD = r"(\n *tl::cp_async_gs<16>\(\(&\(\(\(half_t\*\))V_shared(\)\[\(*)\(kv \+ 1\)( & 1\) \* 16384\).*?)\(&\(V\["
TRIPS = r"(for \(int kv = 0; kv < max\(\()(.*) - 2\), 0\); \+\+kv"
PRODUCT_K = r"(increase_descriptor_offset<int>\(desc_b_1, \(\()\(kv \+ 1\) & 1(\) \* 32768\)\);)"
WAIT_K = r"(cp_async_wait<1>)(\(\);\n) *__syncthreads\(\);\n(.*\n.*desc_a_1)"
WAIT_V = r"(cp_async_wait<1>)(\(\);\n) *__syncthreads\(\);\n(.*\n.*desc_b_2)"
STORE = r"( *tl::fence_proxy_async\(\);\n)( *#pragma unroll\n.*\n *tl::tma_store\()"
FAULTS: dict[str, Fault] = {
    "a product of K of the slot that is loaded": fault(
        "seed",
        PRODUCT_K,
        r"\1kv & 1\2",
        words=r"mma0\(1\) reads \[Load\(name='K', block=2\), .*, expected \[Load\(name='K', block=1\)",
    ),
    "a product of K of the first slot": fault(
        "seed",
        PRODUCT_K,
        r"\g<1>0\2",
        words=r"mma0\(1\) reads \[Load\(name='K', block=2\), .*, expected \[Load\(name='K', block=1\)",
    ),
    "a product of K whose slot does not advance": fault(
        "seed",
        r" *tl::increase_descriptor_offset<int>\(desc_b_1, \(\(\(kv \+ 1\).*\n",
        words=r"mma0\(1\) reads \[Load\(name='K', block=2\), .*, expected \[Load\(name='K', block=1\)",
    ),
    "a product of V of the other slot": fault(
        "seed",
        r"(increase_descriptor_offset<int>\(desc_b_2, \(\()kv( & 1\) \* 32768\)\);)",
        r"\1(kv + 1)\2",
        words=r"mma1\(0\) reads \[Load\(name='V', block=1\)\], expected \[Load\(name='V', block=0\)\]",
    ),
    "a product of V in K": fault(
        "seed",
        r"(desc_b_2, \(&\(\(\(half_t\*\))V_shared",
        r"\1K_shared",
        words=r"a product of acc_s_cast, \('K', .*\) and acc_o",
    ),
    "a product of K of another slot from the fortieth block on": fault(
        "seed",
        PRODUCT_K,
        r"\1((kv + 1) + ((40 <= kv) ? 1 : 0)) & 1\2",
        words="depends on an iteration, but neither affinely nor with a period",
    ),
    "a product of three slots": fault(
        "prefetch",
        r"(increase_descriptor_offset<int>\(desc_b_1, \(\(\(kv \+ 1\)) % 3(\) \* 32768\)\);)",
        r"\1 % 2\2",
        words=r"mma0\(2\) reads \[Load\(name='K', block=3\), .*, expected \[Load\(name='K', block=2\)",
    ),
    "half of a product": fault("seed", r"ki_1 < 8", "ki_1 < 4", words="a product of 4 instructions, expected 8"),
    "a product of the other warpgroup's Q": fault(
        "seed",
        r"(desc_a_1 \+ .*?\(\(\(int\)threadIdx\.x\) >> 7\)) \* 8192\)",
        r"\1 * 0)",
        words="instruction 0 of a product reads other columns of its operands",
    ),
    "a load of K into the slot that is read": fault(
        "seed",
        K_LOAD,
        r"\1(kv + 1)\2(&(K[",
        words=r"load_k\(2\) overwrites what a product of block 1 reads, with no barrier between",
    ),
    "a load of V into the slot that is read": fault(
        "seed",
        V_LOAD,
        r"\1V_shared\2kv\3(&(V[",
        words=r"load_v\(1\) overwrites what a product of block 0 reads, with no barrier between",
    ),
    "V into K_shared": fault("seed", V_LOAD, r"\1K_shared\2(kv + 1)\3(&(V[", words="rows of V into K"),
    "V where K belongs": fault("seed", K_LOAD, r"\1kv\2(&(V[", words="rows of V into K"),
    "K where V belongs": fault("seed", V_LOAD, r"\1V_shared\2(kv + 1)\3(&(K[", words="rows of K into V"),
    "a load of K of the block before": fault(
        "seed",
        r"(&\(K\[.*\(int64_t\))32768(\)\]\)\))",
        r"\g<1>16384\2",
        words=r"K gets 86 rows from 128 on, expected \(86, 256\)",
    ),
    "a load of V of the block before": fault(
        "seed",
        r"(&\(V\[.*kv\).*\(int64_t\)8\)\)) \+ \(int64_t\)16384(\)\]\)\))",
        r"\1\2",
        words=r"V gets 128 rows from 0 on, expected \(128, 128\)",
    ),
    "a load of half of the rows": fault(
        "seed", r"(i_11 = 0; i_11 < )8", r"\g<1>4", words="copy of K is not of one slot, each element once"
    ),
    "a load of K by half of the threads": fault(
        "seed",
        r"( +)(tl::cp_async_gs_conditional<16>.*\(kv & 1\).*\n)",
        r"\1if (((int)threadIdx.x) < 128) {\n\1\2\1}\n",
        words="copy of K is not of one slot, each element once",
    ),
    "a load of 8 bytes where 16 belong": fault(
        "seed", r"cp_async_gs<16>", "cp_async_gs<8>", words="copy of V is not of one slot, each element once"
    ),
    "a load of K beyond its end": fault(
        "seed",
        r"\+ 256\) < seq_kv\) && .*\)\);",
        r"+ 256) < (seq_kv + 1)) && (0 < seq_kv)));",
        words=r"K gets 87 rows from 256 on, expected \(86, 256\)",
    ),
    "a load of K that leaves the last row out": fault(
        "seed",
        r"\+ 256\) < seq_kv\) && ",
        r"+ 257) < seq_kv) && ",
        words=r"K gets 85 rows from 256 on, expected \(86, 256\)",
    ),
    "a load of K of another head": fault(
        "seed",
        r"(&\(K\[.*\(int64_t\)kv\).*\(\(int64_t\)\(\(int\)blockIdx)\.y",
        r"\1.z",
        words=r"K gets 86 rows from 1624 on, expected \(86, 1966\)",
    ),
    "a block less": fault(
        "seed", TRIPS, r"\1\2 - 3), 0); ++kv", words=r"V gets 86 rows from 256 on, expected \(128, 128\)"
    ),
    "a block more": fault(
        "seed", TRIPS, r"\1\2 - 1), 0); ++kv", words="it takes more than the 2 KV blocks of rows from 128 on"
    ),
    "no block after the fortieth": fault(
        "seed",
        TRIPS,
        r"\1min(\2, 40) - 2), 0); ++kv",
        words=r"V gets 128 rows from 16777088 on, expected \(128, 4992\)",
    ),
    "a block less of the second head": fault(
        "seed",
        TRIPS,
        r"\1(\2 - ((int)blockIdx.y)) - 2), 0); ++kv",
        words=r"V gets 86 rows from 1966 on, expected \(128, 1838\)",
    ),
    "the last block left out": fault(
        "seed",
        r"kv_1 < 2(; \+\+kv_1)",
        r"kv_1 < 1\1",
        words="over 2 blocks its loads and products are not in the Program's order",
    ),
    "a block beyond the diagonal": fault(
        "seed_causal",
        r"(int kv = 0;.*) \+ 255\) - seq_q",
        r"\1 + 383) - seq_q",
        words="it takes more than the 2 KV blocks of rows from 0 on",
    ),
    "Q of other rows": fault(
        "seed",
        r"(\n *condval = \*\(uint4\*\)\(Q \+ .*?\(\(int64_t\)\()\(int\)blockIdx\.x\)",
        r"\1((int)blockIdx.x) + 1)",
        words=r"Q gets 86 rows from 558 on, expected \(86, 430\)",
    ),
    "Q of another head": fault(
        "seed",
        r"(\n *condval = .*\(\(int64_t\)\(\(int\)blockIdx)\.y",
        r"\1.z",
        words=r"Q gets 86 rows from 344 on, expected \(86, 430\)",
    ),
    "Q beyond its end": fault(
        "seed",
        r"\(\(\(int\)threadIdx\.x\) >> 4\)\) < seq_q\)",
        "(((int)threadIdx.x) >> 4)) <= seq_q)",
        words=r"Q gets 87 rows from 430 on, expected \(86, 430\)",
    ),
    "half of Q": fault(
        "seed", r"(int i = 0; i < )8", r"\g<1>4", words="write of Q is not of one slot, each element once"
    ),
    "no fence before the product of K": fault(
        "seed",
        r" *tl::fence_proxy_async\(\);\n(( *#.*\n)? *for \(int ki_1 )",
        r"\1",
        words=r"mma0\(2\) reads load_k\(2\) with no fence between",
    ),
    "no fence before the first product": fault(
        "seed",
        r" *tl::fence_proxy_async\(\);\n(( *#.*\n)? *for \(int ki = )",
        r"\1",
        words=r"mma0\(0\) reads load_k\(0\) with no fence between",
    ),
    "a product without its arrive": fault(
        "seed",
        r" *tl::warpgroup_arrive\(\);\n(( *(#|tl::fence).*\n)* *for \(int ki_1 )",
        r"\1",
        words="issued with no warpgroup_arrive before it",
    ),
    "a product that is not committed": fault(
        "seed",
        r"(desc_b_1 [^\n]*\n *\}\n) *tl::warpgroup_commit_batch\(\);\n",
        r"\1",
        words="products wait stands among a product's instructions",
    ),
    "a product that is not waited for": fault(
        "seed",
        r"(desc_b_1 [^\n]*\n *\}\n.*commit_batch\(\);\n) *tl::warpgroup_wait<0>\(\);\n",
        r"\1",
        words="acc_s of a product is not fenced before what follows it",
    ),
    "loads that are not committed": fault(
        "seed",
        r"(i_12 \* 1024\).*\n *\}\n) *tl::cp_async_commit\(\);\n",
        r"\1",
        words=r"mma1\(1\) does not wait for load_v\(1\)",
    ),
    # Either wait of an iteration, and the barrier after it, would do alone.
    "waits that let a load go": Fault(
        "seed",
        ((WAIT_K, r"cp_async_wait<3>\2__syncthreads();\n\3"), (WAIT_V, r"cp_async_wait<3>\2__syncthreads();\n\3")),
        words=r"mma1\(0\) does not wait for load_v\(0\)",
    ),
    "no barrier after the waits": Fault(
        "seed", ((WAIT_K, r"\1\2\3"), (WAIT_V, r"\1\2\3")), words=r"mma1\(0\) does not wait for load_v\(0\)"
    ),
    "a barrier by half of the threads": fault(
        "seed",
        r"(cp_async_wait<1>\(\);\n)( *)(__syncthreads\(\);\n)(.*\n.*desc_a_1)",
        r"\1\2if (((int)threadIdx.x) < 128) {\n\2\3\2}\n\4",
        words=r"128 of the 256 threads of block \(0, 0, 0\) run it",
    ),
    "no barrier before a slot is filled again": fault(
        "seed",
        r"(i_11 \* 1024\).*\n *\}\n.*commit\(\);\n) *__syncthreads\(\);\n",
        r"\1",
        words=r"load_v\(2\) overwrites what a product of block 0 reads, with no barrier",
    ),
    "no barrier before the output is stored": fault(
        "seed",
        r" *__syncthreads\(\);\n( *if .*shuffle_elect<256>)",
        r"\1",
        words="the output is stored with no barrier, or no fence",
    ),
    "no fence before the output is stored": fault(
        "seed", STORE, r"\2", words="the output is stored with no barrier, or no fence"
    ),
    "a barrier after the fence instead of before": fault(
        "seed",
        r"( *__syncthreads\(\);\n)( *if .*shuffle_elect<256>\(\)\) \{\n *tl::fence_proxy_async\(\);\n)",
        r"\2\1",
        words=r"1 of the 256 threads of block \(0, 2, 1\) run it",
    ),
    "an output that every warp stores": fault(
        "seed", r"tl_shuffle_elect<256>", "tl_shuffle_elect<32>", words="8 threads of one role run it, expected one"
    ),
    "an output that is not committed": fault(
        "seed", r" *tl::tma_store_arrive\(\);\n", words="waits for a store that is not committed"
    ),
    "an output that is not waited for": fault(
        "seed", r" *tl::tma_store_wait<0, true>\(\);\n", words="it does not wait for the TMA store of its output"
    ),
    "half of the output": fault(
        "seed", r"i_30 < 2", "i_30 < 1", words=r"elements \[\(0, 0\)\] of Q, expected \[\(0, 0\), \(64, 8192\)\]"
    ),
    "an output of other rows": fault(
        "seed",
        r"(tma_store\(.*blockIdx\.x\)) \* 128\)",
        r"\1 * 64)",
        words=r"it stores \(64, 2, 1\) as \(row, head, batch\), expected \(128, 2, 1\)",
    ),
    "an output of another head": fault(
        "seed",
        r"(tma_store\(.*, \(\(int\)blockIdx)\.y\)",
        r"\1.z)",
        words=r"it stores \(0, 1, 1\) as \(row, head, batch\), expected \(0, 2, 1\)",
    ),
    "an output of V_shared": fault(
        "seed",
        r"(tma_store\(Output_desc, .*\))Q_shared",
        r"\1V_shared",
        words="the output is stored with no barrier, or no fence",
    ),
    "shared memory of K that is not declared": fault(
        "seed", r" *void\* K_shared = .*\n", words="shared buffer K is not declared"
    ),
    "V in K's shared memory": fault(
        "seed",
        r"(void\* V_shared .*buf_dyn_shmem \+ )\d+",
        r"\g<1>49152",
        words="it has 0.5 buffers for load_k from byte 32768 on, the Program has 2",
    ),
    "a descriptor that is not initialised": fault(
        "seed",
        r" *tl::initialize_wgmma_descriptor<[\d, ]*>\(desc_b_1,.*\n",
        words=r"line \d+ cannot be read: 'desc_b_1'",
    ),
    "a product under a condition on data": fault(
        "seed",
        r"( +)(for \(int ki_1 = 0;.*\n.*\n *\}\n)",
        r"\1if (scores_max[0] != 1.0f) {\n\1\2\1}\n",
        words=r"cannot be read: line \d+: .* in 'scores_max\[0\] != 1.0f'",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_pipelined_kernel_is_refused(name):
    refused(FAULTS[name])
