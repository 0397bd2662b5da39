"""The kernel of nothing but products by mma.sync, compiled for the card at hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tl_attention.build.generation import target
from tl_attention.build.toolchain import in_force


@functools.cache
def compile_products(dtype: str, arch: str, sms: int) -> Callable[..., Any]:
    """A function of Source, Output and the number of iterations: `lowering/mma_sync/rate.py` says what they are."""
    with in_force():
        import tilelang

        from tl_attention.lowering.mma_sync.rate import products_kernel

        return tilelang.compile(products_kernel(dtype=dtype, sms=sms), target=target(arch), execution_backend="tvm_ffi")
