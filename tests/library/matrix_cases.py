"""The matrix test has these cases: each kernel's calls of attention(), at which lengths, and where the tensors lie."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any

from covering import Pair, pairs_of
from matrix_kernels import AXES, FEW, HEADS, SEED, Kernel, kernels

from tl_attention.op.rows import Rows
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import Mask, masked

LENGTHS = (0, 1, 2, 17, 63, 64, 65, 113, 127, 128, 129, 239, 799, 1000, 1023, 1024, 4095)
LAYOUTS = ("bhsd", "bshd")
# Where q, k and v lie; `repeated` is one batch for all of them, by a stride of 0.
REPEATED = "repeated"
MEMORIES = ("contiguous", "transposed", "sliced", "packed")
OUTS = ("none", "contiguous", "sliced")
# (softcap, factor of Q): scores of a quarter of the cap, as FlashAttention-3's test has them, and large ones.
CAPS = ((15.0, 3.75), (30.0, 1.0), (50.0, 16.0))
NO_CAP = ((0.0, 1.0),)
SCALES = ("default", 0.0625)
CASE_AXES: dict[str, tuple[Any, ...]] = {
    "seq_q": LENGTHS,
    "seq_kv": LENGTHS,
    "cap": CAPS + NO_CAP,
    "scale": SCALES,
    "layout": LAYOUTS,
    "memory": MEMORIES,
    "out": OUTS,
}
# Scores of a case, so that its reference in fp64 takes milliseconds.
MOST_SCORES = 1 << 27
# A kernel has so many cases; each is the one of so many draws that adds most pairs.
CASES = 40
DRAWS = 6


@dataclass(frozen=True)
class Case:
    """A case is one call: everything but the numbers."""

    dtype: str
    head_dim: int
    head_dim_v: int
    batch: int
    heads: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    causal: bool
    window: tuple[int, int]
    cap: tuple[float, float]
    sinks: bool
    lse: bool
    scale: float | str
    layout: str
    memory: str
    out: str

    @property
    def mask(self) -> Mask:
        return masked(self.causal, self.window)

    @property
    def launches(self) -> bool:
        """Says whether there is anything to compute."""
        return Rows.of(self.mask, self.seq_q, self.seq_kv).count > 0

    @property
    def is_refused(self) -> bool:
        """Says whether the call is an error: a stride of 0 in a dimension that is read."""
        return self.memory == REPEATED and self.launches

    @property
    def factor(self) -> float:
        """Returns the factor of the scores."""
        return self.head_dim**-0.5 if self.scale == "default" else float(self.scale)


@cache
def cases() -> dict[Kernel, tuple[Case, ...]]:
    """Returns every kernel's cases, no two alike."""
    found: dict[Kernel, dict[Case, None]] = {kernel: {} for kernel in kernels()}
    for kernel, case in _designed_cases():
        found[kernel][case] = None
    return {kernel: tuple(of_kernel) for kernel, of_kernel in found.items()}


def pairs_shown(kernel: Kernel, case: Case) -> set[Pair]:
    """Returns the pairs of values that a case tries: only pairs with a length of 0 where nothing is computed."""
    pairs = pairs_of(kernel.row | {name: getattr(case, name) for name in CASE_AXES})
    return pairs if case.launches else {pair for pair in pairs if ("seq_q", 0) in pair or ("seq_kv", 0) in pair}


def _designed_cases() -> Iterator[tuple[Kernel, Case]]:
    """Yields CASES cases of each kernel, then more until every pair of values that can occur does."""
    rng = random.Random(SEED)
    shown: set[Pair] = set()
    for kernel in kernels():
        lengths = lengths_of(kernel)
        for _ in range(CASES):
            draws = [case_of(kernel, *rng.choice(lengths), rng) for _ in range(DRAWS)]
            case = max(draws, key=lambda case: len(pairs_shown(kernel, case) - shown))
            shown |= pairs_shown(kernel, case)
            yield kernel, case
        # One that is refused, beside those that run.
        seq_q, seq_kv = next(pair for pair in lengths[::-1] if Rows.of(kernel.masked, *pair).count)
        yield kernel, replace(case_of(kernel, seq_q, seq_kv, rng), batch=2, memory=REPEATED)
    axes = AXES | CASE_AXES
    for a, b in combinations(sorted(axes), 2):
        for pair in product(((a, x) for x in axes[a]), ((b, y) for y in axes[b])):
            missing = pair not in shown and None not in (pair[0][1], pair[1][1])
            if missing and (made := _with(dict(pair), rng)):
                shown |= pairs_shown(*made)
                yield made


@cache
def lengths_of(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Returns the lengths at which nothing is computed, or this kernel runs."""
    return tuple(
        (seq_q, seq_kv)
        for seq_q, seq_kv in product(LENGTHS, LENGTHS)
        if (not kernel.few or seq_q <= FEW)
        and (kernel.runs(seq_q, seq_kv) or not Rows.of(kernel.masked, seq_q, seq_kv).count)
    )


def _with(values: dict[str, Any], rng: random.Random) -> tuple[Kernel, Case] | None:
    """Returns a case with these two values of axes, of whichever kernel; None if there is none."""
    empty = 0 in (values.get("seq_q"), values.get("seq_kv"))
    for kernel in kernels():
        caps = CAPS if kernel.capped else NO_CAP
        there = {name: (value,) for name, value in kernel.row.items()} | {"cap": caps, "scale": SCALES}
        if any(name in there and value not in there[name] for name, value in values.items()):
            continue
        for seq_q, seq_kv in lengths_of(kernel):
            if values.get("seq_q", seq_q) != seq_q or values.get("seq_kv", seq_kv) != seq_kv:
                continue
            if not empty and not Rows.of(kernel.masked, seq_q, seq_kv).count:
                continue
            for place in _places(kernel, seq_q, seq_kv):
                own = dict(zip(("layout", "memory", "out"), place))
                if all(values.get(name, value) == value for name, value in own.items()):
                    own |= {name: value for name, value in values.items() if name in ("cap", "scale")}
                    return kernel, case_of(kernel, seq_q, seq_kv, rng, **own)
    return None


# --- one case ------------------------------------------------------------------------------------------------------


def case_of(kernel: Kernel, seq_q: int, seq_kv: int, rng: random.Random, **fixed: Any) -> Case:
    """Makes a call of the kernel at these lengths, and draws what is not fixed."""
    heads, heads_kv = HEADS[kernel.heads]
    if heads * seq_q * seq_kv > MOST_SCORES:
        heads, heads_kv = heads // heads_kv, 1
    batches = [batch for batch in (1, 2, 3, 9) if batch * heads * seq_q * seq_kv <= MOST_SCORES] or [1]
    layout, memory, out = rng.choice(_places(kernel, seq_q, seq_kv))
    head_dim, head_dim_v = sizes_of(kernel.size)
    values = {
        "window": kernel.window,
        "causal": kernel.causal,
        "batch": rng.choice(batches),
        "cap": rng.choice(CAPS if kernel.capped else NO_CAP),
        "scale": rng.choice(SCALES),
        "layout": layout,
        "memory": memory,
        "out": out,
    }
    return Case(
        dtype=kernel.dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        heads=heads,
        heads_kv=heads_kv,
        seq_q=seq_q,
        seq_kv=seq_kv,
        sinks=kernel.sinks,
        lse=kernel.lse,
        **values | fixed,
    )


# (layout, memory, out) of tensors without strides of their own, and of others.
PLAIN = [
    place for place in product(LAYOUTS, MEMORIES, OUTS) if "bhsd" in place and set(place[1:]) <= {"contiguous", "none"}
]
STRIDED = [place for place in product(LAYOUTS, MEMORIES, OUTS) if place not in PLAIN]


def _places(kernel: Kernel, seq_q: int, seq_kv: int) -> list[tuple[str, str, str]]:
    """Returns where tensors may lie so that this kernel takes them."""
    if not kernel.strided:
        return PLAIN
    # A single row that is computed may be contiguous in the other layout too.
    one_row = Rows.of(kernel.masked, seq_q, seq_kv).count == 1
    return [place for place in STRIDED if "sliced" in place] if one_row else STRIDED
