"""The kernel of nothing but products by mma.sync, compiled for the card at hand."""

from __future__ import annotations

import functools
from typing import Any

from tl_attention.build.generation import compiled
from tl_attention.build.toolchain import in_force


@functools.cache
def compile_products(dtype: str, arch: str, sms: int) -> Any:
    """A function of Source, Output and the number of iterations: `lowering/mma_sync/rate.py` says what they are."""
    with in_force():
        from tl_attention.lowering.mma_sync.rate import products_kernel

        return compiled(products_kernel(dtype=dtype, sms=sms), arch)
