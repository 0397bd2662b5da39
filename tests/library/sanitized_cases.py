"""compute-sanitizer checks one ragged case of each variant; run as a program, this launches one lowering's cases.

Numbers are drawn on the CPU and copied, so that nothing but the kernels runs on the GPU.
"""

import random
import sys
from dataclasses import replace
from typing import Any

from guarded import Guarded
from matrix_cases import Case, case_of
from matrix_check import drawn
from matrix_kernels import PIPELINED, Kernel
from torch import Tensor

from tl_attention import attention

SCHEDULES = ("default", PIPELINED)
PLAIN: dict[str, Any] = {
    **dict.fromkeys(("capped", "sinks", "lse", "strided", "few"), False),
    "dtype": "float16",
    "size": 128,
    "heads": "mha",
    "mask": "open",
    "width": None,
    "edge": None,
}
# What each variant changes of PLAIN.
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {"heads": "gqa"},
    "window": {"mask": "both", "width": 64, "edge": 1},
    "softcap": {"capped": True},
    "sinks": {"sinks": True},
    "LSE": {"lse": True},
    "strided": {"strided": True},
    "narrow": {"size": 40},
    "96": {"size": 96},
    "192": {"size": 192},
    "192/128": {"size": "192/128"},
    "256": {"size": 256},
    "queries that see no key": {"mask": "causal", "strided": True, "lse": True},
}


def kernel(name: str, schedule: str) -> Kernel:
    """Returns the kernel of a variant."""
    return Kernel(**(PLAIN | VARIANTS[name] | {"schedule": schedule}))


def case(name: str, schedule: str) -> Case:
    """Returns the case of a variant, which is ragged in queries and in keys."""
    lengths = (333, 200) if name == "queries that see no key" else (200, 333)
    of_kernel = kernel(name, schedule)
    drawn = case_of(of_kernel, *lengths, random.Random(name), batch=1)
    return replace(drawn, layout="bhsd", memory="sliced", out="sliced") if of_kernel.strided else drawn


def launch(name: str, schedule: str) -> None:
    """Calls attention() once."""
    called = case(name, schedule)
    given = drawn(called, 1, "cpu")
    q, k, v = map(_on_gpu, given.places)
    attention(
        *(q, k, v),
        causal=called.causal,
        window_size=called.window,
        softcap=called.cap[0],
        sinks=None if given.sinks is None else given.sinks.cuda(),
        return_lse=called.lse,
        out=_on_gpu(given.out) if given.out else None,
        schedule=kernel(name, schedule).scheduled,
    )


def _on_gpu(place: Guarded) -> Tensor:
    tensor = place.tensor
    return place.memory.cuda().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


if __name__ == "__main__":
    import torch

    for variant in VARIANTS:
        launch(variant, sys.argv[1])
        torch.cuda.synchronize()
        print(f"it ran: {variant}", flush=True)
