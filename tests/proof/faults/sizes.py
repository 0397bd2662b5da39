"""These faults concern head sizes: of K and V, and of their tiles."""

from faults.table import Row, fault, rows
from faults.words import COLUMNS_OF_K

NO_FUNCTION = "its strided output is stored without a device function: see the output's rows by the head's stride"
WHOLE_TILES = "it computes head sizes that fill their tiles, the same of K and V"
BY_16_BYTES = "it copies 16 bytes a thread: see K and Q copied beyond their columns, and rows of K"
SLOT_COPIES = "its slots are places of copies: see a load of K into another slot"
NO_96 = "not tried: no pipelined kernel of the set has such a tile in that operand"
TENSOR_MAP = "TMA bounds what it loads by the descriptor: see keys beyond the last"
ONE_DESCRIPTOR = "of TMA descriptors it has the output's alone: see an output's box of fewer rows"
DIRECT = "its narrow output is stored directly in any case: see a store of fewer columns"
ROWS = [
    *rows("p_shared, asked", (NO_FUNCTION, WHOLE_TILES),
        ("a store of all columns of the tile", r"stores \(64, False, 'bfloat16', 'acc_o'\)",
            "store_columns: tl_attention_store_columns<40 -> tl_attention_store<64")),
    Row("a store of fewer columns",
        fault("p_shared, asked", r"stores \(32, True, 'bfloat16', 'acc_o'\)", "store_columns: 40, -> 32,"),
        fault("fa3_pipelined, asked", "the output's elements are not those of whole rows",
            "the last if: i < 10 -> i < 8"), WHOLE_TILES),
    Row("a store that does not look at columns",
        fault("p_shared, asked", r"stores \(40, False, 'bfloat16', 'acc_o'\)",
            "store_columns: tl_attention_store_columns -> tl_attention_store"),
        fault("fa3_pipelined, asked", "the output's elements are not those of whole rows",
            "the last if: seq_q) && (i < 10) -> seq_q)"), WHOLE_TILES),
    *rows("d192_128_causal, asked", (BY_16_BYTES, WHOLE_TILES),
        ("a panel of K not loaded", "boxes of columns and elements .* of K, expected",
            "for i.bound around load K -> i < 2"),
        ("a panel of Q not loaded", "boxes of columns and elements .* of Q, expected",
            "for i.bound around load Q -> i < 2"),
        ("as many panels of V as K has", "boxes of columns and elements .* of V, expected",
            "for i.bound around load V -> i < 3")),
    *rows("d192_128_causal, asked", (SLOT_COPIES, WHOLE_TILES),
        ("V's slots as long as K's", "49152 bytes of a tile of 32768", "V_full expect_transaction.bytes -> 49152")),
    *rows("d96_causal, asked", (BY_16_BYTES, WHOLE_TILES),
        ("panels of 96 columns where those of 128 would be", "boxes of columns and elements .* of K, expected",
            "load K.column -> (i * 64)")),
    Row("Q K^T with a step less",
        fault("d192_128_causal, asked", "a product of 11 instructions, expected 12",
            "the first for ki.bound -> ki < 11"),
        fault("seed_64x64, asked", "a product of 11 instructions, expected 12", "the first for ki.bound -> ki < 11"),
        WHOLE_TILES),
    *rows("d192_128_causal, asked", (NO_96, WHOLE_TILES),
        ("Q K^T with the steps of the tensor's columns", "a product of 9 instructions, expected 12",
            "the first for ki.bound -> ki < 9")),
    Row("P V of fewer columns", fault("d256, asked", "a product of the form", "the first wgmma_rs: 256, -> 128,"),
        fault("seed_64x64, asked", r"a product of the form \('bfloat16', 'bfloat16', 'float32', 64, 64, 16,",
            "the first wgmma_rs: 128, -> 64,"), WHOLE_TILES),
    *rows("d256, asked", (NO_96, WHOLE_TILES),
        ("V of a panel that is not its", "a product of", "the fifth initialize_wgmma_descriptor: 640, -> 512,")),
    *rows("d96_causal, asked", (NO_96, WHOLE_TILES),
        ("V in another swizzle", "a product of", "the fifth initialize_wgmma_descriptor: 2, 448, 32 -> 1, 448, 64"),
        ("Q of the columns of a wider panel", "reads other columns of its operands",
            "the first product.a -> uint64_t(desc_a + ((((ki >> 2) * 4096) + ((ki & 3) * 32)) >> 4))")),
    *rows("seed, asked", (TENSOR_MAP, WHOLE_TILES),
        ("K copied beyond its columns", "not all columns of the rows of K are copied",
            "the first copy: seq_kv) && ((((int)threadIdx.x) & 15) < 13)) && X) && ((((int)threadIdx.x) &"
            " 15) < 13 -> seq_kv)) && X"),
        ("rows of K as long as the tile's", COLUMNS_OF_K, "the first copy: K_row_stride -> (int64_t)128"),
        ("Q copied beyond its columns", "not all columns of the rows of Q are copied|columns of Q are not",
            "the first if: seq_q) && ((((int)threadIdx.x) & 15) < 13) -> seq_q)")),
    *rows("output_direct, asked", (ONE_DESCRIPTOR, WHOLE_TILES),
        ("K as wide as its tile", r"dimensions of K_desc: \(64, .*, expected \(40, ",
            "descriptors.K_desc.dims.0 := 64"),
        ("what is beyond as NaN", "fill beyond the end of Q_desc: 1, expected 0",
            "descriptors.Q_desc.oob_fill := 1")),
    *rows("p_shared, asked", (ONE_DESCRIPTOR, WHOLE_TILES),
        ("boxes of the tensor's columns", r"box of V_desc: \(40, .*, expected \(64, ",
            "descriptors.V_desc.box.0 := 40")),
    *rows("d192_128_causal, asked", (ONE_DESCRIPTOR, WHOLE_TILES),
        ("V as wide as K", r"dimensions of V_desc: \(136, .*, expected \(104, ", "descriptors.V_desc.dims.0 := 136")),
    *rows("d96_causal, asked", (ONE_DESCRIPTOR, WHOLE_TILES),
        ("a panel of 128 bytes", r"box of K_desc: \(64, .*, expected \(32, ", "descriptors.K_desc.box.0 := 64"),
        ("a swizzle of 128 bytes", "swizzle of K_desc: 3, expected 2", "descriptors.K_desc.swizzle := 3")),
    *rows("output_direct, narrow", (DIRECT, WHOLE_TILES),
        ("a direct store with no bound of columns", r"some elements of row \d+ are stored where others are not",
            "if first_row: && (i < 10) -> "),
        ("a direct store of fewer columns", "the output's elements are not those of whole rows, each once",
            "if first_row: i < 10 -> i < 8")),
]  # fmt: skip
