"""The loop over KV blocks is emitted from the Program: a call of a macro for each operation.

Every macro takes `(t, tile, s, c)`: the KV block, counted from the first to be worked on; where the tile is; the memory
of the thread block; and the constants. What it needs besides, it takes by name.
"""

from dataclasses import dataclass
from inspect import signature

import tilelang.language as T

from tl_attention.kernels.shared.features import read


@dataclass(frozen=True)
class LoopTile:
    """A LoopTile names the rows of one head and sequence that a loop works on, and the KV blocks that these need."""

    first: object  # the first KV block
    blocks: object  # how many KV blocks there are; the loop takes the last one first
    first_row: object
    head: object
    queries: object  # the batch, or the first row of the sequence's queries among those of packed sequences
    keys: object  # likewise of its keys
    seq_q: object  # queries of the sequence
    seq_kv: object  # its keys
    visible: object  # so many of the blocks, from the first on, need no mask
    cut: object  # but so many of these need one, where a window has a left edge
    kv_head: object = None  # its head of K and V
    turn: object = 0  # how many tiles the thread block has taken before this one
    base: object = 0  # how many loads of each ring came before this tile's
    number: object = None  # of the tile in the grid
    wg: object = None  # the warpgroup, if the rows are only one's
    result: object = None  # where a part's results go: a batch, or a packed place from 1 on, 0 if it is not split
    part: object = None  # which part of the keys this is
    part_first: object = None  # its first block
    part_end: object = None  # the block behind its last

    @property
    def results(self):
        """Returns where results go: where the queries lie, or for a part of a batch's keys to its own batch."""
        return self.queries if self.part is None else self.result

    @property
    def past_len(self):
        """Returns how many keys of the sequence precede its first query."""
        return self.seq_kv - self.seq_q

    def kv_block(self, t):
        """Returns the number of the KV block that the tile takes t-th, from 0 on; it takes its last block first."""
        return self.first + self.blocks - 1 - t

    def own_key(self, row):
        """Returns the key at which the query of a row stands."""
        return row + self.past_len


def function_of(macro):
    """Returns the Python function of which a TileLang macro was made; a plain function is returned as it is."""
    return getattr(macro, "orig_func", macro)


def parameters(macro):
    """Returns the parameters of a macro's signature, by name."""
    return signature(function_of(macro)).parameters


def call_of(op, c, masked):
    """Returns the macro that emits an operation, and the keyword arguments to call it with.

    A block is `masked` if it may hold keys that are hidden from some of the queries.
    """
    macro = c.macro_of(op, c)
    known = dict(
        outstanding=op.outstanding, registers=op.registers, masked=masked, **c.loop.named.get(op.statement, {})
    )
    return macro, {name: known[name] for name in parameters(macro) if name in known}


# --- the loop over the KV blocks of a tile ---------------------------------------------------------------------------


@T.macro
def loop(tile, s, c):
    """Runs the loop over a tile's KV blocks, from the last to the first, with masks only for blocks that need one."""
    # Variables where slots of rings are counted from them, or nothing is known of a tile's lengths: TileLang would work
    # the bounds out for each slot.
    unmasked = T.alloc_var("int32") if c.rings_of_a_tile or c.packed else 0
    again = T.alloc_var("int32") if (c.rings_of_a_tile or c.packed) and c.mask.left is not None else 0
    if c.features.at("first"):
        read(c.features.first, tile.head, s, c)
    prologue(tile, s, c)
    # The first iteration from which on no block needs a mask.
    unmasked = T.max(T.min(tile.blocks - tile.visible + c.loop.masked_lag, tile.blocks + c.loop.end), c.loop.start)
    # If all queries see the last key, only its block can be ragged, and a short loop padded.
    if c.mask.right is not None or c.loop.least_blocks + c.loop.masked_lag > c.loop.start:
        for t in T.serial(unmasked - c.loop.start):
            # Of one iteration at most the number is known, and with it the slots of rings that begin with the tile.
            one_at_most = c.mask.right is None and c.loop.least_blocks + c.loop.masked_lag == c.loop.start + 1
            steady_masked(c.loop.start if one_at_most and c.rings_of_a_tile else t + c.loop.start, tile, s, c)
    if c.mask.left is None:
        for t in T.serial(tile.blocks + c.loop.end - unmasked):
            steady(t + unmasked, tile, s, c)
    else:
        # The first iteration from which on blocks need one again, which come last.
        again = T.max(T.min(tile.blocks - tile.cut + c.loop.mask_lag, tile.blocks + c.loop.end), unmasked)
        for t in T.serial(again - unmasked):
            steady(t + unmasked, tile, s, c)
        for t in T.serial(tile.blocks + c.loop.end - again):
            steady_masked(t + again, tile, s, c)
    if c.features.at("last"):
        # It arrives while the last products run.
        read(c.features.last, tile.head, s, c)
    epilogue(tile.blocks, tile, s, c)


def emit(op, t, tile, s, c, masked):
    """Calls the macro of an operation in iteration t, for KV block t - op.lag, and returns its result."""
    macro, keywords = call_of(op, c, masked)
    return macro(t - op.lag, tile, s, c, **keywords)


@T.macro
def prologue(tile, s, c):
    """Runs the iterations before the steady state, in which some operations have no block yet."""
    for t, operations in c.loop.prologue:
        for op in operations:
            emit(op, t, tile, s, c, masked=True)


@T.macro
def steady(t, tile, s, c):
    """Runs iteration t of the steady state, whose block needs no mask."""
    for op in c.loop.unmasked:
        emit(op, t, tile, s, c, masked=False)


@T.macro
def steady_masked(t, tile, s, c):
    """Runs iteration t of the steady state, whose block is masked."""
    for op in c.loop.steady.operations:
        emit(op, t, tile, s, c, masked=True)


@T.macro
def epilogue(blocks, tile, s, c):
    """Runs the iterations after the steady state, in which some operations have no block any more."""
    for t, operations in c.loop.epilogue:
        finish(operations, blocks + t, tile, s, c)


@T.macro
def finish(operations, blocks, tile, s, c):
    """Runs these operations as one iteration of the epilogue; `blocks` is the number of that iteration."""
    for op in operations:
        emit(op, blocks, tile, s, c, masked=True)
