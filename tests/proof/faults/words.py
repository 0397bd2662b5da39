"""These are words of refusals that many faults have."""

# Where a copy of cp.async, a box of TMA, or a store begins.
COPY_K, COPY_V, COPY_Q = (f"the first element, or column, of load {of} of a block" for of in "KVQ")
ROW_K, ROW_Q = (f"the row of load {of} of the producer" for of in "KQ")
HEAD_K = "the head of load K of the producer"
OUTPUT_PLACE, OUTPUT_PLACE_0 = (f"the first element of output of {of}" for of in ("a block", "warpgroup 0"))
LSE_PLACE, LSE_PLACE_0 = (f"the first element of lse of {of}" for of in ("a block", "warpgroup 0"))
LSE_ROWS = "the number of rows of lse of a block"
LSE_FORM = "a store of logarithms of a form that is not known:"
BOUND_K, BOUND_V = (f"where load {of} of a block has row" for of in "KV")
SLOT_K = "the index of product K of a block"
SINKS_HEAD = "the head of Sinks of a block"
COLUMNS_OF_K = "columns of K are not where they belong in its tile"
OTHER_COLUMNS = "instruction 0 of a product reads other columns of its operands"
UNMASKED = "an unmasked KV block has hidden keys behind"
BLOCK_UNMASKED = f"a block: {UNMASKED}"
BELOW_0 = "or before: .*, expected no number below 0"
LOOP_OF_V = r"a block does load V\b.*, expected a loop of v"
END_OF_TILES = "the end of the tiles of the producer"
LISTS, MERGES = "the kernel that lists the tiles", "the kernel that merges parts is"
SCORES_EARLY = "acc_s is used before the wait for the product into it"
NOT_COMMITTED = "waits for a store that is not committed"
UNKNOWN = "is nothing that is known"
HALF_OF_WARPGROUP = "64 of the 128 threads of warpgroup 0 of block 0 run it"
HALF_OF_BLOCK = "64 of the 128 threads of a block run it"
