"""Faults in rows of several heads in one tile: `box` of each for a warpgroup, loaded and stored head by head."""

from faults.table import Row, edit

NONE = "it computes no rows of several heads in a tile"
# Seven heads of 8 rows, 8 idle ones; four heads of 16; three of 21, in parts; five of 12, with sinks.
SEVEN, FOUR, PARTS, FIVE = "short, heads", "best_causal, heads", "short, parts", "best_causal, packed"
# Seven heads in two tiles of four, the second of which begins with the last head of the first.
SUBGROUPS = "short, packed subgroups"


def row(name: str, kernel: str, words: str, *texts: str, **options: str) -> Row:
    return Row(name, edit(kernel, words, *texts, **options), NONE)  # type: ignore[arg-type]


ROWS = [
    row("a box of the next group's head", FOUR, "boxes of several tiles",
        r"\(\(head_2 \* 4\) \+ member\), bz_2", "((head_2 * 4) + (member + 1) % 4), bz_2"),
    row("all boxes of one head", FOUR, "boxes of several tiles", r"\(\(head_2 \* 4\) \+ member\), bz_2", "(head_2 * 4), bz_2"),
    row("heads of another group", FOUR, "load Q|Q of warpgroup", r"\(\(head_2 \* 4\) \+ member\), bz_2",
        "((head_2 * 4) + (member + 4)), bz_2"),
    row("a head too few", FOUR, "boxes of columns and elements|boxes are expected",
        r"int member = 0; member < 4;", "int member = 0; member < 3;"),
    row("boxes as far apart as a warpgroup's rows allow", SEVEN, "boxes of columns and elements",
        r"\(member \* 256\)", "(member * 288)"),
    row("a box over the one before", PARTS, "boxes of columns and elements", r"\(member \* 1344\)", "(member * 1280)"),
    row("fewer bytes than a box has", FOUR, "boxes are expected as", r"expect_transaction\(2048\)", "expect_transaction(1024)"),
    row("the bytes of a whole tile for each box", FOUR, "boxes are expected as",
        r"expect_transaction\(2048\)", "expect_transaction(16384)"),
    row("rows of a warpgroup as of one head", FOUR, "load Q", r"\(\(wg_1 \* 16\) \+ first_row_2\)", "((wg_1 * 64) + first_row_2)"),
    row("rows of a tile as of one head", SEVEN, "does not fit 32 bits", r"        first_row = \(first_row \* 8\);",
        "        first_row = (first_row * 64);"),
    row("K of the head of Q", FOUR, "load K|K first", r"(tl::tma_load\(K_desc, .*), head_2, bz_2", r"\1, (head_2 * 4), bz_2"),
    row("idle rows stay", SEVEN, "does not begin with the idle rows", r"      tl_attention_clear<96, 56>.*\n", ""),
    row("the last head's rows are cleared", SEVEN, "it clears", r"tl_attention_clear<96, 56>", "tl_attention_clear<96, 48>"),
    row("an idle row too few is cleared", PARTS, "it clears", r"tl_attention_clear<128, 63>", "tl_attention_clear<128, 64>"),
    row("cleared rows of the next tile", SEVEN, "it clears", r"(tl_attention_clear<96, 56>.*Q_shared\)\[)0", r"\g<1>64"),
    row("rows are cleared and TMA does not know", SEVEN, "does not begin with the idle rows",
        r"(tl_attention_clear<96, 56>.*\n) *tl::fence_proxy_async\(\);\n", r"\1"),
    row("rows are cleared by one lane", SEVEN, "threads of the producer", r"(      )(tl_attention_clear<96, 56>.*)",
        r"\1if (((int)threadIdx.x) == 0) {\n\2\n}"),
    row("an output of eight heads", SEVEN, "stores rows of heads", r"tl_attention_store_of<true, 72, 7, 8>",
        "tl_attention_store_of<true, 72, 8, 8>"),
    row("an output of more rows of a head", SEVEN, "stores rows of heads", r"tl_attention_store_of<true, 72, 7, 8>",
        "tl_attention_store_of<true, 72, 7, 9>"),
    row("an output of other columns", SEVEN, "stores", r"tl_attention_store_of<true, 72, 7, 8>",
        "tl_attention_store_of<true, 96, 7, 8>"),
    row("an output of the other dtype", SEVEN, "stores", r"tl_attention_store_of<true, 72", "tl_attention_store_of<false, 72"),
    row("heads of the output as far apart as its rows", FOUR, "stores rows of heads|head_stride",
        r"Output_row_stride, Output_head_stride\)", "Output_row_stride, Output_row_stride)"),
    row("rows of the output as far apart as its heads", FOUR,
            r"the distance of rows of output of warpgroup 0 of block 0 is 8\*Output_head_stride, expected 8\*Output_row_stride",
            r"Output_row_stride, Output_head_stride\)", "Output_head_stride, Output_head_stride)"),
    row("an output of each fourth head's", FOUR, "output", r"(tl_attention_store_of<.*Output_head_stride\)) \* \(int64_t\)4\)", r"\1 * (int64_t)1)"),
    row("logarithms of one head", SEVEN, "stores rows of heads|is read", r"tl_attention_store_lse_of<7, 8>",
        "tl_attention_store_lse_of<1, 8>"),
    row("logarithms of heads that lie a row apart", SEVEN,
            r"the distance of heads of lse of warpgroup 0 of block 0 is seq_q \+ 1, expected seq_q",
        r"(tl_attention_store_lse_of<7, 8>.*\(\(int\)threadIdx\.x\)), seq_q\)", r"\1, (seq_q + 1))"),
    row("a part of two heads", PARTS, "stores rows of heads", r"tl_attention_store_part_of<104, 3, 21>",
        "tl_attention_store_part_of<104, 2, 21>"),
    row("a second warpgroup's rows as of one head", FOUR,
            "warpgroup 1 of block 0: an unmasked KV block has hidden keys behind",
        r"first_row_1 = \(\(wg_2 \* 16\) \+ first_row_1\);", "first_row_1 = ((wg_2 * 64) + first_row_1);"),
    row("sinks of the next head", FIVE, "with Sinks of heads|expected", r"(Sinks\[.*) \* \(int64_t\)5\)", r"\1 * (int64_t)5) + (int64_t)1"),
    row("sinks of the head of K", FIVE, "with Sinks of heads|expected", r"(Sinks\[.*) \* \(int64_t\)5\)", r"\1 * (int64_t)1)"),
    row("sinks of four heads", FIVE, "reads Sinks of heads", "tl_attention_read_heads<5, 12>", "tl_attention_read_heads<4, 12>"),
    row("sinks of heads of more rows", FIVE, "reads Sinks of heads", "tl_attention_read_heads<5, 12>", "tl_attention_read_heads<5, 16>"),
    row("sinks of the first row's head for both rows", FIVE, "reads Sinks of heads", r"tl_attention_read_heads<5, 12>\(own,.*",
        "own[0] = Sinks[((int64_t)head_3) * (int64_t)5];"),
    row("a window is cut for as many rows as a tile has", SEVEN, "or before: .*, expected no number below 0",
        r"( cut = .*) \+ 7\)( - seq_q)", r"\1 + 0)\2"),
    row("a second subgroup's heads begin behind the first's", SUBGROUPS, "load Q|Q of warpgroup",
        r"min\(\(\(head_2 & 1\) \* 4\), 3\)\) \+ member", "((head_2 & 1) * 4)) + member"),
    row("subgroups are as many heads apart as tiles have", SUBGROUPS, "load Q|Q of warpgroup",
        r"\(\(head_2 >> 1\) \* 7\)(.*) \+ member", r"((head_2 >> 1) * 8)\1 + member"),
    row("an output of heads behind the first subgroup's", SUBGROUPS, "output",
        r"min\(\(\(head_4 & 1\) \* 4\), 3\)\)\) \* Merged_head", "((head_4 & 1) * 4))) * Merged_head"),
    row("logarithms of heads behind the first subgroup's", SUBGROUPS, "lse",
        r"(MergedLSE\[.*), \(int64_t\)3\)", r"\1, (int64_t)4)"),
    row("sinks of heads behind the first subgroup's", SUBGROUPS, "with Sinks of heads|expected",
        r"(Sinks\[.*), \(int64_t\)3\)", r"\1, (int64_t)4)"),
    row("K of a head for each subgroup", SUBGROUPS, "load K|K first", r"\(head_2 >> 1\), \(k_begin_1 ", "head_2, (k_begin_1 ", which="all"),
    row("a subgroup of each group is listed", SUBGROUPS, "the kernel that lists the tiles",
        r"\(\(heads / 7\) \* 2\), results", "(heads / 7), results"),
]  # fmt: skip
