"""The mma.sync kernel as generated is proved for all options and problems. Tests here compile and run nothing."""

import functools
import random
from typing import Any

import pytest
from code_mutants.kernels import SCHEDULES
from once import Given, proved
from tiers import exhaustive

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.keys import PRODUCER
from tl_attention.schedule.schedule import Schedule

FILES = ["mma_sync", *(f"mma_sync/{path.stem}" for path in sorted((SCHEDULES / "mma_sync").glob("*.yaml")))]
MASKS = (FULL, CAUSAL, Mask(1, 1), Mask(1, None), Mask(None, 1))
DRAWN = 12


def draw(rng: random.Random) -> Given | None:
    """Draws a schedule and variant that have a kernel; None where the draw has none."""
    head_dim = rng.choice((64, 128))
    schedule = load(SCHEDULES / f"{rng.choice(FILES)}.yaml")
    given = schedule.model_dump()
    kernel: dict[str, Any] = given["kernel"] | {
        "swizzle": rng.random() < 0.7,
        "ldmatrix": rng.choice(("x2", "x4")),
        "q_operand": rng.choice(("shared", "registers")),
        "blocks_per_sm": 1,
    }
    produced = rng.random() < 0.4
    if produced:
        # The loads run ahead as far as their buffers let them; elsewhere their places say how many buffers there are.
        # The loop over masked blocks may have fewer iterations than there are buffers.
        kernel |= {"k_stages": rng.choice((1, 2, 5)), "v_stages": rng.choice((1, 2))}
    loads = [
        PRODUCER if produced and "load_" in group[0] else order for group, order in zip(given["group"], given["order"])
    ]
    rank = [PRODUCER, *sorted(order for order in loads if order != PRODUCER)]
    first = min(stage for order, stage in zip(loads, given["stage"]) if order != PRODUCER)
    changed: dict[str, Any] = {
        "order": [rank.index(order) - 1 for order in loads],
        "stage": [PRODUCER if order == PRODUCER else stage - first for order, stage in zip(loads, given["stage"])],
        "threads": rng.choice((128, 128, 256)),
        "block_M": rng.choice((64, 128)),
        "kernel": {key: value for key, value in kernel.items() if produced or not key.endswith("_stages")},
        "softmax": given["softmax"] | {"rescale_threshold": rng.choice((0.0, 8.0)), "fused_scale": rng.random() < 0.5},
    }
    lacks = {"frag_q"} if kernel["q_operand"] == "registers" else set()
    # As many chunks as the head has steps.
    lacks |= {f"{name}.{n}" for name in ("frag_q", "frag_k", "mma0") for n in range(head_dim // 16, 8)}
    groups = [[name for name in group if not {name, name.partition(".")[0]} & lacks] for group in given["group"]]
    if produced:
        changed["wait_before"] = {}
    if given["split"]["mma0"]:
        changed["split"] = given["split"] | {"mma0": given["split"]["mma0"][: head_dim // 16]}
    try:
        found = Schedule(**given | changed | {"group": groups})
        refuse_unless_safe(Planned(found), head_dim)
    except (ScheduleRefused, ValueError):
        return None
    sizes = Sizes(1, 6, 200, 700) if rng.random() < 0.2 else None
    dtype, mask = rng.choice(("float16", "bfloat16")), rng.choice(MASKS)
    return Given(
        found,
        Variant(
            head_dim,
            dtype,
            # A window of fixed sizes is fixed, too.
            mask if sizes else mask.runtime,
            group=rng.choice((1, 3)) if sizes else None,
            optional=frozenset({"LSE"}) if rng.random() < 0.4 else frozenset(),
            strided=rng.random() < 0.3,
            sizes=sizes,
        ),
    )


def drawn(count: int, seed: str) -> list[Given]:
    rng = random.Random(seed)
    found = [one for _ in range(8 * count) if (one := draw(rng))]
    assert len(found) >= count
    return found[:count]


@functools.cache
def cases() -> list[Given]:
    return drawn(DRAWN, "CI 0")


def options(case: Given) -> dict[str, object]:
    """Returns the options of a case; the draws must have two values of each option."""
    kernel, variant = case.schedule.kernel, case.variant
    return {
        "Q": kernel.q_operand,
        "ldmatrix": kernel.ldmatrix,
        "swizzle": kernel.swizzle,
        "produced": PRODUCER in case.schedule.order,
        "threads": case.schedule.threads,
        "head_dim": variant.head_dim,
        "dtype": variant.dtype,
        "strided": variant.strided,
        "LSE": bool(variant.optional),
        "fixed": variant.sizes is not None,
        "full": variant.mask == FULL,
        "window": variant.mask.left is not None,
        "rescale": case.schedule.softmax.rescale_threshold > 0,
    }


@exhaustive
def test_the_draws_have_every_option():
    found = {(name, value) for case in cases() for name, value in options(case).items()}
    assert len(found) == 2 * len(options(cases()[0]))


@exhaustive
@pytest.mark.parametrize("number", range(DRAWN))
def test_any_of_them_is_proved(number):
    assert proved(cases()[number]).digest
