"""These faults concern keys in parts: which blocks a part has, and where its results go."""

from typing import Any

from faults.table import Row, edit

NONE = "it computes no parts of the keys"
WINDOW, CAUSAL = "short, parts", "best_causal, parts"
# Of packed sequences, with rows of several heads for each query and of one.
PACKED, OF_QUERY = "short, packed parts", "grouped, packed parts"


def row(name: str, kernel: str, words: str, *texts: str, **options: Any) -> Row:
    return Row(name, edit(kernel, words, *texts, **options), NONE)


ROWS = [
    row("the producer's part ends a block late", CAUSAL, "expected",
        r"( blocks = min\(blocks, \(\(part \+ 1\) \* part_blocks\))", r"\1 + 1"),
    row("a warpgroup's part begins a block early", CAUSAL, "index depends on the tile|expected",
        r" first_1 = max\(first_1, \(part_1 \* part_blocks\)\);", " first_1 = max(first_1, (part_1 * part_blocks) - 1);"),
    row("a part has two blocks at most", CAUSAL, "expected",
        r"(    blocks = )(max\(\(blocks - first\), 1\));\n", r"\1min(\2, 2);\n"),
    row("a future key is seen in parts that begin far behind", CAUSAL, "is not masked",
        r"(visible = )\(visible - first_1\);", r"\1((visible - first_1) + (first_1 >> 3));"),
    row("a part before the window has the window's first block", WINDOW, "expected",
        r" first = min\(first, .*;", ""),
    row("each part is the first", CAUSAL, "expected|another tile",
        r" part = (.*);", r" part = 0;", which="last"),
    row("its output goes where the queries lie", WINDOW, "expected output|at another row|expected",
        r"(tl_attention_store_part_of<104, 3, 21>\(acc_o, \(&\(Output\[.*)result_2", r"\1bz_1"),
    row("its LSE goes where the queries lie", WINDOW, "expected",
        r"(tl_attention_store_lse_of<3, 21>\(.*)result_2", r"\1bz_1"),
    row("rows of a part are as wide as the tile", WINDOW, "at another row",
        r"tl_attention_store_part_of<104,", "tl_attention_store_part_of<128,"),
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
    row("K of the head of a packed part's results", PACKED, "expected",
        r"^ +head = .*rmod_1.*\n", "", which="first"),
    row("each part of a packed sequence is the first", PACKED, "expected|another tile",
        r" part = (.*);", r" part = 0;", which="last"),
    row("a packed part has another number of blocks than it is told", OF_QUERY, "expected|index depends",
        r"( part_blocks_1 = next_tile\[.*) \+ 7\)\];", r"\1 + 6)];", which="last"),
    row("its packed output goes where the first part's goes", OF_QUERY, "expected|at another row",
        r"(tl_attention_store_part<128>\(acc_o, \(&\(Output\[.*)head_3", r"\1turn_3"),
    row("a head has as many queries as rows", OF_QUERY, "is not masked|expected",
        r"^( +visible = min\(.*\(seq_q_\d) / 8", r"\1 / 16"),
    row("queries of fewer heads are gathered", PACKED, "the kernel that lists the tiles",
        r"tl_attention_gather_rows<128, 4>", "tl_attention_gather_rows<128, 2>"),
    row("queries are gathered by too few blocks", PACKED, "the queries are gathered by",
        r"\+ 63\) >> 6\) \+ 1\)", "+ 63) >> 6) + 0)", host=True),
    row("packed rows are merged as those of a batch", PACKED, "the kernel that merges parts is",
        r"tl_attention_merge<128, true, 4>", "tl_attention_merge<128, true>"),
    row("too few packed rows are merged", OF_QUERY, "the kernel that merges parts has",
        r">> 3\)\) \+ 1\)", ">> 3)) + 2)", host=True),
]  # fmt: skip
