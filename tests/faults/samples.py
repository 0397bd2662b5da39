"""Only some tiles have these faults: a block's number, a head, a sequence or a length decides what it should not."""

from faults.table import LARGE, Row, edit, edits, only_if, says

ONE_TILE = "it has no mbarriers"
ALL_MASKED = "it masks every KV block"
LATER = r"(2 <= ((int)blockIdx.x))"
TILE, PLACE = "depends on the tile", "is not where that of other tiles is"
SOME, OFFSET = "runs for some tiles alone", "tl::increase_descriptor_offset<int>"
BARRIER = r"^( +)__syncthreads\(\);$"
ROWS = [
    Row(
        "a query that sees a future key at few lengths",
        edit("best_causal", "with hidden keys is not masked", r"(visible = .*first_row_1 \+ seq_kv\) \+ )1", r"\g<1>2"),
        ALL_MASKED,
        edit(
            "mma_sync",
            "not masked|not as long|runs for some tiles",
            r"(visible = .*first_row \+ seq_kv\) \+ )1",
            r"\g<1>2",
        ),
        long=True,
    ),
    Row(
        "no KV block for rows without a key",
        edit("best_causal", TILE, r"blocks_1 = max\(blocks_1, 1\);", "blocks_1 = max(blocks_1, 0);"),
        "its first blocks come before its loop",
        edit(
            "mma_sync",
            says("load K[0] (0) at (34688, 64)", "load K[0] (0) at (42880, 64)"),
            r"blocks = max\(blocks, 1\);",
            "blocks = max(blocks, 0);",
        ),
        long=True,
    ),
    Row(
        "a tile of a problem that has none",
        edit("best_causal", "by zero", r"\(tile < (.*\* batch\))\)\)", r"(tile < max(\1, 1)))"),
        "its grid has no block then",
        "its grid has no block then",
        long=True,
    ),
    Row(
        "a query that sees two future keys at few lengths",
        edit("best_causal", "with hidden keys is not masked", r"(visible = .*first_row_1 \+ seq_kv\) \+ )1", r"\g<1>3"),
        ALL_MASKED,
        edit(
            "mma_sync",
            "not masked|not as long|runs for some tiles",
            r"(visible = .*first_row \+ seq_kv\) \+ )1",
            r"\g<1>3",
        ),
        long=True,
    ),
    Row(
        "an mbarrier with other counts in later blocks",
        edit("best", TILE, r"K_empty\[0\]\.init\((\d+)\)", rf"K_empty[0].init(\1 + {LATER})"),
        ONE_TILE,
        long=True,
    ),
    Row(
        "an mbarrier with other counts in later blocks, where sizes are fixed",
        edit("best, fixed", TILE, r"K_empty\[0\]\.init\((\d+)\)", rf"K_empty[0].init(\1 + {LATER})"),
        ONE_TILE,
        long=True,
    ),
    Row(
        "a turn that is not passed on in later tiles, where sizes are fixed",
        edit(
            "best, fixed",
            SOME,
            r"^( +)(tl::__named_barrier_arrive\(\(2 - wg_2\), 256\);)",
            "\\1if (tile_1 < 70) {\n\\2\n}",
            which="first",
        ),
        "it takes no turns",
        long=True,
    ),
    Row(
        "bytes announced twice in later blocks",
        edit("best", TILE, r"expect_transaction\((\d+)\)", rf"expect_transaction(\1 + \1 * {LATER})", which="first"),
        ONE_TILE,
        long=True,
    ),
    Row(
        "other bytes for long queries",
        edit(
            "best", TILE, r"expect_transaction\((\d+)\)", r"expect_transaction(5000 < seq_q ? 64 : \1)", which="first"
        ),
        ONE_TILE,
        long=True,
    ),
    Row(
        "a named barrier of more threads in later blocks",
        edit("best", TILE, r"__named_barrier_arrive\(1, 256\)", f"__named_barrier_arrive(1, (256 + 128 * {LATER}))"),
        ONE_TILE,
        long=True,
    ),
    Row(
        "a release that one block leaves out",
        edit(
            "best",
            "asks whether blockIdx_x equals something",
            r"^( +)(K_empty\[.*\]\.arrive\(.*\);)$",
            "\\1if (((int)blockIdx.x) != 131) {\n\\2\n}",
            which="first",
        ),
        ONE_TILE,
    ),
    Row(
        "a release that late blocks leave out",
        edit(
            "best",
            SOME,
            r"^( +)(K_empty\[.*\]\.arrive\(.*\);)$",
            "\\1if (((int)blockIdx.x) < 131) {\n\\2\n}",
            which="first",
        ),
        ONE_TILE,
        long=True,
    ),
    Row(
        "a barrier that few heads have",
        edit(
            "best",
            SOME,
            r"^( +)(tl::__named_barrier_arrive\(\(2 - wg_2\), 256\);)",
            "\\1if (head_1 < 5000) {\n\\2\n}",
            which="first",
        ),
        *edits(
            LARGE[1:],
            "runs for some tiles alone|does not run|barrier",
            BARRIER,
            "\\1if (((int)blockIdx.y) < 3) {\n__syncthreads();\n}",
            which="first",
        ),
        long=True,
    ),
    Row(
        "an MMA1 that clears the output in later blocks",
        edit("best", TILE, r"\(\(blocks_3 == 1\) \? 0 : 1\)", rf"((blocks_3 == 1) ? 0 : (1 - {LATER}))", which="first"),
        "its products take no number of a block",
        long=True,
    ),
    Row(
        "a step to the next tile that many batches do not take",
        edit("best", "runs where there is no tile", *only_if("batch < 1000"), within=r"tile_1 = \(tile_1 \+ 66\);"),
        ONE_TILE,
        long=True,
    ),
    Row(
        "a last tile that is never reached",
        edit("best", "runs where there is no tile", r"if \(!\(\(tile_1 < ", "if (!((min(tile_1, 2000) < "),
        ONE_TILE,
        long=True,
    ),
    Row(
        "a single tile that many heads repeat",
        edit("one_tile", "runs where there is no tile", r"(tile = .*>> 8\) \* )heads\)", r"\1(heads & 1023))"),
        ONE_TILE,
    ),
    Row(
        "the buffer of a product under a condition of sizes",
        edit("best", SOME, *only_if("batch < 1000"), within=rf"{OFFSET}\(desc_b,"),
        edit("fa3_pipelined", SOME, *only_if("seq_q < 5000"), within=rf"{OFFSET}\(desc_b_2,"),
        "it has no descriptors",
        long=True,
    ),
    Row(
        "an MMA1 that clears the output at one length in a thousand",
        edit("best", "asks for bits of blocks", r"\(blocks_3 == 1\)", "((blocks_3 & 1023) == 1)", which="first"),
        "its products take no number of a KV block",
    ),
    Row(
        "a softmax left out of the first tiles of long problems",
        "its arithmetic is under conditions of the loop alone",
        edit(
            "seed_causal",
            SOME,
            r"(255\) - )seq_q(\)\) / 128\), 2\) \+ kv_1\) < 3)",
            r"\1min(seq_q, 2000)\2",
            which="first",
        ),
        "its arithmetic is under conditions of the loop alone",
        long=True,
    ),
    Row(
        "one KV block less for many sequences",
        edit("best_causal", "not as long", r"blocks = max\(blocks, 1\);", "blocks = max((blocks - (300 < batch)), 1);"),
        edit(
            "seed",
            "not as long|is not where",
            r"max\(\(\(\(seq_kv \+ 127\) >> 7\) - 2\), 0\)",
            "max(((((seq_kv + 127) >> 7) - 2) - (4 < batch)), 0)",
            which="first",
        ),
        edit(
            "mma_sync",
            "not as long|is not where",
            r"blocks = max\(blocks, 1\);",
            "blocks = max((blocks - (300 < batch)), 1);",
        ),
        long=True,
    ),
    Row(
        "rows of the output that many sequences do not move",
        edit("best_causal", PLACE, *only_if("batch < 1000"), within=r"first_row_1 = \(first_row_1 \* 128\);"),
        "its rows are those of its block",
        long=True,
    ),
    Row(
        "a counter of tiles that is left after many sequences",
        edit("best_causal", SOME, *only_if("batch < 1000"), within=r"TileCounter\[0\] = 0;"),
        "it has no counter",
        long=True,
    ),
    Row(
        "a loop with fewer iterations after long keys",
        edit(
            "best_causal",
            "has more iterations than its tile has KV blocks",
            r"(for \(int t = 0; t < max\(\(min\(\(blocks_3 - )visible_1",
            r"\1min(visible_1, 2000)",
            which="first",
        ),
        "its loop has one bound",
        long=True,
    ),
    Row(
        "the sequence modulo a power of 2",
        edit("best", PLACE, r"int bz_2 = bz;", "int bz_2 = (bz & 1023);"),
        edit("seed", PLACE, r"(cp_async.*Z)".replace("Z", r"\(\(int\)blockIdx\.z\)"), r"\1 & 3", which="first"),
        edit("mma_sync", PLACE, r"(cp_async.*)\(\(int\)blockIdx\.z\)", r"\1(((int)blockIdx.z) & 3)", which="first"),
        long=True,
    ),
    Row(
        "the head modulo a power of 2",
        edit("best", PLACE, r"int head_2 = head;", "int head_2 = (head & 2047);"),
        edit("seed", PLACE, r"(cp_async.*)\(\(int\)blockIdx\.y\)", r"\1(((int)blockIdx.y) & 2047)", which="first"),
        edit("mma_sync", PLACE, r"(cp_async.*)\(\(int\)blockIdx\.y\)", r"\1(((int)blockIdx.y) & 1023)", which="first"),
        long=True,
    ),
    Row(
        "another head for one",
        edit(
            "best",
            "asks whether head equals something",
            r"int head_2 = head;",
            "int head_2 = (head == 1234 ? 0 : head);",
        ),
        *edits(
            LARGE[1:],
            "asks whether blockIdx_y equals something",
            r"(cp_async.*)\(\(int\)blockIdx\.y\)",
            r"\1(((int)blockIdx.y) == 1234 ? 0 : ((int)blockIdx.y))",
            which="first",
        ),
    ),
    Row(
        "the sink of an early head for a late one",
        edit("best_causal, asked", PLACE, r"Sinks\[\(\(int64_t\)(\w+)\)\]", r"Sinks[min(\1, 2000)]"),
        edit("seed, asked", PLACE, r"Sinks\[(.*)\];", r"Sinks[min(\1, 2000)];"),
        "it takes no sinks",
        long=True,
    ),
    Row(
        "a softmax left out where the last KV block has one key",
        "its arithmetic is under conditions of the loop alone",
        edit(
            "seed",
            SOME,
            r"(<= \(\(seq_kv \+ )127(\) >> 7\)\) \|\| .*\{\n *\*\(float2\*\)\(scores_max_prev)",
            r"\g<1>126\2",
        ),
        "its arithmetic is under conditions of the loop alone",
        long=True,
    ),
]
