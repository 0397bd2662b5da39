"""These faults concern rows of several heads in one tile: each has all queries, so a tile has all of their keys."""

from faults.table import Row, edit

NONE = "it computes no rows of several heads as those of one"
WINDOW, CAUSAL = "short, together", "best_causal, together"


def row(name: str, kernel: str, words: str, *texts: str, **options: str) -> Row:
    return Row(name, edit(kernel, words, *texts, **options), NONE)  # type: ignore[arg-type]


ROWS = [
    row("whole blocks are those of the tile's first row", CAUSAL, "expected mask",
        r"visible = min\(visible, \(\(\(seq_kv \+ 1\) - head_rows\) >> 7\)\);",
        "visible = min(visible, (((first_row_1 + seq_kv) + 1) - head_rows) >> 7);"),
    row("whole blocks are those of the last query", CAUSAL, "expected mask",
        r"(visible = min\(visible, \(\(\(seq_kv \+ 1\)) - head_rows\)", r"\1)"),
    row("blocks end where a head's rows end", CAUSAL, "it takes|expected",
        r"    blocks = \(\(seq_kv \+ 127\) >> 7\);", "    blocks = ((head_rows + 127) >> 7);"),
    row("the producer's blocks begin at the last query's window", WINDOW, "expected",
        r" first = \(max\(\(\(seq_kv - head_rows\) - window_left\), 0\) >> 7\);",
        " first = (max(((seq_kv - 1) - window_left), 0) >> 7);"),
    row("a warpgroup's blocks begin at the window of the first of all rows", WINDOW, "expected|KV blocks",
        r"( first_1 = \(max\(\(\(seq_kv - )head_rows", r"\1seq_q"),
    row("a window is cut for the first query alone", WINDOW, "expected mask",
        r"( cut = .*) \+ 127\)", r"\1 + 0)"),
]  # fmt: skip
