"""These kernels get faults, are not in the golden code, and are lowered for `make test-all` alone."""

from mutations import shipped
from once import Given

from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

IN_CHUNKS = [["cast.0", "cast.1"] if group == ("cast",) else group for group in shipped()["fa3_overlap"].group]
# P in shared memory, its cast in two chunks, two warpgroups that take turns, the output by TMA.
CHUNKED = Schedule(
    **shipped()["fa3_overlap"].model_dump()
    | {"block_N": 128, "split": {"cast": (48, 80)}, "group": IN_CHUNKS}
    | {"kernel": {"p_operand": "shared", "ping_pong": True, "output": "tma"}}
)
OTHERS: dict[str, Given] = {
    "p_shared, chunks": Given(CHUNKED, Variant(64, "float16", CAUSAL)),
    "output_direct, narrow": Given(resolve("experiments/output_direct").schedule, Variant(40, "float16")),
}
