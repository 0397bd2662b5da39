"""These faults concern windows."""

from faults.table import asked, fault, rows
from faults.words import BELOW_0, BLOCK_UNMASKED, BOUND_K, BOUND_V, COPY_K, COPY_V, LOOP_OF_V, UNMASKED

ONE_FIRST = "a block's warps take the same blocks: see the producer's first block, and the loop at the right edge"
MASKS_ALL = "it masks each block: see a ragged block without a mask"
ROWS = [
    asked("a window reaches 1000 keys back at most",
        fault("one_tile, asked", "the producer of block 0 ends before a loop",
            "producer first =: window_left -> min($, 1000)"),
        ("expected", "every: - window_left), 0) >> 7 -> - min(window_left, 1000)), 0) >> 7"),
        ("expected", "first =: window_left -> min($, 1000)")),
    asked("a window reaches 1000 keys ahead at most",
        fault("one_tile, asked", "expected",
            "every blocks = min -> min(blocks, (((((((first_row * 128) + seq_kv) + min(window_right, 1000))"
            " + 431) - seq_q) / 176) + (((((((first_row * 128) + seq_kv) + min(window_right, 1000)) + 431) -"
            " seq_q) % 176) >> 31)))"),
        ("expected", "every: + window_right) + 255 -> + min(window_right, 1000)) + 255"),
        ("expected", "blocks = min: window_right -> min($, 1000)")),
    asked("the producer's first block is one too early",
        fault("one_tile, asked", "the producer of block 0 ends before a loop", "producer first = -> $ - 1"),
        (BOUND_K, "every: - window_left), 0) >> 7 -> - (window_left + 128)), 0) >> 7"), (COPY_K, "first = -> $ - 1")),
    asked("the producer's first block is one too late",
        fault("one_tile, asked", "KV blocks|expected", "producer first = -> $ + 1"),
        (BOUND_K, "every: - window_left), 0) >> 7 -> - (window_left - 128)), 0) >> 7"), (COPY_K, "first = -> $ + 1")),
    *rows("one_tile, asked", ONE_FIRST,
        ("a warpgroup's first block is one too late",
            r"warpgroup 0 of block 0 does arrive Q_empty\[0\] \(1\).*, expected a loop",
            "consumers first = -> $ + 1")),
    asked("a warpgroup's blocks are one too few",
        fault("one_tile, asked", UNMASKED, "the last blocks = -> max(((blocks - first) - 1), 1)"), ONE_FIRST,
        (COPY_K, "blocks = max -> max(((blocks - first) - 1), 1)")),
    asked("the first whole block is one too early", fault("one_tile, asked", BELOW_0, "cut = -> $ - 1"), MASKS_ALL,
        ("a block: or before", "cut = -> $ - 1"), long=True),
    *rows("one_tile, asked", (MASKS_ALL, ONE_FIRST),
        long=[("the first whole block is that of the first row", BELOW_0, "cut =: X + 63 -> X + 0")]),
    asked("the last whole block is one too late", fault("one_tile, asked", UNMASKED, "visible = min -> $ + 1"),
        MASKS_ALL, (BOUND_V, "visible = min -> $ + 1")),
    asked("the right edge is counted from key 0", fault("one_tile, asked", UNMASKED, "visible = first ->"), MASKS_ALL,
        (BOUND_V, "visible = visible ->"), long=True),
    asked("the loop at the left edge ends early",
        fault("one_tile, asked", r"warpgroup 0 of block 0 does arrive Q_empty\[0\] \(1\).*, expected a loop",
            "the last for t.bound -> $ - 1"), ONE_FIRST,
        (r"a block does copies wait\b.*, expected a loop of \-v", "the last for t.bound -> $ - 1"), long=True),
    asked("the loop at the left edge starts late",
        fault("one_tile, asked", UNMASKED, "the second for t.bound: max(X, 0) -> max(X + 1, 0)"), ONE_FIRST,
        (BOUND_V, "the second for t.bound -> $ + 1")),
    asked("the loop at the left edge has no mask",
        fault("one_tile, asked", BELOW_0, "the last condval = CUDART_INF_F -> acc_s[i]"),
        (BLOCK_UNMASKED, "the second condval = CUDART_INF_F -> 0x0p+0f"),
        ("a block: or before", "condval = behind if again -> 0x0p+0f"), long=True),
    asked("the loop at the right edge ends early",
        fault("one_tile, asked", "the index of wait K_full of warpgroup 0",
            "the first for t.bound -> t < max((min((blocks - visible), blocks) - 1) - 1, 0)"),
        (LOOP_OF_V, "the first for k: - 2 -> - 3"), (COPY_V, "the first for t.bound -> $ - 1")),
]  # fmt: skip
