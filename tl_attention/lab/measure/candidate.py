"""A candidate is what the runner compares: one schedule's kernel, or one peer, on one problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tl_attention.lab.measure.device import card_at_hand
from tl_attention.lab.measure.records import SizesKnown
from tl_attention.lab.measure.traffic import Tiling
from tl_attention.op.few import KeySplit, finest_split, may_be_split, most_unsplit_keys, packed_heads, split_plan
from tl_attention.problem.lengths import Lengths, edges, ends
from tl_attention.problem.mask import ceildiv, is_window
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.loop.loops import FORWARD
from tl_attention.schedule.schedule import Schedule

# Scaling Q by this spreads a row's scores so far that a wrong row maximum makes exponentials overflow, or vanish.
SHARP = 128.0
# A large number of batches, or of heads.
MANY = 2100


@dataclass(frozen=True)
class Candidate:
    """A candidate is a schedule's kernel or a peer, under a name and for one problem."""

    name: str
    shape: AttentionShape
    planned: Planned | None = None  # None for a peer
    fixed: bool = False  # compiled for exactly the problem's sizes
    sms: int = field(default_factory=lambda: card_at_hand().sms)  # of the GPU that it runs on
    # It takes tensors of any strides. The runner gives it tensors in which the heads of a row lie together, as those of
    # packed sequences do.
    strided: bool = False
    arch: str = field(default_factory=lambda: card_at_hand().arch)  # it is compiled for
    invariant: bool = False  # the kernel of batch-invariant calls, whose rows have the same bits in every batch
    in_parts: bool = False  # split-KV, for small problems too
    tile_heads: int = 1  # whose rows a tile has

    @property
    def schedule(self) -> Schedule | None:
        """Returns the schedule, None for a peer."""
        return self.planned.schedule if self.planned else None

    @property
    def ours(self) -> Planned:
        """Returns the schedule with its Program; whoever asks knows that this is no peer."""
        assert self.planned is not None, f"{self} is a peer, which has no schedule"
        return self.planned

    @property
    def label(self) -> str:
        return self.schedule.label if self.schedule else self.name

    @property
    def sizes(self) -> SizesKnown:
        """Returns "peer" for a peer, "fixed" for a kernel compiled for its sizes, else "runtime"."""
        return "peer" if self.schedule is None else "fixed" if self.fixed else "runtime"

    def parts(self, shape: AttentionShape) -> KeySplit | None:
        """Returns the parts of the keys of a problem that its kernel computes, None where it has none."""
        if not self.in_parts or self.schedule is None or shape.packed:
            return None
        return split_plan(shape, self.schedule, self.sms) or finest_split(shape, self.schedule)

    @property
    def variant(self) -> Variant:
        """Returns the kernel variant to compile, from the problem and the fields that change the kernel.

        The kernel of a loop of gradients takes the LSE's gradient if the problem asks for the LSE.
        """
        schedule = self.ours.schedule
        if schedule.loop == FORWARD:
            found = self.shape.variant(self.fixed, self.in_parts, self.tile_heads)
        else:
            found = {variant.loop: variant for variant in self.shape.variants_of_gradients()}[schedule.loop]
        return replace(
            found.in_pages(self.shape.page_size, schedule.block_N),
            strided=self.strided,
            arch=self.arch,
            invariant=self.invariant,
        )

    def __str__(self) -> str:
        return f"{self.name}{' fixed' if self.fixed else ''} {self.shape.dtype}"


def called(name: str, shape: AttentionShape, planned: Planned) -> Candidate:
    """Returns the candidate that computes a problem as attention() does with this schedule on the GPU at hand.

    Heads may have their rows in one tile, and keys be in parts.
    """
    problem, heads = packed_heads(shape, planned.schedule)
    found = Candidate(name, problem, planned, tile_heads=heads)
    if shape.packed:
        may = may_be_split(found.variant.heads_of_tiles(problem.heads), planned.schedule, found.sms)
        return replace(found, in_parts=may and problem.seq_kv > most_unsplit_keys(planned.schedule))
    return replace(found, in_parts=split_plan(problem, planned.schedule, found.sms) is not None)


class VerifiedProblem(NamedTuple):
    """A `VerifiedProblem` is one problem that a kernel is verified on, with the spread of its scores."""

    shape: AttentionShape
    spread: float = 1.0  # the factor by which Q is multiplied

    def __str__(self) -> str:
        return f"{self.shape}{'' if self.spread == 1.0 else f', Q x {self.spread:g}'}"


def verified_on(shape: AttentionShape, fixed: bool, planned: Planned | None = None) -> list[VerifiedProblem]:
    """Lists the problems to verify a kernel on, small versions of `shape` unless `fixed`, and last `shape` itself.

    A kernel that is compiled for its sizes cannot run small ones.
    """
    return [*(() if fixed else small_ones(shape, planned)), VerifiedProblem(shape)]


def small_ones(shape: AttentionShape, planned: Planned | None = None) -> list[VerifiedProblem]:
    """Lists small versions of a problem to verify with: ragged ones and, if `planned`, its loop's begins and ends."""
    if shape.packed:
        return [*map(VerifiedProblem, small_packed(shape, planned))]
    sizes = [(1, 3, 1000, 1777), (2, 5, 1, 300), (1, 2, 129, 192), (3, 1, 63, 63), (1, 1, 1, 1), (1, 2, 700, 2500)]
    # Many more tiles than an H200 has SMs, and short: the next one's loads come while a tile's last reads are running.
    sizes.append((4, 110, 200, 200))
    # Many batches, and many heads: whatever holds some bits of their numbers shows.
    sizes += [(MANY, 1, 20, 20), (1, ceildiv(MANY, shape.group), 20, 20)]
    mask = shape.mask
    if mask.right is None:
        sizes.append((1, 2, 300, 65))
    if is_window(mask):
        # A window cuts at both ends.
        seq_q = 300 + (mask.right or 0)
        sizes.append((1, 2, seq_q, seq_q + 200 + (mask.left or 0)))
    # The second number of `sizes` counts heads of K and V.
    ragged = [
        shape.resized(Sizes(batch, heads_kv * shape.group, seq_q, seq_kv)) for batch, heads_kv, seq_q, seq_kv in sizes
    ]
    return [
        *map(VerifiedProblem, ragged),
        *(VerifiedProblem(found, SHARP) for found in (ragged[0], ragged[2], ragged[5])),
        *(VerifiedProblem(shape.resized(sizes)) for sizes in (ends_of(planned, shape) if planned else ())),
    ]


def small_packed(shape: AttentionShape, planned: Planned | None) -> Iterator[AttentionShape]:
    """Yields small problems of packed sequences: empty ones, rows without keys, many, and each end of the loop."""
    alone = replace(shape.as_batch(), batch=1, seq_q=1, seq_kv=1, lengths=())
    of_loop = [Lengths(n.seq_q, n.seq_kv) for n in ends_of(planned, alone)] if planned else []
    for of in (
        [(100, 300), (0, 7), (1, 1), (129, 192), (3, 0), (65, 20), (1, 900), (0, 0), (700, 700)],
        # More sequences than rows.
        [(int(number % 7 == 0), int(number % 3 == 0)) for number in range(200)],
        [(20, 20)] * 60,
        of_loop,
    ):
        if of:
            yield shape.with_lengths([Lengths(*n) for n in of], heads_kv=3)


def ends_of(planned: Planned, shape: AttentionShape) -> Iterator[Sizes]:
    """Yields problem sizes with which the schedule's loop over KV blocks begins and ends in every possible way.

    Prologue, epilogue and the turns of the rings make a separate case of each small number of blocks. So does the
    number of keys in the last block. Where a mask ends the loop, the tiles of one problem have all numbers of blocks.
    """
    schedule, program = planned.schedule, planned.program
    block_M, block_N = schedule.block_M, schedule.block_N
    if program:
        most = program.span + max(program.buffers.values()) + 2
    else:
        most = schedule.num_stages + 4
    for lengths in (*ends(most, 2 * block_M, block_N), *edges(shape.mask, block_N)):
        yield Sizes(1, shape.group, *lengths)
    if shape.mask.right is not None:
        yield Sizes(1, shape.group, most * block_N, most * block_N)


def tiling_of(planned: Planned) -> Tiling:
    """Returns the block sizes, cluster and least number of blocks with which a schedule's kernel cuts a problem.

    The compiler chooses the loads of lowering `inferred`: its tiles are given as if no load went past the end.
    """
    schedule, program = planned.schedule, planned.program
    # Only warp-specialised kernels have clusters, and load by TMA.
    by_tma = schedule.lowering == "warp_specialized"
    return Tiling(
        schedule.block_M,
        schedule.block_N,
        cluster=schedule.kernel.cluster if by_tma else 1,
        least_blocks=program.least_blocks if program else 1,
        whole_boxes=by_tma,
    )
