"""These kernels get faults, are not in the golden code, and are lowered for `make test-all` alone."""

from once import Given
from overlap import IN_CHUNKS

from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.schedule.files.named import resolve

OTHERS: dict[str, Given] = {
    "p_shared, chunks": Given(IN_CHUNKS, Variant(64, "float16", CAUSAL)),
    "seed, 192 rows": Given(resolve("seed").schedule, Variant(64, "float16", sizes=Sizes(2, 4, 192, 320))),
    "output_direct, narrow": Given(resolve("experiments/output_direct").schedule, Variant(40, "float16")),
}
