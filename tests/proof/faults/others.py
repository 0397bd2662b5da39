"""These kernels get faults, are not in the golden code, and are lowered for `make test-all` alone."""

from once import Given
from overlap import IN_CHUNKS

from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.schedule.files.named import resolve

# Its threads do not share a tile of K or V by 16 bytes each.
BY_ELEMENT = resolve("seed").schedule.model_copy(update={"block_M": 192, "block_N": 64, "threads": 384})
OTHERS: dict[str, Given] = {
    "p_shared, chunks": Given(IN_CHUNKS, Variant(64, "float16", CAUSAL)),
    "seed, 192 rows": Given(resolve("seed").schedule, Variant(64, "float16", group=1, sizes=Sizes(2, 4, 192, 320))),
    "seed, elements": Given(BY_ELEMENT, Variant(64, "float16")),
    "output_direct, narrow": Given(resolve("experiments/output_direct").schedule, Variant(40, "float16")),
}
