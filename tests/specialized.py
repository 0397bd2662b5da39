"""Makes schedules of the warp-specialised lowering with options: one by hand, and a random sample."""

import functools
import random
from typing import Any

from mutations import shipped, with_options
from tiers import sampled

from tl_attention.lab.search.choices import choices
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions
from tl_attention.schedule.schedule import Schedule

SPECIALIZED = [schedule for schedule in shipped().values() if schedule.lowering == "warp_specialized"]
# The statements up to the maximum; those after it, whole and with the exponentials in two chunks.
FIRST = ["max_prev", "max_init", "row_max", "max_merge", "scale"]
REST = ("exp", "row_sum", "cast", "rescale")
CHUNKED = ("exp.0", "exp.1", "row_sum", "cast", "rescale")
TWO = {"exp": (48, 128)}
# `with_options` and `random_options` draw these otherwise, or never, as the forward does not take them: with most
# values of registers no schedule is well-formed.
DRAWN_OTHERWISE = (
    "k_stages",
    "v_stages",
    "q_stages",
    "do_stages",
    "registers",
    "part_blocks",
    "rescale_threshold",
    "exp2_polynomial",
)


def fa3(*softmax: str, split: dict[str, Any] | None = None, mma1: int = 0, **options: Any) -> Schedule:
    """Returns FlashAttention-3's schedule with its vector statements after the maximum in this order, each in a group.

    MMA1(t-1) is issued after `mma1` of them; before all of them by default, right after MMA0(t).
    """
    statements = [FIRST, *([name, "sum_merge"] if name in ("row_sum", "row_sum.0") else [name] for name in softmax)]
    groups = [["load_k"], ["mask", "mma0"], *statements[:mma1], ["mma1"], *statements[mma1:], ["load_v"]]
    places = len(groups) - 2
    return Schedule(
        lowering="warp_specialized",
        kv_order="descending",
        block_M=128,
        block_N=176,
        threads=256,
        num_stages=2,
        group=groups,
        order=[-1, *range(places), -1],
        split=split or {},
        stage=[-1, *(1 if group == ["mma1"] else 0 for group in groups[1:-1]), -1],
        **options,
    )


def random_options(seed: int) -> Schedule:
    """Returns a random well-formed schedule with options, which usually does not fit, or is not legal."""
    rng = random.Random(seed)
    schedule = with_options(rng.choice(SPECIALIZED), rng).model_dump()
    for key, options in (("kernel", KernelOptions), ("softmax", SoftmaxOptions)):
        fields = {name: field for name, field in options.model_fields.items() if name not in DRAWN_OTHERWISE}
        schedule[key] |= {name: rng.choice(choices(field)) for name, field in fields.items()}
    parts = {"part_blocks": rng.choice((None, 1, 7))} if schedule["kernel"]["cluster"] == 1 else {}
    schedule["kernel"] |= {"registers": rng.choice((None, (232, 40))), **parts}
    schedule["softmax"] |= {
        "rescale_threshold": rng.choice((0, 8, 8.0, 15, rng.random(), rng.random() * 1e-9, rng.uniform(0, 15)))
    }
    try:
        return Schedule(**schedule)
    except ValueError:
        return random_options(seed + 1_000_000)


@functools.cache
def hundred(number: int) -> list[Schedule]:
    """Returns a hundred random schedules, other ones for each number."""
    return [random_options(seed) for seed in range(100 * number, 100 * (number + 1))]


# The first hundred are those of `make test`.
HUNDREDS = sampled(range(3), [0])
