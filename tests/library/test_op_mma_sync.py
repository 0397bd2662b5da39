"""attention() runs schedules of mma_sync on a GPU; any machine can check the list of its cases.

pytest -m gpu -n 15 --dist worksteal tests/library/test_op_mma_sync.py      # 36 kernels
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from matrix_check import fault_of
from matrix_kernels import MASKS, Kernel
from mma_sync_schedules import FAMILY, SHIPPED, TOP, head_dim
from on_gpu import check
from test_op_schedules import LARGE, some_cases

from tl_attention import ScheduleRefused, attention
from tl_attention.compiler.compile import compile_kernel
from tl_attention.lab.oracle.reference import make_inputs
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.variant import Variant

PLAIN = dict.fromkeys(("capped", "sinks", "lse", "strided", "few"), False)


def plain(name: str, mask: str, number: int) -> Kernel:
    """Returns a kernel of the schedule for contiguous tensors, with nothing else asked for."""
    edges: tuple[Any, Any] = ("block", number % 3 - 1) if any(MASKS[mask][1:]) else (None, None)
    # Queries that see no key make the tensors of the others strided.
    flags = PLAIN | {"strided": mask not in ("open", "causal")}
    return Kernel(DTYPES[number % 2], head_dim(name), "mha", mask, *edges, **flags, schedule=name)


def rich(name: str, mask: str, number: int) -> Kernel:
    """Returns a kernel of the schedule for strided tensors and grouped heads, with the LSE."""
    edges: tuple[Any, Any] = ("block", number % 3 - 1) if any(MASKS[mask][1:]) else (None, None)
    flags = PLAIN | {"strided": True, "lse": True}
    heads = ("gqa", "mqa", "gqa 40/8")[number % 3]
    return Kernel(DTYPES[(number + 1) % 2], head_dim(name), heads, mask, *edges, **flags, schedule=name)


KERNELS = [
    *(plain(name, mask, number) for number, name in enumerate(TOP) for mask in ("open", "causal")),
    *(
        rich(name, mask, n + m)
        for n, name in enumerate(TOP)
        for m, mask in enumerate(("causal", "both", "causal left"))
    ),
    *(
        make(name, ("open", "causal")[(number + other) % 2], number)
        for number, name in enumerate(FAMILY)
        for other, make in enumerate((plain, rich))
    ),
]


def test_each_is_for_a_kernel_that_fits() -> None:
    assert len(set(map(str, KERNELS))) == len(KERNELS) <= 40
    assert {kernel.schedule for kernel in KERNELS} == {*SHIPPED}
    for kernel in KERNELS:
        assert kernel.scheduled == SHIPPED[kernel.schedule] and kernel.runs(*LARGE)
        assert len({(case.seq_q, case.seq_kv) for case in some_cases(kernel)}) >= 4
    for of in ("dtype", "lse", "strided", "causal"):
        assert len({getattr(kernel, of) for kernel in KERNELS}) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_schedule(kernel: Kernel) -> None:
    found = [fault for case in some_cases(kernel) if (fault := fault_of(case, kernel.scheduled))]
    assert not found, "\n".join(["", *found])


def fresh(name: str, *size: int, dtype: str = "float16") -> tuple[torch.Tensor, ...]:
    shape = AttentionShape(*size, head_dim(name), dtype)
    return make_inputs(shape, seed=random.SystemRandom().randrange(2**31), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", TOP)
def test_sizes_that_are_fixed(name: str) -> None:
    q, k, v = fresh(name, 2, 3, 290, 333)
    output = attention(q, k, v, causal=True, specialize=True, schedule=name)
    check(output, q, k, v, causal=True)


# The kernels of `plain`, by their dtypes: they are compiled already.
@pytest.mark.gpu
@pytest.mark.parametrize("number,name", [*enumerate(TOP)])
@pytest.mark.parametrize("causal", [False, True])
def test_200_repetitions_are_bitwise_equal(number: int, name: str, causal: bool) -> None:
    q, k, v = fresh(name, 2, 40, 1000, 1100, dtype=DTYPES[number % 2])
    first = attention(q, k, v, causal=causal, schedule=name)
    assert all(torch.equal(attention(q, k, v, causal=causal, schedule=name), first) for _ in range(200))


def test_a_softcap_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(ScheduleRefused, match="^softcap, which lowering mma_sync does not compute$"):
        compile_kernel(SHIPPED["mma_sync"], Variant(128, "float16", CAUSAL, optional=frozenset({"softcap"})))
