"""These faults compute with 32 bits what needs 64, at some sizes within the bounds."""

from faults.table import rows, small

OTHERS = "see an output's address of 32 bits"
LEAVES = r"line \d+: .* does not fit 32 bits, where"
ROWS = [
    small("an output's address of 32 bits", (LEAVES, "every store.place: (int64_t) ->"),
        (LEAVES, "each copy.source: (int64_t) ->"), (LEAVES, "every store.place: (int64_t) ->")),
    *rows("best", OTHERS,
        ("a product of 32 bits in an output's address", r"seq_q\*heads_kv does not fit 32 bits",
            "store: (((int64_t)bz) * ((int64_t)seq_q)) * ((int64_t)heads) -> ((bz) * (seq_q)) * (heads)"),
        ("a row's number of 32 bits that counts elements", LEAVES,
            "store: ((int64_t)first_row) * (int64_t)128 -> (int64_t)(first_row * 128)"),
        ("a variable of 32 bits that counts elements", LEAVES,
            "consumers int first_row = -> $\nint elements = first_row * 128;")),
    *rows("best, asked", OTHERS,
        ("an LSE's address of 32 bits beside strides", LEAVES,
            "store_lse: (((int64_t)bz) * ((int64_t)seq_q)) * ((int64_t)heads) -> ((bz) * (seq_q)) * (heads)"),
        ("a product of 64 bits in a variable of 32", LEAVES,
            "consumers int bz = -> ($ * Output_batch_stride)")),
    *rows("output_tma, packed", OTHERS,
        ("an LSE's address of 32 bits in packed sequences", LEAVES,
            "store_lse: ((int64_t)head) * ((int64_t)seq_q) -> (head) * (seq_q)")),
]  # fmt: skip
