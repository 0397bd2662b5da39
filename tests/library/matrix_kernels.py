"""The matrix test has these kernels: a covering design of all that is compiled.

The list is a pure function of a committed seed and of the schedules that run by default.
"""

import random
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from covering import Row, covering

from tl_attention.op.compiled import schedule_of
from tl_attention.op.rows import Rows
from tl_attention.problem.card import HOPPER
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.mask import OPEN, Mask, fitted, masked
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

SEED = 11
# Those of tiles, some narrower, and two sizes in one case.
SIZES: tuple[HeadSize, ...] = (
    *(64, 96, 128, 192, 256),
    *(8, 40, 72, 104, 136, 160, 200, 248),
    *("192/128", "64/128", "136/104"),
)
# (heads, heads_kv) by what people call it. One head alone has strides that say nothing.
HEADS = {"mha": (6, 6), "gqa": (6, 2), "gqa 40/8": (40, 8), "mqa": (6, 1)}
# Queries of a kernel for few of them.
FEW = 64
LONG = 4095
# Which sides a mask has: (causal, left, right).
MASKS = {
    "open": (False, False, False),
    "causal": (True, False, False),
    "left": (False, True, False),
    "right": (False, False, True),
    "both": (False, True, True),
    "causal left": (True, True, False),
}
# A window's edge lies at one of these widths, or one before or behind it. `block` is the schedule's block_N.
WIDTHS = (64, 128, 799, "block")
EDGES = (-1, 0, 1)
# The lowering with T.Pipelined, in the one tile that fits every head size.
PIPELINED = "seed_64x64"
# A value that stands twice is drawn twice as often.
AXES: dict[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "size": SIZES,
    "heads": tuple(HEADS),
    "mask": tuple(MASKS),
    "width": (*WIDTHS, None),
    "edge": (*EDGES, None),
    "capped": (False, True),
    "sinks": (False, True),
    "lse": (False, True),
    "strided": (False, True),
    "few": (False, False, False, True),
    "schedule": ("default", "default", PIPELINED),
}


@dataclass(frozen=True)
class Kernel:
    """A kernel has its values of AXES."""

    dtype: str
    size: HeadSize
    heads: str
    mask: str
    width: int | str | None
    edge: int | None
    capped: bool
    sinks: bool
    lse: bool
    strided: bool
    few: bool
    schedule: str

    @property
    def row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in AXES}

    @property
    def causal(self) -> bool:
        return MASKS[self.mask][0]

    @cached_property
    def window(self) -> tuple[int, int]:
        """Returns the window_size of the kernel's cases."""
        _, left, right = MASKS[self.mask]
        if self.width is None:
            return OPEN, OPEN
        # Which schedule it is depends on the sides, not on their widths.
        some = (FEW if left else OPEN, FEW // 2 if right else OPEN)
        block_N = self._schedule(masked(self.causal, some)).block_N
        edge = (block_N if self.width == "block" else int(self.width)) + (self.edge or 0)
        # Two sides of one width would be one number.
        return edge if left else OPEN, (edge // 2 if left else edge) if right else OPEN

    @property
    def masked(self) -> Mask:
        return masked(self.causal, self.window)

    @cached_property
    def scheduled(self) -> Schedule:
        """Returns the kernel's schedule: its own, or the default for its number of queries and many keys."""
        return self._schedule(self.masked)

    def _schedule(self, mask: Mask) -> Schedule:
        (heads, heads_kv), (head_dim, head_dim_v) = HEADS[self.heads], sizes_of(self.size)
        seq_q = FEW if self.few else LONG
        sizes = (1, heads, seq_q, LONG, head_dim, self.dtype, mask, head_dim_v, heads_kv)
        shape = AttentionShape(*sizes).asking(softcap=30.0 * self.capped, sinks=self.sinks, lse=self.lse)
        found = schedule_of(None if self.schedule == "default" else self.schedule, shape, HOPPER).model_dump()
        # Other tests draw which heads are put together, and how many parts keys have: here a kernel has all its cases.
        return Schedule(**found | {"kernel": found["kernel"] | {"rows_of": "head", "part_blocks": None}})

    @property
    def variant(self) -> Variant:
        head_dim, head_dim_v = sizes_of(self.size)
        there = {"softcap": self.capped, "Sinks": self.sinks, "LSE": self.lse}
        optional = frozenset(name for name, is_there in there.items() if is_there)
        mask = self.masked.runtime
        return Variant(head_dim, self.dtype, mask, head_dim_v, None, optional, strided=self.strided)

    def runs(self, seq_q: int, seq_kv: int) -> bool:
        """Says whether this kernel runs at these lengths: its window has no open side, and tensors may lie so."""
        rows = Rows.of(self.masked, seq_q, seq_kv)
        kept = fitted(self.masked, rows.count, seq_kv) == self.masked
        # The queries that are computed are a part of the tensor where others see no key.
        return kept and (self.strided or not rows.hidden) and (not self.few or seq_q <= FEW)

    def __str__(self) -> str:
        flags = [name for name in ("capped", "sinks", "lse", "strided", "few") if getattr(self, name)]
        window = f"{self.mask} {self.window}" if self.width else self.mask
        named = [] if self.schedule == "default" else [self.schedule]
        words = (self.dtype, f"d{self.size}", self.heads, window, *flags, *named)
        return " ".join(words).replace(" ", "_").replace("/", ":")


def is_legal(row: Row) -> bool:
    """Says whether there is a kernel with these values."""
    windowed = any(MASKS[row["mask"]][1:])
    if windowed != (row["width"] is not None) or windowed != (row["edge"] is not None):
        return False
    if (row["mask"], row["width"]) == ("right", 799) and not row["strided"]:
        # With few keys, queries that see none come first.
        return False
    # So few queries lie on one side of such a window.
    return not row["few"] or not MASKS[row["mask"]][2] or (row["mask"], row["width"]) == ("both", 64)


@cache
def kernels() -> tuple[Kernel, ...]:
    """Returns all kernels, each of which is a test of its own."""
    return tuple(Kernel(**row) for row in covering(AXES, is_legal, set(), random.Random(SEED)))
