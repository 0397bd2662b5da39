"""A warpgroup that computes: its 64 rows of one row tile."""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.lowering.iterations import iterations
from tl_attention.lowering.warp_specialized.operations import call_of
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
    prologue(tile, s, c)
    # The first iteration from which on no block needs a mask.
    unmasked = T.max(T.min(blocks - visible + c.loop.masked_lag, blocks + c.loop.end), c.loop.start)
    # If all queries see the last key, only its block can be ragged, and a short loop padded.
    if c.mask.right is not None or c.loop.least_blocks + c.loop.masked_lag > c.loop.start:
        for t in T.serial(unmasked - c.loop.start):
            steady_masked(t + c.loop.start, tile, s, c)
    if c.mask.left is None:
        for t in T.serial(blocks + c.loop.end - unmasked):
            steady(t + unmasked, tile, s, c)
    else:
        # The first iteration from which on blocks need one again: those below `cut`, which come last.
        again = T.max(T.min(blocks - cut + c.loop.mask_lag, blocks + c.loop.end), unmasked)
        for t in T.serial(again - unmasked):
            steady(t + unmasked, tile, s, c)
        for t in T.serial(blocks + c.loop.end - again):
            steady_masked(t + again, tile, s, c)
    if c.sinks:
        # It arrives while the last products run.
        s.sink[0] = s.Sinks[head]
    epilogue(blocks, tile, s, c)


prologue, steady, steady_masked, epilogue = iterations(call_of)
