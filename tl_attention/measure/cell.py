"""A cell of the operator's benchmark: one problem, what it is compared with, and how fast it must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tl_attention.errors import InputError
from tl_attention.files.defaults import default_schedule
from tl_attention.files.named import Named, resolve
from tl_attention.hardware.device import card_at_hand
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.tiling import tiling_of
from tl_attention.problem.head_dims import is_meant
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import visited_over_visible
from tl_attention.program.planned import Planned

# Entries: what attention() runs, and what that is compared with.
OURS = "ours"
# Our own kernels without a mask, and without the LSE; and, before a schedule's name, with that schedule.
UNMASKED, WITHOUT_LSE, SCHEDULE = "unmasked", "without_lse", "ours:"
OTHERS = ("fa3", "cudnn", "flash2")
PEERS_TEXT = f"{', '.join((*OTHERS, UNMASKED, WITHOUT_LSE))} or {SCHEDULE}SCHEDULE"


@dataclass(frozen=True)
class Cell:
    """One problem. `peers` have the least speed, ours as a part of theirs, that is asked for, None for no such bar.

    The first of them stands there twice, which shows the repeatability. `schedule` is what runs it, by default what
    attention() takes. `mean` is the bar of the geometric mean of the group against the first peer.
    """

    group: str
    shape: AttentionShape
    peers: Mapping[str, float | None]
    schedule: str | None = None
    mean: float | None = None

    @property
    def name(self) -> str:
        """`d128-4k-causal`: the group, the keys and the mask."""
        seq = self.shape.seq_kv
        length = f"{seq // 1024}k" if seq % 1024 == 0 else str(seq)
        return f"{self.group}-{length}{'-causal' if self.shape.mask == CAUSAL else ''}"


@dataclass(frozen=True)
class Entry:
    """What is timed in a cell, by its name in tables."""

    name: str
    candidate: Candidate


def schedule_for(shape: AttentionShape, schedule: str | None = None) -> Named:
    """The schedule that runs a problem: by default the one that attention() takes on the GPU at hand."""
    return resolve(schedule or default_schedule(shape, card_at_hand().arch))


def entries(cell: Cell, others: Sequence[Named] = ()) -> Iterator[Entry]:
    """Ours, other schedules that are meant for the head size, and the peers, in the order of the cell."""
    named = schedule_for(cell.shape, cell.schedule)
    yield Entry(OURS, Candidate(named.name, cell.shape, Planned(named.schedule)))
    for other in others:
        if is_meant(cell.shape.head_size, other.head_dims):
            yield Entry(other.name, Candidate(other.name, cell.shape, Planned(other.schedule)))
    for peer in cell.peers:
        yield Entry(peer, _peer(peer, cell))


def _peer(name: str, cell: Cell) -> Candidate:
    shape = cell.shape
    if name in (UNMASKED, WITHOUT_LSE):
        # What attention() takes there, which need not be ours.
        shape = replace(shape, mask=FULL) if name == UNMASKED else shape.asking(lse=False)
        named = schedule_for(shape, cell.schedule)
    elif name.startswith(SCHEDULE):
        named = resolve(name.removeprefix(SCHEDULE))
    else:
        return Candidate(name, shape)
    return Candidate(named.name, shape, Planned(named.schedule))


def check_peer(name: str) -> None:
    """Raise InputError for what cannot be a peer."""
    if name.startswith(SCHEDULE):
        resolve(name.removeprefix(SCHEDULE))
    elif name not in (*OTHERS, UNMASKED, WITHOUT_LSE):
        raise InputError(f"{name[:40]!r} is no peer, expected {PEERS_TEXT}")


def visited(candidate: Candidate) -> float | None:
    """(query, key) pairs that its kernel computes over those that are visible; None of what has no Program."""
    planned = candidate.planned
    if planned is None or planned.program is None:
        return None
    # A cluster's tiles visit the same KV blocks.
    tiling = tiling_of(planned)
    return visited_over_visible(candidate.shape, tiling.block_M * tiling.cluster, tiling.block_N, tiling.least_blocks)
