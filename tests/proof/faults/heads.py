"""These faults concern grouped heads."""

from faults.lines import COPIES
from faults.table import Edit, Row, each, edit

HEAD = r"\(\(head_2 / 5\) \+ \(\(head_2 % 5\) >> 31\)\)"
K_LOAD, V_LOAD = (rf"(tma_load_multicast\({name}_desc, .*, ){HEAD}(, bz_2\);)" for name in "KV")
K_IN_LOOP = r"(K_shared\)\[\(*k & 1\) \* 16384\).*&\(K\[.*\(int\)blockIdx\.y\)\) / \(int64_t\))5\)"
K_LOAD_OF_8 = r"(tma_load_multicast\(K_desc, .*, \(head_2 >> )3(\), bz_2\);)"
V_IN_LOOP = r"(V_shared\)\[\(*k \+ 1\) & 1\) \* 16384\).*&\(V\[.*\(int\)blockIdx\.y\)\) / \(int64_t\))5\)"


def copies(name: str, pattern: str, replacement: str) -> Edit:
    """Makes a fault of each copy of K or V by cp.async."""
    loads = rf"{COPIES}.*{name}_shared"
    words = f"the first element, or column, of load {name} of a block"
    return each("mma_sync_small, asked", words, loads, pattern, replacement)


INSIDE = r"(K_shared\)\[\(*k & 1\) \* 16384\).*\(int\)blockIdx\.y\) / 5\) < \(\(heads / )5\)"
GROUP_OF_2 = "its groups are of two heads: see those of other groups"
NOT_SEEN = "not refused: its proof reads the first and the last heads of grids that are smaller"
NO_HEAD_MAP = "it has no descriptors: see K's head is Q's, and K's batches"
TENSOR_MAP = "TMA bounds what it loads by the descriptor: see keys beyond the last"
ROWS_ALONE = "its copies test rows and no heads"
ROWS = [
    Row("K's head is Q's", edit("best, asked", "the head of load K of the producer", K_LOAD, r"\1head_2\2"),
        edit("seed, asked", "the first element, or column, of load K of a block", K_IN_LOOP,
            r"\g<1>1)"),
        copies("K", r"(blockIdx\.y\)\)) >> \(int64_t\)1", r"\1")),
    Row("K's head is of a group twice as large", edit("best, asked", "the head of load K of the producer",
            K_LOAD, r"\1(head_2 / 10)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block", K_IN_LOOP,
            r"\g<1>10)"),
        copies("K", r"(blockIdx\.y\)\)) >> \(int64_t\)1", r"\1 >> (int64_t)2")),
    Row("K's head is of a smaller group", edit("best, asked", "the head of load K of the producer",
            K_LOAD, r"\1(head_2 / 4)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block", K_IN_LOOP,
            r"\g<1>4)"), GROUP_OF_2),
    Row("K's head is the place in the group", edit("best, asked", "the head of load K of the producer",
            K_LOAD, r"\1(head_2 % 5)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block",
            r"(K_shared\)\[\(*k & 1\) \* 16384\).*&\(K\[.*blockIdx\.y\)\)) / (\(int64_t\)5\))", r"\1 % \2"),
        copies("K", r"(&\(K\[.*)(\(\(int64_t\)\(\(int\)blockIdx\.y\)\)) >> \(int64_t\)1", r"\1\2 % (int64_t)2")),
    Row("K's head is the next", edit("best, asked", r"the head of load K of the producer .* \+ 1, expected",
            K_LOAD, r"\1((head_2 / 5) + 1)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block", K_IN_LOOP,
            r"\g<1>5 + (int64_t)1)"),
        copies("K", r"(&\(K\[.*)(\(\(int64_t\)\(\(int\)blockIdx\.y\)\)) >> \(int64_t\)1",
            r"\1(\2 >> (int64_t)1) + (int64_t)1")),
    Row("groups that begin one head early",
        edit("best, asked", "the head of load K of the producer", K_LOAD, r"\1((head_2 + 1) / 5)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block",
            r"(K_shared\)\[\(*k & 1\) \* 16384\).*&\(K\[.*)\(\(int64_t\)\(\(int\)blockIdx\.y\)\)( / \(int64_t\)5\))",
            r"\1(((int64_t)((int)blockIdx.y)) + (int64_t)1)\2"),
        copies("K", r"(&\(K\[.*)\(\(int64_t\)\(\(int\)blockIdx\.y\)\) >>",
            r"\1(((int64_t)((int)blockIdx.y)) + (int64_t)1) >>"), long=True),
    Row("groups that begin one head late", edit("best, asked", "the head of load K of the producer",
            K_LOAD, r"\1(max((head_2 - 1), 0) / 5)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block",
            r"(K_shared\)\[\(*k & 1\) \* 16384\).*&\(K\[.*)\(\(int64_t\)\(\(int\)blockIdx\.y\)\)( / \(int64_t\)5\))",
            r"\1max(((int64_t)((int)blockIdx.y)) - (int64_t)1, (int64_t)0)\2"),
        each("mma_sync_small, asked", "the first element, or column, of load K of a block",
            r"tl::cp_async_gs.*K_shared(?!.*first_8)",
            r"(&\(K\[.*)(\(\(int64_t\)\(\(int\)blockIdx\.y\)\)) >> \(int64_t\)1",
            r"\1max(\2 - (int64_t)1, (int64_t)0) >> (int64_t)1"), long=True),
    Row("K's head is of a group twice as large, of 8",
        edit("one_tile, asked", "the head of load K of the producer", K_LOAD_OF_8, r"\g<1>4\2"),
        edit("seed_64x64, asked", "the first element, or column, of load K of a block",
            r"(\[\(*kv & 1\) \* 12288\).*&\(K\[.*blockIdx\.y\)\) >> \(int64_t\))3", r"\g<1>4"), GROUP_OF_2),
    Row("K's head is of a group half as large, of 8",
        edit("one_tile, asked", "the head of load K of the producer", K_LOAD_OF_8, r"\g<1>2\2"),
        edit("seed_64x64, asked", "the first element, or column, of load K of a block",
            r"(\[\(*kv & 1\) \* 12288\).*&\(K\[.*blockIdx\.y\)\) >> \(int64_t\))3", r"\g<1>2"), GROUP_OF_2, long=True),
    Row("V's head is Q's", edit("best, asked", "the head of load V of the producer", V_LOAD, r"\1head_2\2"),
        edit("seed, asked", "the first element, or column, of load V of a block", V_IN_LOOP,
            r"\g<1>1)"),
        copies("V", r"(blockIdx\.y\)\)) >> \(int64_t\)1", r"\1")),
    Row("V's head is of another group", edit("best, asked", "the head of load V of the producer",
            V_LOAD, r"\1(head_2 / 10)\2"),
        edit("seed, asked", "the first element, or column, of load V of a block", V_IN_LOOP,
            r"\g<1>10)"),
        copies("V", r"(blockIdx\.y\)\)) >> \(int64_t\)1", r"\1 >> (int64_t)2")),
    Row("V's groups that begin one head early",
        edit("best, asked", "the head of load V of the producer", V_LOAD, r"\1((head_2 + 1) / 5)\2"),
        edit("seed, asked", "the first element, or column, of load V of a block",
            r"(V_shared\)\[\(*k \+ 1\) & 1\) \* 16384\).*&\(V\[.*)\(\(int64_t\)\(\(int\)blockIdx\.y\)\)( / \(int64_t"
            r"\)5\))", r"\1(((int64_t)((int)blockIdx.y)) + (int64_t)1)\2"),
        copies("V", r"(&\(V\[.*)(\(\(int64_t\)\(\(int\)blockIdx\.y\)\)) >> \(int64_t\)1",
            r"\1(\2 + (int64_t)1) >> (int64_t)1"), long=True),
    Row("K's and V's head is Q's", edit("best, asked", "the head of load K of the producer",
            K_LOAD, r"\1head_2\2", V_LOAD, r"\1head_2\2"),
        edit("seed, asked", "the first element, or column, of load K of a block", K_IN_LOOP,
            r"\g<1>1)", V_IN_LOOP,
            r"\g<1>1)"),
        copies("[KV]", r"(blockIdx\.y\)\)) >> \(int64_t\)1", r"\1")),
    Row("K's and V's head is of a group twice as large",
        edit("best, asked", "the head of load K of the producer", K_LOAD, r"\1(head_2 / 10)\2", V_LOAD,
            r"\1(head_2 / 10)\2"),
        edit("seed, asked", "the first element, or column, of load K of a block", K_IN_LOOP,
            r"\g<1>10)", V_IN_LOOP,
            r"\g<1>10)"),
        copies("[KV]", r"(&\([KV]\[.*)(\(\(int64_t\)\(\(int\)blockIdx\.y\)\)) >> \(int64_t\)1",
            r"\1\2 >> (int64_t)2")),
    Row("K's head is another from the fortieth on",
        edit("best, asked", "the head of load K of the producer", K_LOAD,
            r"\1((head_2 / 5) + ((200 <= head_2) ? 1 : 0))\2"), NOT_SEEN, long=True),
    Row("K has Q's heads",
        edit("best, asked", "dimensions of K_desc", "descriptors.K_desc.dims.2", "heads", host=True), NO_HEAD_MAP),
    Row("K has heads of a group twice as large",
        edit("best, asked", "dimensions of K_desc", "descriptors.K_desc.dims.2", "heads // 10", host=True), NO_HEAD_MAP),
    Row("K's batches are as far apart as Q's", edit("best, asked", "strides of K_desc", "descriptors.K_desc.strides.2",
            "seq_kv * heads * 256", host=True),
        edit("seed, asked", "the first element, or column, of load K of a block",
            r"(K_shared\)\[\(*k & 1\) \* 16384\).*)K_batch_stride", r"\1Q_batch_stride"),
        copies("K", "K_batch_stride", "Q_batch_stride")),
    Row("V has Q's heads",
        edit("best, asked", "dimensions of V_desc", "descriptors.V_desc.dims.2", "heads", host=True), NO_HEAD_MAP),
    Row("Q has K's heads",
        edit("best, asked", "dimensions of Q_desc", "descriptors.Q_desc.dims.2", "heads // 5", host=True), NO_HEAD_MAP),
    Row("K of the last heads is not loaded", TENSOR_MAP, edit("seed, asked", "where load K of a block has row", INSIDE, r"\g<1>10)"),
        ROWS_ALONE),
]  # fmt: skip
