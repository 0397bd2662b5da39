"""Makes warp-specialised schedules for tests: FlashAttention-3's order, and other orders of its groups."""

from typing import Any

from mutations import shipped

from tl_attention.schedule.options import KernelOptions
from tl_attention.schedule.schedule import Schedule

FORMS: dict[str, dict[str, Any]] = {
    "overlap": {},
    "source order": {"order": (-1, 0, 1, 2, 3, -1, 4), "stage": (-1, 0, 0, 0, 0, -1, 0)},
    "three stages": {"block_N": 128, "order": (-1, 4, 2, 3, 0, -1, 1), "stage": (-1, 0, 1, 1, 2, -1, 2)},
    "one warpgroup": {"block_M": 64, "block_N": 128, "threads": 128},
    "three warpgroups": {"block_M": 192, "block_N": 96, "threads": 384},
}
CAST_IN_CHUNKS = [["cast.0", "cast.1"] if group == ("cast",) else group for group in shipped()["fa3_overlap"].group]
# P in shared memory, its cast in two chunks, two warpgroups that take turns, the output by TMA.
IN_CHUNKS = Schedule(
    **shipped()["fa3_overlap"].model_dump()
    | {"block_N": 128, "split": {"cast": (48, 80)}, "group": CAST_IN_CHUNKS}
    | {"kernel": {"p_operand": "shared", "ping_pong": True, "output": "tma"}}
)


def overlap(form: str = "overlap", **kernel: Any) -> Schedule:
    """Returns a schedule of this form, with these kernel options."""
    return shipped()["fa3_overlap"].model_copy(update={**FORMS[form], "kernel": KernelOptions(**kernel)})
