"""These faults concern keys in pages: which page is looked up, when, for which rows and for which load."""

from faults.table import Row, edit, rows
from faults.words import LISTS

NONE = "it computes no packed sequences"
# One page in a KV block, in parts; two, in a window; and four, which lanes look up.
WHOLE, TWO, FOUR = "grouped, pages", "best_causal, pages", "short, pages"
PLACED = r"does not fit 32 bits|the (row|batch) of load [KV] of the producer of block 0 is .*, expected"
ROWS = [
    *rows(WHOLE, NONE,
        ("the page of another KV block", PLACED, "the last shift =: 256 -> 128", "or the first shift =: - 128 -> - 256"),
        ("no page looked up behind the first KV block", PLACED, "the last shift = -> 0"),
        ("V by the page of the tile's first KV block", PLACED, "the last shift = -> @shift_1"),
        ("V as if there were no pages", PLACED, "the last load V.end -> (k_begin + seq_kv)"),
        ("a page for the rows of Q", "expected|not shown", "the last shift =: k_begin -> q_begin"),
        ("a page looked up for some heads alone", "expected|not shown|cannot be read",
            "the last shift = -> if (head < 9) {\n$\n}"),
        ("another table", "cannot be read", "the first shift =: BlockTable -> Tiles"),
        ("pages of another size", "cannot be read", "the first shift =: page_size -> page_rows"),
        ("a list of as many keys as there are queries", LISTS, "list_tiles: (entries * page_size) -> seq_q"),
        ("a list of fewer keys", LISTS, "list_tiles: page_size -> page_rows")),
    *rows(TWO, NONE,
        ("a page for both halves of a KV block", PLACED, "the last shift =: (box * 64) -> 0"),
        ("the pages of two halves exchanged", PLACED, "the last shift =: box -> (1 - box)"),
        ("rows of the first half twice", PLACED, "the last load V.row: box -> 0"),
        ("both halves in one place", "boxes of columns and elements", "the last load V.place: box -> 0"),
        ("bytes of one half", "does load V|boxes are expected as|bytes", "the last V_full expect_transaction ->"),
        ("boxes of a whole KV block", "the box of V_desc", "descriptors.V_desc.box.1 := 128")),
    *rows(FOUR, NONE,
        ("four pages, of which the last is the third", PLACED, "the last following =: box -> min(box, 1)"),
        ("a page for all boxes of a KV block", PLACED, "the last following =: (box + 1) -> 0"),
        ("half a page for each box", PLACED, "the last shifts =: 32 -> 16"),
        ("a page of a lane that has looked up none", "takes from lane 3[2345] what none", "the last shift = shift_of: 0 -> 32"),
        ("a page that lanes look up for some heads alone", "takes from lane 0 what none",
            "the last shifts = -> if (head < 9) {\n$\n}"),
        ("a page by what was looked up as a number", "cannot be read|shifts", "the last shift = -> @shifts_1"),
        ("a page for the box behind too", PLACED, "the last shift = -> @shift_1"),
        ("the pages of two boxes exchanged", PLACED, "the last shift = shift_of: 0 -> 1", "the last following =: (box + 1) -> box"),
        ("a page looked up once for all heads", "not shown|expected|cannot be read", "the last shifts =: k_begin -> (k_begin + head)")),
    Row("a page that the table does not name", edit(WHOLE, "stands before the kernel", r"min\(key / page_size, entries - 1\)", "key / page_size"), NONE),
    Row("a page that there is not", edit(WHOLE, "stands before the kernel", r"min\(max\(__ldg\(table \+ entry\), 0\), pages - 1\)", "__ldg(table + entry)"), NONE),
]  # fmt: skip
