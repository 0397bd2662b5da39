"""These faults concern keys in parts: which blocks a part has, and where its results go."""

from typing import Any

from faults.table import Row, edit

NONE = "it computes no parts of the keys"
WINDOW, CAUSAL = "short, parts", "best_causal, parts"


def row(name: str, kernel: str, words: str, *texts: str, **options: Any) -> Row:
    return Row(name, edit(kernel, words, *texts, **options), NONE)


ROWS = [
    row("the producer's part ends a block late", CAUSAL, "expected",
        r"( blocks = min\(blocks, \(\(part \+ 1\) \* part_blocks\))", r"\1 + 1"),
    row("a warpgroup's part begins a block early", CAUSAL, "index depends on the tile|expected",
        r" first_1 = max\(first_1, \(part_1 \* part_blocks\)\);", " first_1 = max(first_1, (part_1 * part_blocks) - 1);"),
    row("a part before the window has the window's first block", WINDOW, "expected",
        r" first = min\(first, .*;", ""),
    row("each part is the first", CAUSAL, "expected|another tile",
        r" part = (.*);", r" part = 0;", which="last"),
    row("its output goes where the queries lie", WINDOW, "expected output|at another row|expected",
        r"(tl_attention_store_part<104>\(acc_o, \(&\(Output\[.*)result_2", r"\1bz_1"),
    row("its LSE goes where the queries lie", WINDOW, "expected",
        r"(tl_attention_store_lse\(.*)result_2", r"\1bz_1"),
    row("rows of a part are as wide as the tile", WINDOW, "at another row",
        r"tl_attention_store_part<104>", "tl_attention_store_part<128>"),
    row("K of the results' batch", CAUSAL, "expected",
        r"(tma_load\(K_desc.*), bz\w*\)", r"\1, result)"),
    row("parts of another number of columns are merged", CAUSAL, "the kernel that merges parts is",
        r"tl_attention_merge<128, false>\(Out", "tl_attention_merge<64, false>(Out"),
    row("parts are merged before they are there", CAUSAL, "is nothing that is known|the kernel that merges parts",
        r"cudaGridDependencySynchronize\(\);", ""),
    row("too few rows are merged", CAUSAL, "the kernel that merges parts has",
        r">> 3\)\) \+ 1\)", ">> 3)) + 2)", host=True),
    row("the results of parts are merged by another kernel's threads", CAUSAL, "parts are merged by",
        r"(\[\d+\]\.v_int64\) = \(\(int64_t\))256(\);)", r"\g<1>64\2", host=True, which="last"),
]  # fmt: skip
