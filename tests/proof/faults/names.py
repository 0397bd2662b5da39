"""These faults are in names, casts and numbers of the C++, which the reader must know in full."""

from faults.table import LARGE, faults, large

NO_INTEGERS = "its integers are loops' own"
NO_CASTS = "it has one array of each operand: see a cast to fewer bits"
ROWS = [
    large("a variable of a name that is in reach",
        ("tile_1 is declared where another tile_1 is in reach", "consumers tile + workers: tile = -> int tile ="),
        NO_INTEGERS,
        ("visible is declared where another visible is in reach", "visible min first_row: visible = -> int visible =")),
    large("a loop over a name that is in reach",
        ("wg is declared where another wg is in reach", "for wg: wg = 0; wg < 2; ++wg -> @wg = 0; @wg < 2; ++@wg"),
        ("kv is declared where another kv is in reach",
            "for vec_s: vec_s = 0; vec_s < 4; ++vec_s -> kv = 0; kv < 4; ++kv"),
        ("t is declared where another t is in reach", "the first for j: j = 0; j < 4; ++j -> t = 0; t < 4; ++t")),
    large("a second buffer of a name",
        ("K_shared is declared where another K_shared is in reach",
            "consumers turn = 0 -> void* K_shared = ((void*)((char*)buf_dyn_shmem + 0));\n$"),
        ("K_shared is declared where another K_shared is in reach",
            "the first float acc_o -> void* K_shared = ((void*)((char*)buf_dyn_shmem + 0));\n$"),
        ("K_shared is declared where another K_shared is in reach",
            "int first = first_row -> void* K_shared = ((void*)((char*)buf_dyn_shmem + 0));\n$")),
    large("a variable that hides a size",
        ("batch is declared where another batch is in reach", "the first int tile = 0 -> int batch = 1;\n$"),
        *faults(LARGE[1:], "heads is declared where another heads is in reach",
            "extern __shared__ -> int heads = 1;\n$")),
    large("a cast to fewer bits",
        (r"the cast \(int\)\( is none that is known", "the first tile = -> ((int)((uint16_t)(blockIdx.x)) >> 1)"),
        (r"the cast \(uint16_t\)seq_kv is none that is known", "the first for kv: seq_kv -> (uint16_t)$"),
        (r"the cast \(bool\)first_row is none that is known", "visible =: first_row -> (bool)$")),
    large("an index without its sign", ("'threadIdx.y' in", "the third if: ((int)threadIdx.y) -> threadIdx.y"),
        NO_CASTS, ("'blockIdx.x' in", "first_row =: ((int)blockIdx.x) -> blockIdx.x")),
    large("a number that begins with 0", ("'066' in", "consumers tile = tile -> (tile + 066)"),
        ("'02' in", "the first for kv: - 2 -> - 02"),
        ("'064' in", "the second int first = -> ((blocks * 064) - 64)")),
]  # fmt: skip
