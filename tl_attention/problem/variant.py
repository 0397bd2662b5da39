"""A Variant is what a kernel is compiled for beside its schedule. The kernel's parameters are here too."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from tl_attention.problem.card import CARDS, HOPPER, Card
from tl_attention.problem.features import INPUTS, RESULTS, Parameter, acting_in_main_kernel, features_of, mix_rows
from tl_attention.problem.head_dims import HeadSize, head_size, tile_dim
from tl_attention.problem.mask import FULL, INTEGERS, WINDOW, Mask, ceildiv
from tl_attention.problem.warpgroup import ROWS


class Sizes(NamedTuple):
    """Sizes holds the batch, the heads of Q and the lengths of a problem, which a kernel may read at run time."""

    batch: int
    heads: int
    seq_q: int
    seq_kv: int

    @property
    def exchanged(self) -> Self:
        """Returns the sizes with queries in the place of keys, and keys in that of queries."""
        return self._replace(seq_q=self.seq_kv, seq_kv=self.seq_q)


# Where packed sequences begin and end, how many rows of each count, and room for the list of tiles that the launch
# makes from that. A tensor of used lengths that is as long as the offsets stands for none.
OFFSETS = (
    Parameter("CuSeqlensQ", "offsets", ("bounds",), "int32", kernels=("listing",)),
    Parameter("CuSeqlensK", "offsets", ("bounds",), "int32", kernels=("listing",)),
    Parameter("SeqUsedQ", "offsets", ("used_q",), "int32", kernels=("listing",)),
    Parameter("SeqUsedK", "offsets", ("used_k",), "int32", kernels=("listing",)),
    Parameter("Tiles", "offsets", ("words",), "int32", kernels=("listing", "main", "merging")),
)
# Where keys lie in pages: the table has a row for each sequence, one behind the other, which names its pages of
# `page_size` keys. From a page to the next are `page_rows` rows of K and V, and there are so many `pages`.
PAGES = (
    Parameter("BlockTable", "offsets", ("entries",), "int32", optional=True),
    *(Parameter(name, "scalar", dtype="int32", optional=True) for name in ("page_size", "page_rows", "pages")),
)
# Rows of the boxes that keys in pages are loaded by, where pages have no whole KV block.
KEY_BOXES = (64, 32, 16, 8, 2, 1)
# How many words of 8 bytes the buffer has that a traced kernel writes to.
TRACE_WORDS = 1 << 20
# Heads that share K and V where a problem is made up for a kernel that serves all numbers of them.
SOME_GROUP = 3
# Of a kernel whose next tiles come from a counter.
COUNTER = Parameter("TileCounter", "counter", (2,), "int32", optional=True)
SIDES = tuple(Parameter(name, "scalar", dtype="int32", optional=True) for name in WINDOW)
# In the order in which a kernel takes them.
KERNEL_PARAMETERS = (
    Parameter("Q", "input", ("batch", "heads", "seq_q", "head_dim")),
    Parameter("K", "input", ("batch", "heads_kv", "seq_kv", "head_dim")),
    Parameter("V", "input", ("batch", "heads_kv", "seq_kv", "head_dim_v")),
    Parameter("Output", "output", ("batch", "heads", "seq_q", "head_dim_v")),
    Parameter("softmax_scale", "scalar", dtype="float32"),
    *(feature.parameter for feature in (*RESULTS, *INPUTS)),
    *SIDES,
    Parameter("part_blocks", "scalar", dtype="int32", optional=True),
    Parameter("group", "scalar", dtype="int32", optional=True),
    # How many blocks, or clusters, of a persistent kernel work at once.
    Parameter("workers", "scalar", dtype="int32", optional=True),
    Parameter("Merged", "output", ("batch", "heads", "seq_q", "head_dim_v"), optional=True, kernels=("merging",)),
    Parameter("MergedLSE", "output", ("batch", "heads", "seq_q"), "float32", optional=True, kernels=("merging",)),
    *OFFSETS,
    *PAGES,
    Parameter("Trace", "trace", (TRACE_WORDS,), "int64", optional=True),
    COUNTER,
)


# By loop. LSE and D of rows come from the kernel of dQ, for a multiple of 128 rows, to that of dK and dV. Of packed
# sequences they have a batch of 1, in which each sequence lies 128 rows further behind the one before, from a multiple
# of 4 rows on.
OF_QUERIES, OF_KEYS = ("batch", "heads", "seq_q"), ("batch", "heads_kv", "seq_kv")
_SCALARS = (
    Parameter("softmax_scale", "scalar", dtype="float32"),
    *(feature.parameter for feature in INPUTS if feature.has_slope),
    *SIDES,
    Parameter("workers", "scalar", dtype="int32"),
)
_INPUTS = (*KERNEL_PARAMETERS[:3], Parameter("dO", "input", (*OF_QUERIES, "head_dim_v")))
GRADIENT_PARAMETERS = {
    "dq": (
        *_INPUTS,
        Parameter("O", "input", (*OF_QUERIES, "head_dim_v")),
        Parameter("LSE", "input", OF_QUERIES, "float32"),
        # The gradient of the LSE, if it has one.
        Parameter("dLSE", "input", OF_QUERIES, "float32", optional=True),
        *(Parameter(name, "output", ("batch", "heads", "rows"), "float32") for name in ("RowLSE", "RowD")),
        Parameter("dQ", "output", (*OF_QUERIES, "head_dim")),
        *_SCALARS,
        *OFFSETS,
        COUNTER,
    ),
    "dkdv": (
        *_INPUTS,
        *(Parameter(name, "input", ("batch", "heads", "rows"), "float32") for name in ("RowLSE", "RowD")),
        Parameter("dK", "output", (*OF_KEYS, "head_dim")),
        Parameter("dV", "output", (*OF_KEYS, "head_dim_v")),
        *_SCALARS,
        *OFFSETS,
        COUNTER,
    ),
}


def rows_of_box(columns: int) -> int:
    """Returns the number of which the rows in a TMA box must be a multiple, by the number of the tile's columns.

    Rows of 32 columns stand in shared memory where 64 bytes are: a box begins at a multiple of 128.
    """
    return 1 if columns % 64 == 0 else 2


@dataclass(frozen=True)
class Variant:
    """A Variant describes what a kernel is compiled to compute, its head sizes, dtype, mask, features and arch.

    Head sizes are the tensors'. A kernel's tiles have `tile_dim` and `tile_dim_v` columns; columns beyond the tensors'
    are 0.
    """

    head_dim: int  # of Q and K
    dtype: str
    mask: Mask = FULL
    head_dim_v: int = 0  # of V and the output, by default head_dim
    sizes: Sizes | None = None  # None leaves the sizes to run time
    optional: frozenset[str] = frozenset()  # names of the parameters of the features that there are, and dLSE
    # Heads of Q that share one of K and V; None leaves their number to the launch. Tiles with rows of several know it.
    group: int | None = None
    # Leaves to run time, too, how the caller's tensors lie in memory: each tensor has a stride for every dimension but
    # the last, which is contiguous.
    strided: bool = False
    # Of the GPU that a persistent kernel fills; None leaves to the launch how many blocks, or clusters, work at once.
    sms: int | None = None
    arch: str = HOPPER.arch  # the kernel runs on cards of this arch only
    trace: frozenset[str] = frozenset()  # the kernel notes the time at marks of these kinds, in a buffer that it takes
    packed: bool = False  # sequences of any lengths follow each other in tensors (rows, heads, columns), all strided
    # Computes a row alike whatever lies beside it, which is a kernel of its own where a feature does not.
    invariant: bool = False
    # Each part of `part_blocks` KV blocks is computed by itself: the results are the output in fp32 and the LSE of each
    # part, one behind the other as more batches. For packed sequences the list of tiles says which KV blocks are a
    # part: its results are rows of a tile, at a place of their own, and only split sequences have parts.
    parts: bool = False
    # Heads of Q that share one of K and V and have rows in one row tile: a warpgroup has `box` rows of each, one head's
    # behind the other's. More heads than a tile has rows for are in `subgroups`, and some of them in two.
    tile_heads: int = 1
    # Where keys of packed sequences lie in pages, so many are loaded at once: a page has a multiple of them.
    key_box: int = 0
    loop: str = "forward"  # what is computed: attention, or some of its gradients by loop `dq` or `dkdv`

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_dim_v", self.head_dim_v or self.head_dim)
        object.__setattr__(self, "strided", self.strided or self.packed)
        assert self.group or (self.tile_heads == 1 and not self.sizes)
        if self.parts:
            object.__setattr__(self, "optional", self.optional | {"LSE"})
        object.__setattr__(self, "invariant", self.invariant and mix_rows(features_of(self.optional)))

    def in_pages(self, size: int, block_N: int) -> Self:
        """Returns the variant for keys in pages of this size, whose boxes are the largest that divide page and block.

        A size of 0 stands for keys that are not in pages.
        """
        boxes = (rows for rows in (block_N, *KEY_BOXES) if size % rows == 0 and block_N % rows == 0)
        return replace(self, key_box=next(boxes)) if size else self

    @property
    def some_group(self) -> int:
        """Returns how many heads share K and V, or if the launch says it one of these numbers."""
        return self.group or SOME_GROUP

    @property
    def subgroups(self) -> int:
        """Returns into how many subgroups, each of which shares row tiles, the heads that share K and V are divided."""
        return ceildiv(self.some_group, self.tile_heads)

    def heads_of_tiles(self, heads: Any, divide: Callable[[Any, int], Any] = operator.floordiv) -> Any:
        """Returns how many heads the tiles count if Q has `heads`: heads that share a tile count as one."""
        if self.tile_heads == 1:
            return heads
        # A factor of 1 does not show in generated code.
        of_kv = divide(heads, self.some_group)
        return of_kv if self.subgroups == 1 else of_kv * self.subgroups

    def first_head(self, of_tile: Any, ops: Any = INTEGERS) -> Any:
        """Returns the first head of Q in a tile, of which the head is number `of_tile`.

        The last subgroup of a group ends with it, so that it has as many heads as the others.
        """
        group = self.some_group
        if group % self.tile_heads == 0:
            return of_tile * self.tile_heads
        within = ops.min(of_tile % self.subgroups * self.tile_heads, group - self.tile_heads)
        return of_tile // self.subgroups * group + within

    @property
    def box(self) -> int:
        """Returns how many rows of each head a warpgroup's tile has, if several heads share the tile."""
        at_least = rows_of_box(self.tile_dim)
        return ROWS // self.tile_heads // at_least * at_least

    @property
    def idle_rows(self) -> int:
        """Returns how many rows of a warpgroup's tile belong to no head, and are wasted."""
        return 0 if self.tile_heads == 1 else ROWS - self.tile_heads * self.box

    def rows_of(self, block_M: int) -> int:
        """Returns how many rows of each of its heads a tile of block_M rows has."""
        return block_M if self.tile_heads == 1 else block_M // ROWS * self.box

    @property
    def acting(self) -> frozenset[str]:
        """Returns the parameters of the features that act in the main kernel, where a second one may merge parts."""
        merged = self.parts and not self.packed
        return frozenset(feature.name for feature in acting_in_main_kernel(features_of(self.optional), merged))

    def dims(self, sizes: Sizes) -> dict[str | int, Any]:
        """Returns a dict from the names of tensor dimensions, such as heads_kv, to their values at these sizes.

        The sizes may be integers or expressions of TileLang. Of heads_kv there is none that the launch says.
        """
        known: dict[str | int, Any] = dict(zip(Sizes._fields, sizes))
        if self.group:
            known["heads_kv"] = sizes.heads if self.group == 1 else sizes.heads // self.group
        return known | {"head_dim": self.head_dim, "head_dim_v": self.head_dim_v}

    @property
    def card(self) -> Card:
        """Returns the card of the variant's arch."""
        return CARDS[self.arch]

    @property
    def head_size(self) -> HeadSize:
        """Returns the head size as a number, or as a text such as `192/128` where V's differs from that of Q and K."""
        return head_size(self.head_dim, self.head_dim_v)

    @property
    def tile_dim(self) -> int:
        """Returns how many columns the tiles of Q and K have."""
        return tile_dim(self.head_dim)

    @property
    def tile_dim_v(self) -> int:
        """Returns how many columns the tiles of V and the output have."""
        return tile_dim(self.head_dim_v)

    @property
    def narrow(self) -> bool:
        """Returns True if a tensor has fewer columns than the tile that it is loaded into."""
        return (self.head_dim, self.head_dim_v) != (self.tile_dim, self.tile_dim_v)

    def parameters(self, *of_schedule: str) -> tuple[Parameter, ...]:
        """Returns the kernel's Parameters; optional ones only if this variant or these arguments ask for them."""
        asked = {*self.optional, *self.mask.names, *of_schedule, *(["Trace"] if self.trace else [])}
        asked |= {"Merged", "MergedLSE"} if self.parts else set()
        asked |= {"part_blocks"} if self.parts and not self.packed else set()
        asked |= {p.name for p in PAGES} if self.key_box else set()
        asked |= set() if self.group else {"group"}
        asked -= {"workers"} if self.sms else set()
        of_loop = GRADIENT_PARAMETERS.get(self.loop, KERNEL_PARAMETERS)
        chosen = (p for p in of_loop if not p.optional or p.name in asked)
        merging = {feature.name for feature in features_of(self.optional) if self.parts and feature.counts_once}
        taken = (p.for_merging if p.name in merging else p.for_parts if self.parts else p for p in chosen)
        return tuple(p.for_packed if self.packed else p for p in taken if self.packed or p.kind != "offsets")
