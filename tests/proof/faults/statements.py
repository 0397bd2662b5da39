"""Faults in statements, directives and declarations of the C++, and in reads of registers before they are set."""

from faults.table import LARGE, Row, edits, fault, faults, large, rows, small
from faults.words import SCORES_EARLY, UNKNOWN

ONE_AT_ONCE = "each product is waited for where it is issued"
NO_WGMMA = "a product is over with its instruction"
ROWS = [
    large("a second statement in a line", (UNKNOWN, "the first scores_scale[i] = -> $; tl::fence_proxy_async()"),
        (UNKNOWN, "the first scores_scale[i] = -> $; __syncthreads()"),
        (UNKNOWN, "the first acc_o[i] = -> $; __syncthreads()")),
    large("an assignment within an expression", (UNKNOWN, "the second scores_scale[i] = -> (batch = 1) * $"),
        (UNKNOWN, "the first float2 scores_max_prev: = X; -> = (seq_kv++, X);"),
        (UNKNOWN, "the first acc_o[i] = -> (heads = 1) * $")),
    large("an output of another type",
        (r"Output is a float\*, expected half_t\*",
            "every extern: half_t* __restrict__ Output -> float* __restrict__ Output"),
        (r"K is a float\*, expected half_t\*", "every extern: half_t* __restrict__ K -> float* __restrict__ K"),
        (r"Output is a uint\*, expected half_t\*",
            "every extern: half_t* __restrict__ Output -> uint* __restrict__ Output")),
    large("a kernel declared as another",
        *faults(LARGE, "stands before the kernel", "the first extern: float softmax_scale -> int softmax_scale")),
    Row("a macro behind the prelude", *edits(LARGE, "'#define seq_kv seq_q' stands before the kernel",
        "(#ifdef ENABLE_BF16)", r"#define seq_kv seq_q\n\1")),
    Row("another header", *edits(LARGE, "'#include <mine.h>' stands before the kernel",
        "(#ifdef ENABLE_BF16)", r"#include <mine.h>\n\1")),
    Row("alignment that stays another",
        *edits(LARGE, "stands before the kernel", "^#undef alignas\n#define alignas .*\n")),
    small("scores read before the wait for their product",
        fault("best_causal", SCORES_EARLY, "the second wait_wgmma -> of_thread[0] = max(of_thread[0], acc_s[0]);\n$"),
        (SCORES_EARLY, "the first warpgroup_commit_batch -> $\nscores_max[0] = max(scores_max[0], acc_s[0]);"),
        NO_WGMMA),
    small("the output rescaled before the wait for its product",
        fault("best_causal", "acc_o is used before the wait for the product into it",
            "the last __named_barrier_arrive -> $\nacc_o[0] = (acc_o[0] * scores_scale[0]);"),
        ("acc_o is used before the wait for the product into it",
            "the last warpgroup_commit_batch -> $\nacc_o[0] = (acc_o[0] * scores_scale[0]);"), NO_WGMMA),
    small("P written before the wait for the product that reads it",
        fault("best_causal", "acc_s_cast is written before the wait for the product that reads it",
            "the last __named_barrier_arrive -> $\nacc_s_cast[0] = ((half_t)acc_s[0]);"),
        ("acc_s_cast is written before the wait for the product that reads it",
            "the last warpgroup_commit_batch -> $\nacc_s_cast[0] = ((half_t)acc_s[0]);"), NO_WGMMA),
    *rows("best", (ONE_AT_ONCE, NO_WGMMA),
        ("scores kept before the wait for their product", SCORES_EARLY,
            "wait_wgmma 1 -> tl_attention_hold_last<15>(acc_s, (softmax_scale *"
            " 0x1.71547652b82fep+0f/*1.442695e+00*/));\n$")),
    large("a shift beyond an integer's bits", ("of an integer of 32 bits", "visible =: >> 31 -> >> 33"),
        ("of an integer of 32 bits", "the first for kv: >> 7 -> >> 39"),
        ("of an integer of 32 bits", "visible =: >> 6 -> >> 38")),
    small("a lane elected of two threads",
        *faults(LARGE[:2], "one of 2 threads is elected, expected warps", "the first if: 0> -> 2>"),
        "it elects no lane"),
]  # fmt: skip
