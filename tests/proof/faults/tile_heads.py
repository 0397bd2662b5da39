"""Faults in rows of several heads in one tile: `box` of each for a warpgroup, loaded and stored head by head."""

from faults.table import rows
from faults.words import BELOW_0, LISTS

NONE = "it computes no rows of several heads in a tile"
# Seven heads of 8 rows, 8 idle ones; four heads of 16; three of 21, in parts; five of 12, with sinks; seven heads in
# two tiles of four, the second of which begins with the last head of the first.
SEVEN = "short, heads"
FOUR = "best_causal, heads"
PARTS = "short, parts"
FIVE = "best_causal, packed"
SUBGROUPS = "short, packed subgroups"
ROWS = [
    *rows(FOUR, NONE,
        ("a box of the next group's head", "boxes of several tiles",
            "load Q.head -> ((head * 4) + (member + 1) % 4)"),
        ("all boxes of one head", "boxes of several tiles", "load Q.head -> (head * 4)"),
        ("heads of another group", "load Q|Q of warpgroup", "load Q.head -> ((head * 4) + (member + 4))"),
        ("a head too few", "boxes of columns and elements|boxes are expected", "for member.bound -> member < 3"),
        ("fewer bytes than a box has", "boxes are expected as", "Q_full expect_transaction.bytes -> 1024"),
        ("the bytes of a whole tile for each box", "boxes are expected as",
            "Q_full expect_transaction.bytes -> 16384"),
        ("rows of a warpgroup as of one head", "load Q", "load Q.row -> ((wg * 64) + first_row)"),
        ("K of the head of Q", "load K|K first", "load K.head -> ($ * 4)"),
        ("heads of the output as far apart as its rows", "stores rows of heads|head_stride",
            "store_of.head_stride -> Output_row_stride"),
        ("rows of the output as far apart as its heads",
            r"the distance of rows of output of warpgroup 0 of block 0 is 8\*Output_head_stride, expected"
            r" 8\*Output_row_stride", "store_of.row_stride -> Output_head_stride"),
        ("an output of each fourth head's", "output", "store_of: (int64_t)4 -> (int64_t)1"),
        ("a second warpgroup's rows as of one head",
            "warpgroup 1 of block 0: an unmasked KV block has hidden keys behind",
            "first_row = wg -> ((wg * 64) + first_row)")),
    *rows(SEVEN, NONE,
        ("boxes as far apart as a warpgroup's rows allow", "boxes of columns and elements",
            "load Q: member * 256 -> member * 288"),
        ("rows of a tile as of one head", "does not fit 32 bits",
            "producer first_row = first_row -> (first_row * 64)"),
        ("idle rows stay", "does not begin with the idle rows", "clear ->"),
        ("the last head's rows are cleared", "it clears", "clear: 56> -> 48>"),
        ("cleared rows of the next tile", "it clears", "clear: [0] -> [64]"),
        ("rows are cleared and TMA does not know", "does not begin with the idle rows", "fence_proxy_async ->"),
        ("rows are cleared by one lane", "threads of the producer", "clear -> if (((int)threadIdx.x) == 0)"),
        ("an output of eight heads, or of more rows of a head", "stores rows of heads", "store_of: 7, -> 8,",
            "or store_of: 8> -> 9>"),
        ("an output of other columns, or of the other dtype", "stores", "store_of: 72, 7 -> 96, 7",
            "or store_of: true -> false"),
        ("logarithms of one head", "stores rows of heads|is read", "store_lse_of: 7, -> 1,"),
        ("logarithms of heads that lie a row apart",
            r"the distance of heads of lse of warpgroup 0 of block 0 is seq_q \+ 1, expected seq_q",
            "store_lse_of.head_stride -> ($ + 1)"),
        ("a window is cut for as many rows as a tile has", BELOW_0, "cut =: X + 7 -> X + 0")),
    *rows(PARTS, NONE,
        ("a box over the one before", "boxes of columns and elements", "load Q: member * 1344 -> member * 1280"),
        ("an idle row too few is cleared", "it clears", "clear: 63> -> 64>"),
        ("a part of two heads", "stores rows of heads", "store_part_of: 3, -> 2,")),
    *rows(FIVE, NONE,
        ("sinks of the next head", "with Sinks of heads|expected", "read_heads: [X] -> [X + (int64_t)1]"),
        ("sinks of the head of K", "with Sinks of heads|expected", "read_heads: (int64_t)5 -> (int64_t)1"),
        ("sinks of four heads, of more rows, or of one head", "reads Sinks of heads", "read_heads: 5, -> 4,",
            "or read_heads: 12> -> 16>",
            "or read_heads: tl_attention_read_heads<5, 12>(own, (&(Sinks[(X * (int64_t)5)]))) -> own[0] ="
            " Sinks[X * (int64_t)5]")),
    *rows(SUBGROUPS, NONE,
        ("a second subgroup's heads begin behind the first's", "load Q|Q of warpgroup", "load Q: min(X, 3) -> X"),
        ("subgroups are as many heads apart as tiles have", "load Q|Q of warpgroup", "load Q: * 7 -> * 8"),
        ("an output of heads behind the first subgroup's", "output", "store_of: min(X, 3) -> X"),
        ("logarithms of heads behind the first subgroup's", "lse", "store_lse_of min: (int64_t)3 -> (int64_t)4"),
        ("sinks of heads behind the first subgroup's", "with Sinks of heads|expected",
            "read_heads: (int64_t)3 -> (int64_t)4"),
        ("K of a head for each subgroup", "load K|K first", "every load i.head -> head"),
        ("a subgroup of each group is listed", LISTS, "list_tiles: (heads / 7) * 2 -> heads / 7")),
]  # fmt: skip
