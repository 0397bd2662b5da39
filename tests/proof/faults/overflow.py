"""These faults compute with 32 bits what needs 64, at some sizes within the bounds."""

from faults.table import Row, edit

OTHERS = "see an output's address of 32 bits"
CAST = (r"\(int64_t\)", "")
ROWS = [
    Row("an output's address of 32 bits",
        edit("best", r"line \d+: .* does not fit 32 bits, where", *CAST * 9,
            within="tl_attention_store<"),
        edit("seed", r"line \d+: .* does not fit 32 bits, where", *CAST * 14, within="tl::cp_async_gs", which="each"),
        edit("mma_sync_small", r"line \d+: .* does not fit 32 bits, where", *CAST * 14, within="tl_attention_store<",
            which="each")),
    Row("a product of 32 bits in an output's address",
        edit("best", r"line \d+: .* does not fit 32 bits, where", *CAST * 3,
            within="tl_attention_store<"), OTHERS),
    Row("an LSE's address of 32 bits beside strides",
        edit("best, asked", r"line \d+: .* does not fit 32 bits, where", *CAST * 3,
            within="tl_attention_store_lse"), OTHERS),
    Row("an LSE's address of 32 bits in packed sequences",
        edit("output_tma, packed", r"line \d+: .* does not fit 32 bits, where", *CAST * 2,
            within=r"LSE\[|.*&\(LSE\["), OTHERS),
    Row("a product of 64 bits in a variable of 32",
        edit("best, asked", r"line \d+: .* does not fit 32 bits, where",
            r"int bz_3 = (\w+);", r"int bz_3 = (\1 * Output_batch_stride);"), OTHERS),
    Row("a row's number of 32 bits that counts elements",
        edit("best", r"line \d+: .* does not fit 32 bits, where",
            r"\(\(int64_t\)first_row_3\) \* \(int64_t\)128", "(int64_t)(first_row_3 * 128)"), OTHERS),
    Row("a variable of 32 bits that counts elements",
        edit("best", r"line \d+: .* does not fit 32 bits, where",
            r"(first_row_3 = .*);", r"\1;\n    int elements = first_row_3 * 128;"), OTHERS),
]  # fmt: skip
