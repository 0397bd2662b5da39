"""A warpgroup that computes: its 64 rows of one row tile."""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.lowering.warp_specialized.operations import operation
from tl_attention.lowering.warp_specialized.rings import release_q


@T.macro
def consume(turn, base, first, blocks, first_row, head, visible, cut, wg, s, c):
    """acc_o and denominator of a tile, whose loads begin with number `base`. Blocks below `visible` need no mask."""
    tile = SimpleNamespace(base=base, first=first, blocks=blocks, first_row=first_row, wg=wg)
    T.fill(s.denominator, 0)
    T.fill(s.scores_max, -T.infinity("float32"))
    T.mbarrier_wait_parity(s.Q.full[wg], turn % 2)
    if c.kernel.q_operand == "registers":
        T.copy(s.Q.shared[wg, :, :], s.Q_local)
        if c.kernel.output != "tma":
            # An arrival alone holds back no load by TMA: it would write over rows that are still being read.
            T.fence_proxy_async()
            release_q(wg, s)
    for t, operations in c.loop.prologue:
        prologue(operations, t, tile, s, c)
    # The first iteration from which on no block needs a mask.
    unmasked = T.max(T.min(blocks - visible + c.loop.masked_lag, blocks + c.loop.end), c.loop.steady.t)
    # If all queries see the last key, only its block can be ragged, and a short loop padded.
    if c.mask.right is not None or c.loop.least_blocks + c.loop.masked_lag > c.loop.steady.t:
        for t in T.serial(unmasked - c.loop.steady.t):
            steady(t + c.loop.steady.t, tile, s, c, masked=True)
    if c.mask.left is None:
        for t in T.serial(blocks + c.loop.end - unmasked):
            steady(t + unmasked, tile, s, c, masked=False)
    else:
        # The first iteration from which on blocks need one again: those below `cut`, which come last.
        again = T.max(T.min(blocks - cut + c.loop.mask_lag, blocks + c.loop.end), unmasked)
        for t in T.serial(again - unmasked):
            steady(t + unmasked, tile, s, c, masked=False)
        for t in T.serial(blocks + c.loop.end - again):
            steady(t + again, tile, s, c, masked=True)
    if c.sinks:
        # It arrives while the last products run.
        s.sink[0] = s.Sinks[head]
    for t, operations in c.loop.epilogue:
        epilogue(operations, blocks + t, tile, s, c)


@T.macro
def prologue(operations, t, tile, s, c):
    """An iteration before the steady state."""
    for op in operations:
        operation(op, c)(op, t - op.lag, tile, s, c, masked=True)


@T.macro
def steady(t, tile, s, c, masked):
    """Iteration t of the steady state."""
    for op in c.loop.steady.operations:
        if masked or op.statement != "mask":
            operation(op, c)(op, t - op.lag, tile, s, c, masked=masked)


@T.macro
def epilogue(operations, blocks, tile, s, c):
    """Iteration number `blocks`, after the steady state."""
    for op in operations:
        operation(op, c)(op, blocks - op.lag, tile, s, c, masked=True)
