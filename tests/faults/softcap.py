"""These faults concern sinks and the softcap."""

from faults.table import ASKED, Row, edit, edits

READ = r"( *)own\[0\] = Sinks\[\(\(int64_t\)(\w+|\(\(int\)blockIdx\.y\))\)\];\n"
STORE = r"( *)(tl_attention_store<.*\n)"
NO_SINKS = "it computes no softcap and no sinks"
NUMBERS = "its cap is arithmetic of its own, which is left to the numbers"
ROWS = [
    Row("the sink of the next head",
        *edits(ASKED[:2], r"Sinks of heads \[1\]", READ, r"\1own[0] = Sinks[(\2 + 1)];\n"), NO_SINKS),
    Row("the sink of the first head",
        *edits(ASKED[:2], r"Sinks of heads? \[?0", READ, r"\1own[0] = Sinks[0];\n"), NO_SINKS),
    Row("the sink of the batch",
        edit("best_causal, asked", r"Sinks of heads? \[?0", READ, r"\1own[0] = Sinks[bz_1];\n"),
        edit("seed, asked", r"Sinks of heads \[1\]", READ, r"\1own[0] = Sinks[((int64_t)((int)blockIdx.z))];\n"),
        NO_SINKS),
    Row("the sink of a head of the first 256",
        edit("best, asked", r"tile 3 of block 116: \(row, head, batch\) of Sinks of warpgroup 0 is \[0, 0, 0\], expected \[256, 256, 256\]", READ, r"\1own[0] = Sinks[(\2 & 255)];\n"),
        edit("seed, asked", r"it stores rows of head 14 with Sinks of heads \[2\]", READ,
            r"\1own[0] = Sinks[((\2) & 3)];\n"), NO_SINKS),
    Row("the sink of the tile", edit("best, asked", "Sinks of head", READ, r"\1own[0] = Sinks[tile_1];\n"),
        edit("seed, asked", r"it stores rows of head 14 with Sinks of heads \[0\]", READ,
            r"\1own[0] = Sinks[((int64_t)((int)blockIdx.x))];\n"), NO_SINKS, long=True),
    Row("no sink is read",
        *edits(ASKED[:2], r"with Sinks of heads \[\]", READ, ""), NO_SINKS),
    Row("two sinks are read",
        *edits(("ws_seed, asked", "seed, asked"), r"Sinks of heads \[0, 0", READ, r"\g<0>\g<0>"), NO_SINKS),
    Row("half of the threads read a sink",
        *edits(ASKED[:2], ("64 of the 128 threads of .* run it", "64 of the 256 threads of block .* run it"), READ,
            r"\1if (((int)threadIdx.x) < 64) {\n\g<0>\1}\n"), NO_SINKS),
    Row("the sink is read behind the store",
        edit("best, asked", r"with Sinks of heads \[\]", rf"{READ}([\s\S]*?)\n{STORE}",
            r"\3\n\4\5\1own[0] = Sinks[\2];\n"),
        edit("seed, asked", r"it stores rows of head 0 with Sinks of heads \[\]", rf"{READ}([\s\S]*?)\n\}}\n",
            r"\3\n\1own[0] = Sinks[\2];\n}\n"), NO_SINKS),
    Row("another tensor's element for a sink",
        *edits(ASKED[:2], "is nothing that is known", r"= Sinks\[", "= Output["), NO_SINKS),
    Row("a cap of some of the scores",
        edit("best, asked", "is nothing that is known", r"cap<88, false>", "cap<80, false>"), NUMBERS, NO_SINKS),
    Row("another cap", edit("best, asked", "is not its prelude", r"furthest <= 0\.375f", "furthest <= 9.5f"), NUMBERS,
        NO_SINKS),
    Row("the sink of a thread",
        *edits(ASKED[:2], "value differs between threads", READ, r"\1own[0] = Sinks[((int)threadIdx.x)];\n"),
        NO_SINKS),
    Row("the scale for the softcap",
        *edits(ASKED[:2], "is launched with", r"\(\(double\)softcap\)", "((double)softmax_scale)", host=True),
        NO_SINKS),
    Row("V's address for the sinks'",
        *edits(ASKED[:2], "in the form that TileLang|is launched with",
            r"(stack_ffi_any\)\[\d+\]\.v_ptr\) = )Sinks;\n", r"\1V;\n", host=True), NO_SINKS),
]  # fmt: skip
