"""These faults concern strides."""

from faults.host import slot
from faults.table import ASKED, Row, each, edit, edits


def in_bytes(stride: str) -> str:
    """Returns a pattern of a stride as a descriptor takes it: in bytes."""
    return rf"\({stride} \* \(int64_t\)2\)"


def exchanged(descriptor: str, number: int, stride: str, other: str) -> tuple[str, str]:
    """Replaces a stride of a descriptor by another one; strides stand from slot 9 on, innermost first."""
    return slot(number, in_bytes(stride), descriptor), rf"\g<1>({other} * (int64_t)2);"


def read_stride(name: str, axis: int) -> str:
    """Returns a pattern of where a stride is read off its tensor's axis."""
    return rf"(\)\[){axis}(\];\n  \}}\n  int64_t {name} = )"


NO_MAPS = "it has no descriptors of them: see the copies of K and V"
NO_ASSUMPTION = "it assumes nothing of the strides of what TMA loads"
NO_FUNCTION = "its strided output is stored without a device function: see the output's rows by the head's stride"
DIRECT = "see the output's rows by the head's stride"
MAPS = "TMA has the strides in descriptors: see their rows"
ROWS = [
    Row("a descriptor's rows by the head's stride",
        edit("best, asked", "the strides of K_desc", *exchanged("K_desc", 9, "K_row_stride", "K_head_stride"),
            host=True), NO_MAPS),
    Row("a descriptor's row and head strides swapped",
        edit("best, asked", "the strides of V_desc", *exchanged("V_desc", 9, "V_row_stride", "V_head_stride"),
            *exchanged("V_desc", 10, "V_head_stride", "V_row_stride"), host=True), NO_MAPS),
    Row("a descriptor's batches by the head's stride",
        edit("best, asked", "the strides of Q_desc", *exchanged("Q_desc", 11, "Q_batch_stride", "Q_head_stride"),
            host=True), NO_MAPS),
    Row("K's strides in V's descriptor",
        edit("best, asked", "the strides of V_desc", *exchanged("V_desc", 9, "V_row_stride", "K_row_stride"),
            host=True), NO_MAPS),
    Row("Q's strides in the output's descriptor",
        edit("output_tma, asked", "the strides of Output_desc",
            *exchanged("Output_desc", 10, "Output_head_stride", "Q_head_stride"), host=True), NO_MAPS),
    Row("a descriptor of a contiguous tensor",
        edit("best, asked", "strides of K_desc", slot(9, in_bytes("K_row_stride"), "K_desc"), r"\g<1>((int64_t)256);",
            host=True), NO_MAPS),
    Row("a stride in elements",
        edit("best, asked", "strides of K_desc", slot(10, in_bytes("K_head_stride"), "K_desc"), r"\g<1>K_head_stride;",
            host=True), NO_MAPS),
    Row("a stride read off another dimension",
        *edits(ASKED, "K_row_stride is the stride 1 of K", read_stride("K_row_stride", 2), r"\g<1>1\2", host=True)),
    Row("a stride read off another tensor",
        *edits(ASKED, "the checks of the arguments", r"attention_V_strides\)(\[2\];\n  \}\n  int64_t V_row_stride)",
            r"attention_K_strides)\1", host=True)),
    Row("strides of 32 bits",
        edit("best, asked", r"the kernel's parameter '\(\(int64_t\)Output_row_stride\)'",
            r"v_int64\) = Output_row_stride;", "v_int64) = ((int64_t)Output_row_stride);", host=True),
        *edits(ASKED[1:], "expected one of", r"v_int64\) = K_row_stride;",
            "v_int64) = ((int64_t)K_row_stride);", host=True)),
    Row("a kernel that takes strides of 32 bits",
        *edits(ASKED, "is launched with", r"int64_t Output_row_stride", "int Output_row_stride", which="all")),
    Row("two strides in each other's place",
        *edits(ASKED, "is launched with", r"v_int64\) = Output_batch_stride;", "v_int64) = Output_swapped;",
            r"v_int64\) = Output_head_stride;", "v_int64) = Output_batch_stride;", r"v_int64\) = Output_swapped;",
            "v_int64) = Output_head_stride;", host=True)),
    Row("an assumption of another form", NO_ASSUMPTION,
        *edits(ASKED[1:], "argument 0 of a call",
            r"if \(!\(\(\(K_row_stride % \(int64_t\)8\) == ", "if (!(((K_row_stride = (int64_t)8) == ", host=True)),
    Row("the output's rows by Q's distance",
        edit("best, asked",
            r"the distance of rows of output of warpgroup 0 of block 0 is 128, expected 8\*Output_row_stride",
            r", Output_row_stride\);", ", 128);"),
        edit("seed, asked", r"line \d+ stores an element \d+ behind the first, which is in no row",
            "Output_row_stride(?=.*Output_local_cast)", "Q_row_stride"),
        edit("mma_sync_small, asked", "the distance of rows of output of a block", r", Output_row_stride\);", ", 128);")),
    Row("the output's rows by the head's stride",
        edit("best, asked",
            r"the distance of rows of output of warpgroup 0 of block 0 is 8\*Output_head_stride, expected 8\*Output_row_stride",
            r", Output_row_stride\);", ", Output_head_stride);"),
        edit("seed, asked", r"line \d+ stores an element \d+ behind the first, which is in no row",
            "Output_row_stride(?=.*Output_local_cast)", "Output_head_stride"),
        edit("mma_sync_small, asked", "the distance of rows of output of a block", r", Output_row_stride\);", ", Output_head_stride);")),
    Row("a device function for contiguous rows",
        edit("best, asked",
            r"the distance of rows of output of warpgroup 0 of block 0 is 128, expected 8\*Output_row_stride",
            r", Output_row_stride\);", ");"), NO_FUNCTION,
        edit("mma_sync_small, asked", "the distance of rows of output of a block", r", Output_row_stride\);", ");")),
    Row("the device function of contiguous kernels",
        edit("best, asked", "stands before the kernel, expected", r"\(row_stride / 8\)", "(head_dim / 8)"), NO_FUNCTION,
        edit("mma_sync_small, asked", "stands before the kernel, expected", r"\(row_stride / 8\)", "(head_dim / 8)")),
    Row("the output's first row by the head's stride",
        edit("best, asked", "the first element of output of warpgroup 0",
            r"\(\(\(int64_t\)first_row_6\) \* Output_row_stride\)", "(((int64_t)first_row_6) * Output_head_stride)"),
        NO_FUNCTION,
        edit("mma_sync_small, asked", "the first element of output of a block",
            r"Output_row_stride(?=\)\)\]\)\), .*, Output_row_stride\);)", "Output_head_stride")),
    Row("the output's heads by the batch's stride",
        edit("best, asked", "the first element of output of warpgroup 0",
            r"\(\(\(int64_t\)head_4\) \* Output_head_stride\)", "(((int64_t)head_4) * Output_batch_stride)"),
        edit("seed, asked", "the first element of output of a block",
            "Output_head_stride(?=.*Output_local_cast)", "Output_batch_stride"),
        edit("mma_sync_small, asked", "the first element of output of a block",
            r"Output_head_stride(?=.*, Output_row_stride\);)", "Output_batch_stride")),
    Row("direct stores by the head's stride",
        edit("output_direct, asked", r"stores an element \d+ behind the first, which is in no row",
            r"\(\(int64_t\)first_row_6\)\) \* Output_row_stride", "((int64_t)first_row_6)) * Output_head_stride"), DIRECT),
    Row("direct stores of contiguous rows",
        edit("output_direct, asked", r"some elements of row \d+ are stored where others are not",
            r"\(\(int64_t\)first_row_6\)\) \* Output_row_stride", "((int64_t)first_row_6)) * (int64_t)64"), DIRECT),
    Row("a copy of K by Q's rows", MAPS,
        edit("seed, asked", "columns of K are not where they belong in its tile",
            r"(&\(K\[.*\(int64_t\)k\) .*)K_row_stride", r"\1Q_row_stride"),
        each("mma_sync_small, asked", "columns of K are not where they belong in its tile", "tl::cp_async_gs.*K_shared",
            r"K_row_stride", "Q_row_stride")),
    Row("a copy of K by the head's stride", MAPS,
        edit("seed, asked", "columns of K are not where they belong in its tile",
            r"(&\(K\[.*\(int64_t\)k\) .*)K_row_stride", r"\1K_head_stride"),
        each("mma_sync_small, asked", "columns of K are not where they belong in its tile", "tl::cp_async_gs.*K_shared",
            r"K_row_stride", "K_head_stride")),
    Row("a copy of K of another head", MAPS,
        edit("seed, asked", "the first element, or column, of load K of a block",
            r"(&\(K\[.*blockIdx)\.y(\)\) / \(int64_t\)5\) \* K_head_stride.*\(int64_t\)k\) )", r"\1.z\2"),
        each("mma_sync_small, asked", "the first element, or column, of load K of a block",
            "tl::cp_async_gs.*K_shared", r"blockIdx\.y", "blockIdx.z")),
    Row("a copy of V by the batch's stride of K", MAPS,
        edit("seed, asked", "the first element, or column, of load V of a block",
            r"(&\(V\[.*)V_batch_stride(.*\(int64_t\)k\) )",
            r"\1K_batch_stride\2"),
        each("mma_sync_small, asked", "the first element, or column, of load V of a block",
            "tl::cp_async_gs.*V_shared", "V_batch_stride", "K_batch_stride"), long=True),
]  # fmt: skip
