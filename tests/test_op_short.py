"""Schedules for few queries are right at every length on a Hopper GPU, with as many blocks on an SM as the schedule says."""

from __future__ import annotations

import ctypes

import pytest
import torch
from mutations import SCHEDULES
from on_gpu import check, fresh

from tl_attention import attention
from tl_attention.compiler.compile import compile_kernel
from tl_attention.files.named import resolve
from tl_attention.hardware.warpgroup import WARPGROUP
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.variant import Variant

EXPERIMENTS = sorted(f"experiments/short/{path.stem}" for path in (SCHEDULES / "experiments/short").glob("*.yaml"))
# Batch, heads, queries, keys: tiles that leave places empty, that fill them once, and more.
LENGTHS = (
    *((1, 1, 1, 1), (2, 3, 1, 300), (3, 5, 63, 64), (1, 2, 64, 65), (1, 40, 17, 4095)),
    *((8, 32, 64, 513), (8, 34, 64, 640), (9, 70, 33, 191), (2, 3, 65, 1000)),
)
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


def head_dims(name: str) -> list[tuple[int, int]]:
    """Returns (head_dim, head_dim_v) of each size that a schedule is meant for; of an experiment only the last."""
    found = [sizes_of(size) for size in resolve(name).head_dims]
    return found[-1:] if name in EXPERIMENTS else found


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["short", "short_wide", *EXPERIMENTS])
@pytest.mark.parametrize("causal", [False, True])
def test_every_length_is_right(name, causal):
    for head_dim, head_dim_v in head_dims(name):
        for batch, heads, seq_q, seq_kv in LENGTHS:
            sizes = batch, heads, min(seq_q, seq_kv), seq_kv, head_dim
            q, k, v = fresh(*sizes, dtype="bfloat16", head_dim_v=head_dim_v)
            output = attention(q, k, v, causal=causal, schedule=name)
            check(output, q, k, v, causal=causal)
            assert torch.equal(output, attention(q, k, v, causal=causal, schedule=name))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["short", "short_wide", "experiments/short/three_blocks"])
def test_as_many_blocks_are_on_an_sm(name):
    schedule = resolve(name).schedule
    torch.zeros(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    for head_dim, head_dim_v in head_dims(name):
        kernel = compile_kernel(schedule, Variant(head_dim, "bfloat16", head_dim_v=head_dim_v))
        module, function, blocks = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        assert driver.cuModuleLoadData(ctypes.byref(module), kernel.cubin) == 0
        assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"attention_kernel") == 0
        shared = kernel.shared_bytes
        assert driver.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared) == 0
        found = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, schedule.threads + WARPGROUP, ctypes.c_size_t(shared)
        )
        assert found == 0 and blocks.value >= schedule.kernel.blocks_per_sm, f"{name} {head_dim}: {blocks.value}"
        driver.cuModuleUnload(module)
