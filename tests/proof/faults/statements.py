"""Faults in statements, directives and declarations of the C++, and in reads of registers before they are set."""

from faults.table import LARGE, Row, edit, edits

ONE_AT_ONCE = "each product is waited for where it is issued"
NO_WGMMA = "a product is over with its instruction"
ROWS = [
    Row(
        "a second statement in a line",
        edit(
            "best",
            "is nothing that is known",
            r"^( +scores_scale\[i_\d+\] = .*)$",
            r"\1 tl::fence_proxy_async();",
            which="first",
        ),
        edit(
            "seed",
            "is nothing that is known",
            r"^( +scores_scale\[i_\d+\] = .*)$",
            r"\1 __syncthreads();",
            which="first",
        ),
        edit(
            "mma_sync", "is nothing that is known", r"^( +acc_o\[i_\d+\] = .*)$", r"\1 __syncthreads();", which="first"
        ),
    ),
    Row(
        "an assignment within an expression",
        edit(
            "best",
            "is nothing that is known",
            r"(scores_scale\[i_\d+\] = )(0x0p\+0f.*);",
            r"\1(batch = 1) * \2;",
            which="first",
        ),
        edit(
            "seed", "is nothing that is known", r"(scores_max_prev \+ 0\) = )(.*);", r"\1(seq_kv++, \2);", which="first"
        ),
        edit(
            "mma_sync",
            "is nothing that is known",
            r"(acc_o\[i_\d+\] = )(0x0p\+0f.*);",
            r"\1(heads = 1) * \2;",
            which="first",
        ),
    ),
    Row(
        "an output of another type",
        edit(
            "best",
            r"Output is a float\*, expected half_t\*",
            r"half_t\* __restrict__ Output",
            "float* __restrict__ Output",
            which="all",
        ),
        edit(
            "seed",
            r"K is a float\*, expected half_t\*",
            r"half_t\* __restrict__ K\b",
            "float* __restrict__ K",
            which="all",
        ),
        edit(
            "mma_sync",
            r"Output is a uint\*, expected half_t\*",
            r"half_t\* __restrict__ Output",
            "uint* __restrict__ Output",
            which="all",
        ),
    ),
    Row(
        "a kernel declared as another",
        *edits(
            LARGE,
            "stands before the kernel",
            r"(attention_kernel\(.*), float softmax_scale\);",
            r"\1, int softmax_scale);",
        ),
    ),
    Row(
        "a macro behind the prelude",
        *edits(
            LARGE,
            "'#define seq_kv seq_q' stands before the kernel",
            "(#ifdef ENABLE_BF16)",
            r"#define seq_kv seq_q\n\1",
        ),
    ),
    Row(
        "another header",
        *edits(LARGE, "'#include <mine.h>' stands before the kernel", "(#ifdef ENABLE_BF16)", r"#include <mine.h>\n\1"),
    ),
    Row(
        "alignment that stays another",
        *edits(LARGE, "stands before the kernel", "^#undef alignas\n#define alignas .*\n", ""),
    ),
    Row(
        "scores read before the wait for their product",
        edit(
            "best_causal",
            "acc_s is used before the wait for the product into it",
            r"^( +)(tl::wait_wgmma<1>\(\);)",
            r"\1of_thread[0] = max(of_thread[0], acc_s[0]);\n\1\2",
            which="first",
        ),
        edit(
            "seed",
            "acc_s is used before the wait for the product into it",
            r"^( +)(tl::warpgroup_wait<0>\(\);)",
            r"\1scores_max[0] = max(scores_max[0], acc_s[0]);\n\1\2",
            which="first",
        ),
        NO_WGMMA,
    ),
    Row(
        "the output rescaled before the wait for its product",
        edit(
            "best_causal",
            "acc_o is used before the wait for the product into it",
            r"^( +)(tl::wait_wgmma<0>\(\);)",
            r"\1acc_o[0] = (acc_o[0] * scores_scale[0]);\n\1\2",
            which="last",
        ),
        edit(
            "seed",
            "acc_o is used before the wait for the product into it",
            r"^( +)(tl::warpgroup_wait<0>\(\);)",
            r"\1acc_o[0] = (acc_o[0] * scores_scale[0]);\n\1\2",
            which="last",
        ),
        NO_WGMMA,
    ),
    Row(
        "P written before the wait for the product that reads it",
        edit(
            "best_causal",
            "acc_s_cast is written before the wait for the product that reads it",
            r"^( +)(tl::wait_wgmma<0>\(\);)",
            r"\1acc_s_cast[0] = ((half_t)acc_s[0]);\n\1\2",
            which="last",
        ),
        edit(
            "seed",
            "acc_s_cast is written before the wait for the product that reads it",
            r"^( +)(tl::warpgroup_wait<0>\(\);)",
            r"\1acc_s_cast[0] = ((half_t)acc_s[0]);\n\1\2",
            which="last",
        ),
        NO_WGMMA,
    ),
    Row(
        "scores kept before the wait for their product",
        edit(
            "best",
            "acc_s is used before the wait for the product into it",
            r"^( +)(tl::wait_wgmma<1>\(\);)",
            r"\1tl_attention_hold_last<15>(acc_s, (softmax_scale * 0x1.71547652b82fep+0f/*1.442695e+00*/));\n\1\2",
            which="first",
        ),
        ONE_AT_ONCE,
        NO_WGMMA,
    ),
    Row(
        "a shift beyond an integer's bits",
        edit("best", "of an integer of 32 bits", r"(visible = .*) >> 31\)", r"\1 >> 33)"),
        edit("seed", "of an integer of 32 bits", r"(for \(int kv = .*) >> 7\)", r"\1 >> 39)"),
        edit("mma_sync", "of an integer of 32 bits", r"(visible = .*) >> 6\)", r"\1 >> 38)"),
    ),
    Row(
        "a lane elected of two threads",
        edit(
            "best",
            "one of 2 threads is elected, expected warps",
            r"tl_shuffle_elect<0>",
            "tl_shuffle_elect<2>",
            which="first",
        ),
        edit(
            "seed",
            "one of 2 threads is elected, expected warps",
            r"tl_shuffle_elect<(\d+)>",
            "tl_shuffle_elect<2>",
            which="first",
        ),
        "it elects no lane",
    ),
]
