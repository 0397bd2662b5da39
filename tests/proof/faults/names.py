"""These faults are in names, casts and numbers of the C++, which the reader must know in full."""

from faults.table import LARGE, Row, edit, edits

BODY = r"^( +)(extern __shared__ .*)$"
NO_INTEGERS = "its integers are loops' own"
NO_CASTS = "it has one array of each operand: see a cast to fewer bits"
ROWS = [
    Row(
        "a variable of a name that is in reach",
        edit(
            "best", "tile_1 is declared where another tile_1 is in reach", r"^( +)(tile_1 = \(tile_1 \+)", r"\1int \2"
        ),
        NO_INTEGERS,
        edit("mma_sync", "visible is declared where another visible is in reach", r"^( +)(visible = )", r"\1int \2"),
    ),
    Row(
        "a loop over a name that is in reach",
        edit(
            "best",
            "wg is declared where another wg is in reach",
            r"for \(int wg_1 = 0; wg_1 < 2; \+\+wg_1\)",
            "for (int wg = 0; wg < 2; ++wg)",
        ),
        edit(
            "seed",
            "kv is declared where another kv is in reach",
            r"for \(int vec_s = 0; vec_s < 4; \+\+vec_s\)",
            "for (int kv = 0; kv < 4; ++kv)",
            which="first",
        ),
        edit(
            "mma_sync",
            "t is declared where another t is in reach",
            r"for \(int j = 0; j < 4; \+\+j\)",
            "for (int t = 0; t < 4; ++t)",
        ),
    ),
    Row(
        "a second buffer of a name",
        edit(
            "best",
            "K_shared is declared where another K_shared is in reach",
            r"^( +)(turn_1 = 0;)$",
            r"\1void* K_shared = ((void*)((char*)buf_dyn_shmem + 0));\n\1\2",
        ),
        edit(
            "seed",
            "K_shared is declared where another K_shared is in reach",
            r"^( +)(void\* V_shared = .*)$",
            r"\1\2\n\1void* K_shared = ((void*)((char*)buf_dyn_shmem + 0));",
        ),
        edit(
            "mma_sync",
            "K_shared is declared where another K_shared is in reach",
            r"^( +)(int first = first_row;)$",
            r"\1void* K_shared = ((void*)((char*)buf_dyn_shmem + 0));\n\1\2",
        ),
    ),
    Row(
        "a variable that hides a size",
        edit(
            "best",
            "batch is declared where another batch is in reach",
            r"^( +)(int tile = 0;)",
            r"\1int batch = 1;\n\1\2",
        ),
        *edits(LARGE[1:], "heads is declared where another heads is in reach", BODY, r"\1int heads = 1;\n\1\2"),
    ),
    Row(
        "a cast to fewer bits",
        edit(
            "best",
            r"the cast \(int\)\( is none that is known",
            r"tile = \(\(\(int\)(blockIdx\.x)\)",
            r"tile = ((int)((uint16_t)(\1))",
        ),
        edit(
            "seed",
            r"the cast \(uint16_t\)seq_kv is none that is known",
            r"(for \(int kv = .*\(\(\()seq_kv",
            r"\g<1>(uint16_t)seq_kv",
            which="first",
        ),
        edit(
            "mma_sync",
            r"the cast \(bool\)first_row is none that is known",
            r"^(  visible = .*)\(first_row",
            r"\1((bool)first_row",
        ),
    ),
    Row(
        "an index without its sign",
        edit("best", r"'threadIdx.y' in", r"^( +)if \(\(\(int\)threadIdx\.y\) == 2\)", r"\1if (threadIdx.y == 2)"),
        NO_CASTS,
        edit("mma_sync", r"'blockIdx.x' in", r"(first_row = .*)\(\(int\)blockIdx\.x\)", r"\1blockIdx.x"),
    ),
    Row(
        "a number that begins with 0",
        edit("best", "'066' in", r"tile_1 \+ 66", "tile_1 + 066"),
        edit("seed", "'02' in", r"(for \(int kv = .*>> 7\) - )2", r"\g<1>02"),
        edit("mma_sync", "'064' in", r"(int first_1 = \(\(blocks \* )64", r"\g<1>064"),
    ),
]
