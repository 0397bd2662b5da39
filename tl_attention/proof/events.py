"""What roles do with barriers and shared memory: events, which `races.py` proves, and as which code is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from tl_attention.loop.table import Table

Read = tuple[str, int, int]
CLUSTER, NAMED, TILE, Q, P, EXPONENTIALS = "cluster", "named barrier", "tile", "Q", "P", "exponentials"


def ring_names(table: Table) -> dict[str, str]:
    """What events call the buffer that each load of a table fills: K for K_shared."""
    return {load: buffer.removesuffix("_shared") for buffer, load in table.rings.items()}


@dataclass(frozen=True)
class Event:
    """What a role does with `name[index]`, a barrier or a buffer of shared memory.

    wait, arrive        mbarrier: for the phase of parity `value`; `value` arrivals of each warp at each of `blocks`
    expect              mbarrier: the bytes of `value` loads
    sync, signal        named barrier of `value` threads: with waiting, and without
    load, take          fill the buffer with load number `step`: by TMA, in `blocks`; with a tile's number
    product             issue one that reads the buffer, in flight until `products wait` leaves `value` of them
    read, write         by the threads themselves; the latter over what was loaded
    put                 fill columns of the buffer with what the threads computed, number `step`: a product may read it
                        behind a `fence` of each, and a barrier of all of them
    hold, hold last     keep exponentials `index` up to `value` before what follows, or `index` alone; `resume` keeps
                        those that follow behind
    store, stored       the output by TMA, out of the buffer; `stored` waits for it, and a `fence` goes before it
    fence               between what the threads do themselves and the TMA: what they wrote is there for it, and what they
                        read is not written over by it
    init, init fence    in code alone: an mbarrier that counts `value` arrivals, and what shows all of them to the TMA

    mask                hide scores of KV block `step`, where that is needed; in code alone, so is
    output, lse         store rows of the output from registers, and the logarithms of rows

    `reads` has the (buffer, index, step) that must be there. In a role's events `step` is the load's number, in those
    read off code the row that is loaded. `place` has, in code, the (row, head, batch) that a tile starts at, whether a
    product keeps what its accumulators had, and the (first, end) of the columns that are `put`. None of these takes part
    in ==: `generated.py` compares them.
    """

    kind: str
    name: str = ""
    index: int = 0
    value: int = 0
    blocks: tuple[int, ...] = ()
    step: int = field(default=0, compare=False)
    reads: tuple[Read, ...] = field(default=(), compare=False)
    place: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        place = f" {self.name}[{self.index}]" if self.name else ""
        return f"{self.kind}{place} ({self.value})" + (f" of blocks {self.blocks}" if self.blocks else "")


@dataclass(frozen=True)
class Process:
    """A warpgroup that computes, or the producer warp, number -1."""

    block: int
    warpgroup: int
    warps: int

    def __str__(self) -> str:
        return f"{'the producer' if self.warpgroup < 0 else f'warpgroup {self.warpgroup}'} of block {self.block}"
