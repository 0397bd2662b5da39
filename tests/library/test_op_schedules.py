"""attention() runs every kind of schedule on a Hopper GPU; any machine can check the list of its cases.

The matrix test has the default schedules, and this test has all others. A schedule with a name of its own runs a
problem without, and a problem with, all that attention() takes; an option of the warp-specialised lowering runs one of
the two.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from matrix_cases import MOST_SCORES, Case, case_of, lengths_of
from matrix_check import fault_of
from matrix_kernels import EDGES, HEADS, MASKS, Kernel
from mutations import SCHEDULES
from tiers import sampled

from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.problem.shape import DTYPES
from tl_attention.program.planned import Planned

# Both lowerings, every form of the loop, and tiles that divide otherwise.
NAMES = (
    *("seed", "source_order", "inferred", "prefetch", "prefetch_late", "three_stages", "fa3_pipelined", "best"),
    *("best_causal", "fa3_overlap", "ws_seed", "ws_three_stages", "ws_fa3_192x96", "ws_fa3_64x128"),
)
EXPERIMENTS = [
    path.relative_to(SCHEDULES).with_suffix("").as_posix()
    for path in sorted((SCHEDULES / "experiments").rglob("*.yaml"))
    # The others have tests of their own: test_op_sizes.py.
    if path.parent.name in ("experiments", "causal")
]
# With more tiles than the GPU has SMs, where heads and batches allow.
LARGE = (1000, 1024)
# Of each kernel, beside that one.
DRAWS = 6


def plain(name: str, number: int) -> Kernel:
    """Returns a kernel of the schedule for contiguous tensors, with nothing else asked for."""
    size, mask = (128, 64)[number // 2 % 2], ("open", "causal")[number % 2]
    return Kernel(
        *(DTYPES[number // 4 % 2], size, "mha", mask, None, None),
        **dict.fromkeys(("capped", "sinks", "lse", "strided", "few"), False),
        schedule=name,
    )


def rich(name: str, number: int) -> Kernel:
    """Returns a kernel of the schedule for strided tensors, grouped heads and all the rest, with each mask in turn."""
    rng = random.Random(name)
    mask = (*MASKS,)[number % len(MASKS)]
    edges: tuple[Any, Any] = ("block", rng.choice(EDGES)) if any(MASKS[mask][1:]) else (None, None)
    flags: dict[str, Any] = {"capped": True, "sinks": True, "lse": True, "strided": True, "few": False}
    heads = rng.choice([name for name in HEADS if name != "mha"])
    return Kernel(rng.choice(DTYPES), rng.choice((128, 64, 104, 40)), heads, mask, *edges, **flags, schedule=name)


KERNELS = [
    *(make(name, number) for number, name in enumerate(NAMES) for make in (plain, rich)),
    *((plain, rich)[number % 2](name, number // 2) for number, name in enumerate(EXPERIMENTS)),
]


def some_cases(kernel: Kernel) -> list[Case]:
    """Returns cases of drawn lengths, and one of many tiles."""
    rng = random.Random(str(kernel))
    lengths = [pair for pair in lengths_of(kernel) if 0 not in pair]
    heads = HEADS[kernel.heads][0]
    batch = min(9, MOST_SCORES // (heads * LARGE[0] * LARGE[1]))
    return [
        case_of(kernel, *LARGE, rng, batch=batch),
        *(case_of(kernel, *rng.choice(lengths), rng) for _ in range(DRAWS)),
    ]


# `make test` asks every third.
@pytest.mark.parametrize("part", sampled(range(3), [0]))
def test_each_is_for_a_kernel_that_fits(part: int) -> None:
    for kernel in KERNELS[part::3]:
        refuse_unless_safe(Planned(kernel.scheduled), kernel.size)
        assert kernel.runs(*LARGE) and len({(case.seq_q, case.seq_kv) for case in some_cases(kernel)}) >= 4


def test_together_they_have_every_mask() -> None:
    assert len(set(map(str, KERNELS))) == len(KERNELS) <= 92
    options = [kernel for kernel in KERNELS if kernel.schedule in EXPERIMENTS]
    assert {kernel.mask for kernel in options if kernel.lse} == set(MASKS)
    assert {kernel.causal for kernel in options if not kernel.lse} == {False, True}


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_kind_of_schedule(kernel: Kernel) -> None:
    found = [fault for case in some_cases(kernel) if (fault := fault_of(case, kernel.scheduled))]
    assert not found, "\n".join(["", *found])
