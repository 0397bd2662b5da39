"""Kernels with windows, as text, and the numbers that their sources have."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import SCHEDULES
from code_mutants.reading import Code
from once import lowered

from tl_attention.files.schedule_file import load
from tl_attention.problem.mask import Mask
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule


@dataclass(frozen=True)
class WindowKernel:
    """`file` is the path under schedules/, without .yaml."""

    file: str
    mask: Mask
    dtype: str = "float16"
    head_dim: int = 128

    @property
    def schedule(self) -> Schedule:
        return load(SCHEDULES / f"{self.file}.yaml")

    @property
    def variant(self) -> Variant:
        return Variant(self.head_dim, self.dtype, self.mask)

    @property
    def code(self) -> Code:
        return lowered(self)


# Both lowerings; windows that cut far from each other, within a block, at its edge, on one side, and none of a tile's
# blocks whole; a cluster and a counter; both orders of KV blocks.
KERNELS: dict[str, WindowKernel] = {
    "wide": WindowKernel("best", Mask(1024, 1024)),
    "causal": WindowKernel("best_causal", Mask(1023, 0), "bfloat16"),
    "left": WindowKernel("best", Mask(left=176)),
    "right": WindowKernel("best", Mask(right=100)),
    "narrow": WindowKernel("best_causal", Mask(5, 0)),
    "own": WindowKernel("ws_three_stages", Mask(0, 0)),
    "pipelined": WindowKernel("seed", Mask(128, 127)),
    "pipelined causal": WindowKernel("fa3_pipelined", Mask(63, 0), "bfloat16", 64),
    "pipelined left": WindowKernel("prefetch", Mask(left=129)),
}
