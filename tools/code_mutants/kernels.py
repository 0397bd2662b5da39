"""The generated code of these kernels is mutated as text: TileLang lowers them as for the package, without nvcc."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_mutants.reading import Code
from tl_attention.compiler import generation
from tl_attention.kernels.registry import lowering_of, parameters_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

SCHEDULES = Path(__file__).parents[2] / "schedules"


@dataclass(frozen=True)
class Kernel:
    """A kernel is a schedule and the variant that it is compiled for."""

    file: str  # path under schedules/, without .yaml
    causal: bool = False
    dtype: str = "float16"
    head_dim: int = 128
    head_dim_v: int = 0
    group: int | None = None
    optional: frozenset[str] = frozenset()

    @functools.cached_property
    def schedule(self) -> Schedule:
        return load(SCHEDULES / f"{self.file}.yaml")

    @property
    def variant(self) -> Variant:
        mask = CAUSAL if self.causal else FULL
        return Variant(self.head_dim, self.dtype, mask, self.head_dim_v, group=self.group, optional=self.optional)


# These kernels have all lowerings with a Program, both masks, the fastest schedules; multicast, tiles from a counter,
# in sections and tapered, turns, an output by TMA, Q in registers, P in shared memory, a rescale that waits for a
# threshold, both dtypes and head sizes; fragments by ldmatrix, with one buffer and with two.
KERNELS: dict[str, Kernel] = {
    "best": Kernel("best"),
    "best_causal": Kernel("best_causal", causal=True),
    "q_registers": Kernel("experiments/q_registers"),
    "output_tma": Kernel("experiments/output_tma"),
    "p_shared": Kernel("experiments/p_shared/block_N_192", dtype="bfloat16", head_dim=64),
    "dynamic": Kernel("experiments/dynamic"),
    "one_tile": Kernel("experiments/one_tile"),
    "sections": Kernel("experiments/causal/sections", causal=True),
    "rescale_threshold": Kernel("experiments/causal/rescale_threshold", causal=True),
    "ws_seed": Kernel("ws_seed"),
    "ws_three_stages": Kernel("ws_three_stages"),
    "ws_fa3_64x128": Kernel("ws_fa3_64x128", causal=True, dtype="bfloat16", head_dim=64),
    "seed": Kernel("seed"),
    "seed_causal": Kernel("seed", causal=True),
    "fa3_pipelined": Kernel("fa3_pipelined", causal=True),
    "prefetch": Kernel("prefetch", dtype="bfloat16"),
    "three_stages": Kernel("three_stages", head_dim=64),
    "mma_sync": Kernel("mma_sync", causal=True),
    "mma_sync_small": Kernel("mma_sync_small", dtype="bfloat16"),
    "mma_sync_d64": Kernel("mma_sync_d64", causal=True, head_dim=64),
    "mma_sync_double": Kernel("mma_sync/double_both", causal=True),
}


@functools.cache
def lowered(kernel: Kernel) -> Code:
    """Returns the code that TileLang generates of a kernel, the same text as `compile_kernel` has. Imports tilelang."""
    lowering = lowering_of(kernel.schedule)
    program = lowering.prim_func(Planned(kernel.schedule), kernel.variant)
    parameters = parameters_of(kernel.schedule, kernel.variant)
    return Code(*generated(program, kernel.schedule, kernel.variant), kernel.variant, parameters)


def generated(program: Any, schedule: Schedule, variant: Variant) -> tuple[str, str]:
    """Returns the CUDA and the host's plan that TileLang makes of a prim_func, as it is compiled for the schedule."""
    return generation.lowered(program, variant.arch, dict(lowering_of(schedule).pass_configs))
