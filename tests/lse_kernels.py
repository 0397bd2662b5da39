"""Kernels that store the LSE beside their output, lowered as those without it are."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import KERNELS, Kernel
from code_mutants.reading import Code, of_numbers, prove
from once import lowered

from tl_attention.problem.variant import Variant

__all__ = ["KERNELS", "LSE", "Code", "Kernel", "LseKernel", "lowered", "of_numbers", "prove", "stores", "with_lse"]
LSE = frozenset({"LSE"})
# The line that stores.
CALL = "tl_attention_store_lse("


@dataclass(frozen=True)
class LseKernel(Kernel):
    """A kernel with the LSE."""

    @property
    def variant(self) -> Variant:
        return replace(super().variant, optional=LSE)


def with_lse(name: str) -> tuple[LseKernel, Code]:
    """The kernel of this name with the LSE, and what TileLang generates of it."""
    plain = KERNELS[name]
    kernel = LseKernel(plain.file, plain.causal, plain.dtype, plain.head_dim)
    return kernel, lowered(kernel)


def stores(source: str) -> list[int]:
    """The numbers, from 0, of the lines that store it: calls in the kernel, not the function that they call."""
    lines = source.splitlines()
    body = next(number for number, line in enumerate(lines) if "__launch_bounds__" in line)
    return [number for number, line in enumerate(lines) if number > body and line.strip().startswith(CALL)]
