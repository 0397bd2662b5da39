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
    "a product of K of the slot that is loaded": fault("seed", PRODUCT_K, r"\1kv & 1\2"),
    "a product of K of the first slot": fault("seed", PRODUCT_K, r"\g<1>0\2"),
    "a product of K whose slot does not advance": fault(
        "seed", r" *tl::increase_descriptor_offset<int>\(desc_b_1, \(\(\(kv \+ 1\).*\n"
    ),
    "a product of V of the other slot": fault(
        "seed", r"(increase_descriptor_offset<int>\(desc_b_2, \(\()kv( & 1\) \* 32768\)\);)", r"\1(kv + 1)\2"
    ),
    "a product of V in K": fault("seed", r"(desc_b_2, \(&\(\(\(half_t\*\))V_shared", r"\1K_shared"),
    "a product of K of another slot from the fortieth block on": fault(
        "seed", PRODUCT_K, r"\1((kv + 1) + ((40 <= kv) ? 1 : 0)) & 1\2"
    ),
    "a product of three slots": fault(
        "prefetch", r"(increase_descriptor_offset<int>\(desc_b_1, \(\(\(kv \+ 1\)) % 3(\) \* 32768\)\);)", r"\1 % 2\2"
    ),
    "half of a product": fault("seed", r"ki_1 < 8", "ki_1 < 4"),
    "a product of the other warpgroup's Q": fault(
        "seed", r"(desc_a_1 \+ .*?\(\(\(int\)threadIdx\.x\) >> 7\)) \* 8192\)", r"\1 * 0)"
    ),
    "a load of K into the slot that is read": fault("seed", K_LOAD, r"\1(kv + 1)\2(&(K["),
    "a load of V into the slot that is read": fault("seed", V_LOAD, r"\1V_shared\2kv\3(&(V["),
    "V into K_shared": fault("seed", V_LOAD, r"\1K_shared\2(kv + 1)\3(&(V["),
    "V where K belongs": fault("seed", K_LOAD, r"\1kv\2(&(V["),
    "K where V belongs": fault("seed", V_LOAD, r"\1V_shared\2(kv + 1)\3(&(K["),
    "a load of K of the block before": fault("seed", r"(&\(K\[.*\(int64_t\))32768(\)\]\)\))", r"\g<1>16384\2"),
    "a load of V of the block before": fault(
        "seed", r"(&\(V\[.*kv\).*\(int64_t\)8\)\)) \+ \(int64_t\)16384(\)\]\)\))", r"\1\2"
    ),
    "a load of half of the rows": fault("seed", r"(i_11 = 0; i_11 < )8", r"\g<1>4"),
    "a load of K by half of the threads": fault(
        "seed",
        r"( +)(tl::cp_async_gs_conditional<16>.*\(kv & 1\).*\n)",
        r"\1if (((int)threadIdx.x) < 128) {\n\1\2\1}\n",
    ),
    "a load of 8 bytes where 16 belong": fault("seed", r"cp_async_gs<16>", "cp_async_gs<8>"),
    "a load of K beyond its end": fault(
        "seed", r"\+ 256\) < seq_kv\) && .*\)\);", r"+ 256) < (seq_kv + 1)) && true));"
    ),
    "a load of K that leaves the last row out": fault("seed", r"\+ 256\) < seq_kv\) && ", r"+ 257) < seq_kv) && "),
    "a load of K of another head": fault(
        "seed", r"(&\(K\[.*\(int64_t\)kv\).*\(\(int64_t\)\(\(int\)blockIdx)\.y", r"\1.z"
    ),
    "a block less": fault("seed", TRIPS, r"\1\2 - 3), 0); ++kv"),
    "a block more": fault("seed", TRIPS, r"\1\2 - 1), 0); ++kv"),
    "no block after the fortieth": fault("seed", TRIPS, r"\1min(\2, 40) - 2), 0); ++kv"),
    "a block less of the second head": fault("seed", TRIPS, r"\1(\2 - ((int)blockIdx.y)) - 2), 0); ++kv"),
    "the last block left out": fault("seed", r"kv_1 < 2(; \+\+kv_1)", r"kv_1 < 1\1"),
    "a block beyond the diagonal": fault("seed_causal", r"(int kv = 0;.*) \+ 255\) - seq_q", r"\1 + 383) - seq_q"),
    "Q of other rows": fault(
        "seed",
        r"(\n *condval = \*\(uint4\*\)\(Q \+ .*?\(\(int64_t\)\()\(int\)blockIdx\.x\)",
        r"\1((int)blockIdx.x) + 1)",
    ),
    "Q of another head": fault("seed", r"(\n *condval = .*\(\(int64_t\)\(\(int\)blockIdx)\.y", r"\1.z"),
    "Q beyond its end": fault(
        "seed", r"\(\(\(int\)threadIdx\.x\) >> 4\)\) < seq_q\)", "(((int)threadIdx.x) >> 4)) <= seq_q)"
    ),
    "half of Q": fault("seed", r"(int i = 0; i < )8", r"\g<1>4"),
    "no fence before the product of K": fault(
        "seed", r" *tl::fence_proxy_async\(\);\n(( *#.*\n)? *for \(int ki_1 )", r"\1"
    ),
    "no fence before the first product": fault(
        "seed", r" *tl::fence_proxy_async\(\);\n(( *#.*\n)? *for \(int ki = )", r"\1"
    ),
    "a product without its arrive": fault(
        "seed", r" *tl::warpgroup_arrive\(\);\n(( *(#|tl::fence).*\n)* *for \(int ki_1 )", r"\1"
    ),
    "a product that is not committed": fault(
        "seed", r"(desc_b_1 [^\n]*\n *\}\n) *tl::warpgroup_commit_batch\(\);\n", r"\1"
    ),
    "a product that is not waited for": fault(
        "seed", r"(desc_b_1 [^\n]*\n *\}\n.*commit_batch\(\);\n) *tl::warpgroup_wait<0>\(\);\n", r"\1"
    ),
    "loads that are not committed": fault("seed", r"(i_12 \* 1024\).*\n *\}\n) *tl::cp_async_commit\(\);\n", r"\1"),
    # Either wait of an iteration, and the barrier after it, would do alone.
    "waits that let a load go": Fault(
        "seed",
        ((WAIT_K, r"cp_async_wait<3>\2__syncthreads();\n\3"), (WAIT_V, r"cp_async_wait<3>\2__syncthreads();\n\3")),
    ),
    "no barrier after the waits": Fault("seed", ((WAIT_K, r"\1\2\3"), (WAIT_V, r"\1\2\3"))),
    "a barrier by half of the threads": fault(
        "seed",
        r"(cp_async_wait<1>\(\);\n)( *)(__syncthreads\(\);\n)(.*\n.*desc_a_1)",
        r"\1\2if (((int)threadIdx.x) < 128) {\n\2\3\2}\n\4",
    ),
    "no barrier before a slot is filled again": fault(
        "seed", r"(i_11 \* 1024\).*\n *\}\n.*commit\(\);\n) *__syncthreads\(\);\n", r"\1"
    ),
    "no barrier before the output is stored": fault(
        "seed", r" *__syncthreads\(\);\n( *if .*shuffle_elect<256>)", r"\1"
    ),
    "no fence before the output is stored": fault("seed", STORE, r"\2"),
    "a barrier after the fence instead of before": fault(
        "seed", r"( *__syncthreads\(\);\n)( *if .*shuffle_elect<256>\(\)\) \{\n *tl::fence_proxy_async\(\);\n)", r"\2\1"
    ),
    "an output that every warp stores": fault("seed", r"tl_shuffle_elect<256>", "tl_shuffle_elect<32>"),
    "an output that is not committed": fault("seed", r" *tl::tma_store_arrive\(\);\n"),
    "an output that is not waited for": fault("seed", r" *tl::tma_store_wait<0, true>\(\);\n"),
    "half of the output": fault("seed", r"i_30 < 2", "i_30 < 1"),
    "an output of other rows": fault("seed", r"(tma_store\(.*blockIdx\.x\)) \* 128\)", r"\1 * 64)"),
    "an output of another head": fault("seed", r"(tma_store\(.*, \(\(int\)blockIdx)\.y\)", r"\1.z)"),
    "an output of V_shared": fault("seed", r"(tma_store\(Output_desc, .*\))Q_shared", r"\1V_shared"),
    "shared memory of K that is not declared": fault("seed", r" *void\* K_shared = .*\n"),
    "V in K's shared memory": fault("seed", r"(void\* V_shared .*buf_dyn_shmem \+ )\d+", r"\g<1>49152"),
    "a descriptor that is not initialised": fault("seed", r" *tl::initialize_wgmma_descriptor<[\d, ]*>\(desc_b_1,.*\n"),
    "a product under a condition on data": fault(
        "seed", r"( +)(for \(int ki_1 = 0;.*\n.*\n *\}\n)", r"\1if (scores_max[0] != 1.0f) {\n\1\2\1}\n"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_pipelined_kernel_is_refused(name):
    refused(FAULTS[name])
