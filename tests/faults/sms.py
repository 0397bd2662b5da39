"""These faults concern how many thread blocks there are, on each SM and on all."""

from faults.table import SMALL, Row, edit, edits

BOUNDS = r"__launch_bounds__\(256, 2\)"
ONE_BLOCK = "it has one block on an SM, a tile for each block, and moves no registers"
ROWS = [
    Row("registers of one block",
        edit("short", "registers are those of 1 blocks on an SM, expected 2", BOUNDS, "__launch_bounds__(256, 1)"), ONE_BLOCK),
    Row("registers of three blocks",
        edit("short", "registers are those of 3 blocks on an SM, expected 2", BOUNDS, "__launch_bounds__(256, 3)"), ONE_BLOCK),
    Row("registers of two blocks where there is one",
        edit("best", "those of 2 blocks .* expected 1", r"__launch_bounds__\(384, 1\)", "__launch_bounds__(384, 2)"),
        *edits(SMALL[1:], "its registers are those of 2 blocks on an SM, expected 1",
            r"__launch_bounds__\((\d+), 1\)", r"__launch_bounds__(\1, 2)")),
    Row("no bound", edit("short", "is no kernel of a form that is known", BOUNDS, "__launch_bounds__(256)"),
        *edits(SMALL[1:],
            (r"'extern .C. __global__ void __launch_bounds__\(256\) attention_kernel\(const",
            r"'extern .C. __global__ void __launch_bounds__\(128\) attention_kernel\(const"),
            r"__launch_bounds__\((\d+), 1\)", r"__launch_bounds__(\1)")),
    Row("registers that are not there",
        edit("short", r"starts with .*more registers \(240\)", r"reg_alloc<232>", "reg_alloc<240>"), ONE_BLOCK),
    Row("registers that the producer keeps",
        edit("short", r"starts with .*fewer registers \(32\)", r"reg_dealloc<24>", "reg_dealloc<32>"), ONE_BLOCK),
    Row("one more block",
        edit("short", r"a grid of \[265, 1, 1\] .* expected 264 in 1", r"\(\(int64_t\)264\)", "((int64_t)265)",
            host=True), ONE_BLOCK),
    Row("a block for each SM",
        edit("short", r"a grid of \[132, 1, 1\] .* expected 264 in 1", r"\(\(int64_t\)264\)", "((int64_t)132)",
            host=True), ONE_BLOCK, long=True),
    Row("the next tile is that of one block an SM",
        edit("short", r"is load K\[1\] \(0\) of blocks \(0,\) at \(0, 132, 0\), expected load K", r" tile = \(tile \+ 264\);", " tile = (tile + 132);",
            r" tile_1 = \(tile_1 \+ 264\);", " tile_1 = (tile_1 + 132);"), ONE_BLOCK),
    Row("a block for each SM of another GPU",
        edit("best, 114 SMs", r"a grid of \[132, 1, 1\] .* expected 114 in 2", r"\(\(int64_t\)114\)", "((int64_t)132)",
            host=True), ONE_BLOCK, long=True),
    Row("the producer goes on as on another GPU",
        edit("best, 114 SMs", r"is load K\[1\] \(0\) of blocks \(0, 1\) at \(0, 66, 0\), expected load K",
            r" tile = \(tile \+ 57\);", " tile = (tile + 66);"), ONE_BLOCK),
    Row("the counter begins with the tiles of another GPU",
        edit("best_causal, 114 SMs", r"is load K\[1\] \(0\) of blocks \(0,\) at \(0, 132, 0\), expected load K", r"\+ 114\);", "+ 132);"), ONE_BLOCK, long=True),
    Row("the last block of another GPU resets the counter",
        edit("best_causal, 114 SMs", "it leaves the counters of tiles as", r"== 113\);", "== 131);"), ONE_BLOCK),
]  # fmt: skip
