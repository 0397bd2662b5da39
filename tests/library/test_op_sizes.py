"""Head sizes, lengths, 2^31 elements and schedules that the matrix test has not are right on a Hopper GPU."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from matrix_kernels import AXES
from mutations import SCHEDULES
from on_gpu import check, fresh
from overlap import IN_CHUNKS
from test_op_lse import RAGGED

from tl_attention import attention
from tl_attention.compiler.compile import compile_kernel
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.shape import DTYPES
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import WARPGROUP
from tl_attention.schedule.files.named import resolve

pytestmark = pytest.mark.gpu

SIZES = ((1, 1, 1, 1), (2, 3, 1, 300), (1, 2, 129, 129), (3, 1, 200, 333), (1, 2, 1000, 1777), (3, 50, 290, 333))


def right(head_dim: int, dtype: str, causal: bool, schedule: str | None = None) -> None:
    for sizes in SIZES:
        q, k, v = fresh(*sizes, head_dim, dtype=dtype)
        output = attention(q, k, v, causal=causal, schedule=schedule)
        assert output.shape == q.shape and output.is_contiguous()
        check(output, q, k, v, causal=causal)


@pytest.mark.parametrize("head_dim", [size for size in range(8, 257, 8) if size not in AXES["size"]])
def test_every_other_head_dim_by_its_default(head_dim):
    # Each dtype and mask with each tile, and not all four of every size, which takes a minute to compile.
    right(head_dim, DTYPES[head_dim // 8 % 2], head_dim // 16 % 2 == 1)


@pytest.mark.parametrize(
    "name,size,causal", [("d96_2k", 96, False), ("d96_causal_4k", 80, True), ("d64_causal", 48, True)]
)
def test_the_defaults_of_other_lengths(name, size, causal):
    right(size, "bfloat16", causal, name)


@pytest.mark.parametrize(
    "name,head_dim",
    [("experiments/output_direct", 40), ("experiments/output_tma", 104), ("experiments/q_registers", 40)],
)
def test_every_way_to_store_and_to_read_q(name, head_dim):
    right(head_dim, "bfloat16", False, name)


# --- tensors of more than 2^31 elements ------------------------------------------------------------------------------

# On a GPU with 40 GB free: of the last of 2 x 64 heads a kernel reads, or writes, what lies behind the first 2^31.
LONG, SHORT = 2**17 + 4096, 300


@pytest.mark.parametrize("schedule", [None, "seed", "mma_sync"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("seq_q, seq_kv", [(LONG, SHORT), (SHORT, LONG)], ids=["queries", "keys"])
def test_what_lies_behind_2_to_the_31_elements_is_read_and_written(seq_q, seq_kv, layout, schedule):
    generator = torch.Generator("cuda").manual_seed(seq_q)
    places = {"bhsd": lambda seq: (2, 64, seq, 128), "bshd": lambda seq: (2, seq, 64, 128)}[layout]
    sizes = [places(seq) for seq in (seq_q, seq_kv, seq_kv)]
    assert max(map(math.prod, sizes)) > 2**31
    q, k, v = (torch.randn(*size, dtype=torch.float16, device="cuda", generator=generator) for size in sizes)
    output = attention(q, k, v, layout=layout, schedule=schedule)
    heads = [x if layout == "bhsd" else x.transpose(1, 2) for x in (output, q, k, v)]
    for batch, head in ((0, 0), (1, 63)):
        check(*(x[batch : batch + 1, head : head + 1] for x in heads))


# --- P in shared memory ----------------------------------------------------------------------------------------------

# Three warpgroups; panels of 16 columns; chunks, turns and an output that goes the same way.
P_SHARED = {
    "three warpgroups": resolve("experiments/p_shared/block_N_192").schedule,
    "narrow panels": resolve("experiments/p_shared/block_N_176").schedule,
    "chunks": IN_CHUNKS,
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", P_SHARED)
def test_it_is_right_at_every_length(name, causal):
    dtype = "float16" if name == "chunks" else "bfloat16"
    for sizes in RAGGED:
        q, k, v = fresh(*sizes, 64, dtype=dtype)
        check(attention(q, k, v, causal=causal, schedule=P_SHARED[name]), q, k, v, causal=causal)


@pytest.mark.parametrize("name", P_SHARED)
def test_it_is_the_same_to_the_bit(name):
    q, k, v = fresh(2, 16, 1000, 1777, 64, dtype="bfloat16")
    first = attention(q, k, v, schedule=P_SHARED[name])
    assert all(torch.equal(attention(q, k, v, schedule=P_SHARED[name]), first) for _ in range(200))


# --- schedules for few queries ---------------------------------------------------------------------------------------


SHORT = sorted(path.stem for path in SCHEDULES.glob("short*.yaml"))
# Batch, heads, queries, keys: tiles that leave places empty, that fill them once, and more.
LENGTHS = (
    *((1, 1, 1, 1), (2, 3, 1, 300), (3, 5, 63, 64), (1, 2, 64, 65), (1, 40, 17, 4095)),
    *((8, 32, 64, 513), (8, 34, 64, 640), (9, 70, 33, 191), (2, 3, 65, 1000)),
)
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


def head_dims(name: str) -> list[tuple[int, int]]:
    """Returns (head_dim, head_dim_v) of each size that a schedule is meant for."""
    return [sizes_of(size) for size in resolve(name).head_dims]


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("causal", [False, True])
def test_every_length_is_right(name, causal):
    for head_dim, head_dim_v in head_dims(name):
        for batch, heads, seq_q, seq_kv in LENGTHS:
            sizes = batch, heads, min(seq_q, seq_kv), seq_kv, head_dim
            q, k, v = fresh(*sizes, dtype="bfloat16", head_dim_v=head_dim_v)
            output = attention(q, k, v, causal=causal, schedule=name)
            check(output, q, k, v, causal=causal)
            assert torch.equal(output, attention(q, k, v, causal=causal, schedule=name))


@pytest.mark.parametrize("name", SHORT)
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
