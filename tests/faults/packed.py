"""These faults concern packed sequences: where they lie, the list of their tiles, and who learns of a tile."""

from faults.host import address, slot
from faults.table import Row, edit

NONE = "it computes no packed sequences"
# A counter, LSE and everything else that a call can ask for; turns in a cluster.
COUNTED, TURNS = "best_causal, packed", "best, packed"
LOADED = r"is load .* at \(.*\), expected load .* at \("


def row(name: str, kernel: str, words: str, *texts: str, long: bool = False, **options: bool | str) -> Row:
    return Row(name, edit(kernel, words, *texts, **options), NONE, long=long)  # type: ignore[arg-type]


ROWS = [
    row(
        "a box at another wrap",
        COUNTED,
        "a box of a ragged view at 1073741823",
        r"(tma_load\(K_desc.*), 1073741824\)",
        r"\1, 1073741823)",
        which="first",
    ),
    row(
        "Q of the keys' sequence",
        COUNTED,
        LOADED,
        r"(tma_load\(Q_desc.*)\(q_begin_2 \+ seq_q_\d\), 1073741824",
        r"\1(k_begin_1 + seq_kv_2), 1073741824",
    ),
    row(
        "V's box ends behind its sequence",
        COUNTED,
        LOADED,
        r"(tma_load\(V_desc.*) \+ seq_kv_2\), 1073741824",
        r"\1 + seq_kv_2 + 1), 1073741824",
        which="first",
    ),
    row(
        "keys counted from another end",
        COUNTED,
        "expected|is not where",
        r"(tma_load\(K_desc.*)\) - seq_kv_2",
        r"\1) - seq_kv_2 - 1",
        which="last",
    ),
    row(
        "output rows of another sequence",
        COUNTED,
        "expected|stores",
        r"(tl_attention_store_of.*\(\(int64_t\))q_begin_3\)",
        r"\1first_row_4)",
    ),
    row(
        "as many rows left as there are keys",
        COUNTED,
        "stores|expected",
        r"(tl_attention_store_of<.*)\(seq_q_(\d) - first_row_4\)",
        r"\1(seq_q_\2 - first_row_4 + 1)",
    ),
    row(
        "the LSE without its sequence",
        COUNTED,
        "expected|stores",
        r"(tl_attention_store_lse.*\+ \(\(int64_t\))q_begin_3\)",
        r"\g<1>first_row_4)",
    ),
    row(
        "the next tile's entry",
        COUNTED,
        LOADED,
        r"(tl_attention_hand_over\(.*)\+ \(int64_t\)8\)\]",
        r"\1+ (int64_t)16)]",
        which="first",
    ),
    row(
        "a place between two entries",
        COUNTED,
        "hands over what is no entry",
        r"(tl_attention_hand_over\(.*)\+ \(int64_t\)8\)\]",
        r"\1+ (int64_t)9)]",
        which="first",
    ),
    row(
        "a number in the place of the head",
        COUNTED,
        "expected|at another row",
        r"(tl_attention_hand_over\(.*)\((number_2) % \(heads / 5\)\)",
        r"\1\2",
        long=True,
    ),
    row(
        "the head of the tile behind the next",
        COUNTED,
        "expected",
        r"(tl_attention_hand_over\(.*)\((number_2) % ",
        r"\1((\2 + 1) % ",
    ),
    row(
        "an entry for each head of Q",
        COUNTED,
        "expected",
        r"(tl_attention_hand_over\(.*number_2\) / )\(\(\(int64_t\)heads\) / \(int64_t\)5\)",
        r"\1((int64_t)heads)",
        long=True,
    ),
    row(
        "a word of the entry for the head of the producer",
        COUNTED,
        "expected",
        r"\+ 8\)\];",
        "+ 4)];",
        within="head = next_tile",
        which="each",
    ),
    row(
        "a word of the entry for the head of a warpgroup",
        COUNTED,
        "expected",
        r"\+ 8\)\];",
        "+ 4)];",
        within="head_1 = next_tile",
        which="each",
    ),
    row(
        "a word of the entry for another",
        COUNTED,
        "expected",
        r"q_begin_1 = next_tile\[(.*) \+ 1\)\];",
        r"q_begin_1 = next_tile[\1 + 3)];",
    ),
    row(
        "the rows of another tile",
        COUNTED,
        "expected",
        r"q_begin_1 = next_tile\[\(\(\(turn_1 & 3\)(.*)\];",
        r"q_begin_1 = next_tile[((((turn_1 + 1) & 3)\1];",
    ),
    row(
        "rows that are read behind the entry's release",
        COUNTED,
        "expected",
        r"(^ +first_row_1 = next_tile(?:.*\n){5})((?:.*\n){3})(?=.*first_row_\d = first_row_1;)",
        r"\2\1",
        which="last",
    ),
    row(
        "a list that is still written",
        COUNTED,
        "while another kernel may still write it",
        r"^ +cudaGridDependencySynchronize\(\);\n",
        "",
    ),
    row(
        "a tile that nobody has been told",
        COUNTED,
        "expected",
        r"^ +tile_full\[\(turn_1 & 3\)\]\.wait.*\n",
        "",
        which="last",
    ),
    row("an entry that is still read", COUNTED, "expected", r"^ +tile_empty\[\(\(turn_2 \+ 1\) & 3\)\]\.wait.*\n", ""),
    row("nobody is told", COUNTED, "expected", r"^ +tile_full\[\(\(turn_2 \+ 1\) & 3\)\]\.arrive\(\);\n", ""),
    row(
        "a number that comes twice",
        COUNTED,
        "work on|expected",
        r"tl_attention_draw\((.*), 132\)",
        r"tl_attention_draw(\1, 131)",
    ),
    row("turns of another length", TURNS, "work on|expected", r"number = \(number \+ 66\)", "number = (number + 65)"),
    row("no first tile", TURNS, "is read where no tile is waited for", r"\(0 <= first_row\)", "(1 <= first_row)"),
    row(
        "tiles listed for other rows",
        COUNTED,
        "the kernel that lists the tiles",
        r"tl_attention_list_tiles<24,",
        "tl_attention_list_tiles<12,",
    ),
    row(
        "used keys in the place of used queries",
        COUNTED,
        "the kernel that lists the tiles",
        r"\(CuSeqlensQ, CuSeqlensK, SeqUsedQ, SeqUsedK",
        "(CuSeqlensQ, CuSeqlensK, SeqUsedK, SeqUsedQ",
    ),
    row(
        "every block of a cluster lists",
        TURNS,
        "the kernel that lists the tiles",
        r"\(\(int\)blockIdx\.x\) == 0",
        "((int)blockIdx.x) <= 1",
    ),
    row("another list", COUNTED, "stands before the kernel, expected", r"buckets = 32", "buckets = 16"),
    row(
        "a list without the used keys",
        COUNTED,
        "the tiles are listed by",
        *address("CuSeqlensK", 2, "SeqUsedK", "SeqUsedQ"),
        host=True,
    ),
    row(
        "a ragged view of fewer rows",
        COUNTED,
        "the dimensions of K_desc",
        slot(5, r"\(\(int64_t\)1073741824\)", "K_desc"),
        r"\g<1>((int64_t)536870912);",
        host=True,
    ),
    row(
        "a ragged view that wraps elsewhere",
        COUNTED,
        "the strides of V_desc",
        slot(13, r"\(\(int64_t\)34359738368 - \(V_row_stride \* \(int64_t\)2\)\)", "V_desc"),
        r"\g<1>((int64_t)34359738368 - (K_row_stride * (int64_t)2));",
        host=True,
    ),
]
