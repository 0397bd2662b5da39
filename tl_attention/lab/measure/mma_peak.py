"""This kernel only multiplies, by mma.sync m16n8k16, from registers to registers: this lowering's speed of light."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import tilelang
import tilelang.language as T

from tl_attention.compiler.generation import BACKEND, silence, target
from tl_attention.compiler.toolchain import use_nvcc
from tl_attention.kernels.mma_sync.operations import multiply
from tl_attention.problem.warpgroup import WARP

# The warps of a block, one block on each SM: two warps for each scheduler.
WARPS = 8
# The fragments of an iteration: 2 x 16 rows and 8 x 8 columns, so that no product waits for the one before.
ROWS, COLUMNS = 2, 8
FLOPS_OF_A_PRODUCT = 2 * 16 * 8 * 16
# Registers of Source for each thread: 8 elements for 16 rows, 4 for 8 columns.
ELEMENTS = 8 * ROWS + 4 * COLUMNS


def flops(sms: int, iterations: int) -> int:
    """Returns the number of FLOPs of one launch of `products_kernel`, from the numbers of SMs and iterations."""
    return sms * WARPS * iterations * ROWS * COLUMNS * FLOPS_OF_A_PRODUCT


def products_kernel(*, dtype, sms):
    """Returns a TileLang prim_func that does nothing but mma.sync products, to measure their peak rate.

    Output (sms, threads) = the sums of each thread's accumulators after `iterations` of the products of the fragments
    that Source (threads, ELEMENTS) has for the thread. The sums keep the compiler from leaving products out.
    """
    c = SimpleNamespace(dtype=dtype)
    threads = WARPS * WARP

    @T.prim_func
    def products(
        Source: T.Tensor((threads, ELEMENTS), dtype), Output: T.Tensor((sms, threads), "float32"), iterations: T.int32
    ):
        with T.Kernel(sms, threads=threads) as block:
            A = T.alloc_local([8 * ROWS], dtype)
            B = T.alloc_local([4 * COLUMNS], dtype)
            C = T.alloc_local([4 * ROWS * COLUMNS], "float32")
            total = T.alloc_var("float32")
            thread = T.get_thread_binding()
            for i in T.unroll(8 * ROWS):
                A[i] = Source[thread, i]
            for i in T.unroll(4 * COLUMNS):
                B[i] = Source[thread, 8 * ROWS + i]
            for i in T.unroll(4 * ROWS * COLUMNS):
                C[i] = 0
            for _ in T.serial(iterations):
                for i in T.unroll(ROWS):
                    for j in T.unroll(COLUMNS):
                        multiply(A, i * 8, B, j * 4, C, (i * COLUMNS + j) * 4, c)
            total = 0
            for i in T.unroll(4 * ROWS * COLUMNS):
                total += C[i]
            Output[block, thread] = total

    return products


@functools.cache
def compile_products(dtype: str, arch: str, sms: int) -> Any:
    """Compiles `products_kernel` for a dtype and a card's arch and SMs.

    It is a function of Source, Output and the number of iterations.
    """
    with use_nvcc():
        return compiled(products_kernel(dtype=dtype, sms=sms), arch)


def compiled(program: Any, arch: str) -> Any:
    """Compiles a prim_func by TileLang for an arch, and returns the kernel.

    The caller holds the compiler `use_nvcc`.
    """
    silence()
    return tilelang.compile(program, target=target(arch), execution_backend=BACKEND)
