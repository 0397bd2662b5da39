"""nvcc compiles what TileLang generates: it makes machine code of the kernels whose text other tests read."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from golden_kernels import KERNELS
from machine_code import cubin
from mma_sync_schedules import OF_OTHER_CODE, SHIPPED
from mutations import fitting_head_dim, shipped
from once import Given, Kernel, lowered
from tiers import exhaustive

from tl_attention.lowering.registry import LOWERINGS
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant

EVERY = {
    **KERNELS,
    **{
        name: Given(schedule, Variant(fitting_head_dim(name), "float16", CAUSAL))
        for name, schedule in shipped().items()
        if schedule.lowering == "warp_specialized"
    },
    **{name: Given(SHIPPED[name], Variant(128, "float16", CAUSAL)) for name in OF_OTHER_CODE},
}
# nvcc spends most of its time on the headers.
PARTS = 4
EXTERN = 'extern "C" '


def together(sources: Iterable[str]) -> str:
    """Returns one text of all kernels, each in a namespace of its own, behind what they include."""
    headers, kernels = [], []
    for number, source in enumerate(sources):
        before = source[: source.index('extern "C" __global__')]
        headers += re.findall(r"^#.*$", before, re.MULTILINE)
        kernels.append(f"namespace kernel_{number} {{\n{source.replace(EXTERN, '')}\n}}")
    return "\n".join((*headers, *kernels))


ONE_EACH = ("ws_seed", "seed", "mma_sync_small", "inferred")


def has_machine_code(chosen: list[Kernel]) -> None:
    """Checks that nvcc makes machine code of each of these kernels."""
    made = cubin(together(lowered(kernel).source for kernel in chosen))
    found = {int(number) for number in re.findall(rb"\.text\._ZN\d+kernel_(\d+)16attention_kernel", made)}
    assert found == {*range(len(chosen))}


def test_one_kernel_of_each_lowering_has_machine_code() -> None:
    chosen = [KERNELS[name] for name in ONE_EACH]
    assert {kernel.schedule.lowering for kernel in chosen} == {*LOWERINGS}
    has_machine_code(chosen)


@exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_has_machine_code(part: int) -> None:
    has_machine_code([*EVERY.values()][part::PARTS])
