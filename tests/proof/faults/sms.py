"""These faults concern how many thread blocks there are, on each SM and on all."""

from faults.table import fault, rows, small

ONE_BLOCK = "it has one block on an SM, a tile for each block, and moves no registers"
ROWS = [
    *rows("short", ONE_BLOCK,
        ("registers of one block", "registers are those of 1 blocks on an SM, expected 2",
            "extern __launch_bounds__: (256, 2) -> (256, 1)"),
        ("registers of three blocks", "registers are those of 3 blocks on an SM, expected 2",
            "extern __launch_bounds__: (256, 2) -> (256, 3)"),
        ("registers that are not there", r"starts with .*more registers \(240\)",
            "warpgroup_reg_alloc: 232> -> 240>"),
        ("registers that the producer keeps", r"starts with .*fewer registers \(32\)",
            "warpgroup_reg_dealloc: 24> -> 32>"),
        ("one more block", r"the number of blocks is workers \+ 1, expected workers", "grid.0 := workers + 1"),
        ("the next tile is that of one block an SM",
            r"the next tile's number of the producer of block 0 is number \+ 132, expected workers \+ number",
            "producer tile = tile -> (tile + 132)"),
        long=[("a block for each SM", "the number of blocks is 132, expected workers", "grid.0 := 132")]),
    small("registers of two blocks where there is one",
        ("those of 2 blocks .* expected 1", "extern __launch_bounds__: (384, 1) -> (384, 2)"),
        ("its registers are those of 2 blocks on an SM, expected 1", "extern __launch_bounds__: (256, 1) -> (256, 2)"),
        ("its registers are those of 2 blocks on an SM, expected 1", "extern __launch_bounds__: (128, 1) -> (128, 2)")),
    small("no bound",
        fault("short", "is no kernel of a form that is known", "extern __launch_bounds__: (256, 2) -> (256)"),
        (r"'extern .C. __global__ void __launch_bounds__\(256\) attention_kernel\(const",
            "extern __launch_bounds__: (256, 1) -> (256)"),
        (r"'extern .C. __global__ void __launch_bounds__\(128\) attention_kernel\(const",
            "extern __launch_bounds__: (128, 1) -> (128)")),
    *rows("best", ONE_BLOCK,
        ("the producer goes on as on another GPU",
            r"the next tile's number of the producer of block 0 is number \+ 66, expected workers \+ number",
            "producer tile = tile -> (tile + 66)"),
        long=[("a block for each SM of another GPU", r"the number of blocks is 132, expected 2\*workers", "grid.0 := 132")]),
    *rows("best_causal", ONE_BLOCK,
        long=[("the counter begins with the tiles of another GPU",
            r"the number that is told of the next tile is TileCounter\[0\] \+ 132, expected TileCounter\[0\] \+ workers",
            "next_tile TileCounter: + workers -> + 132"),
        ("the last block of another GPU resets the counter",
            r"the counters of tiles are reset by \[\(0, 0, 1, False\), \(1, 0, 1, False\)\], expected the last of"
            " workers blocks", "bool if_condition =: (workers - 1) -> 131")]),
]  # fmt: skip
