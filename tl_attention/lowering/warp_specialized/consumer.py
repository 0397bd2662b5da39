"""A warpgroup that computes: its 64 rows of one row tile."""

import tilelang.language as T

from tl_attention.lowering.iterations import loop
from tl_attention.lowering.warp_specialized.rings import release_q


@T.macro
def consume(tile, s, c):
    """acc_o and denominator of a tile."""
    T.fill(s.denominator, 0)
    T.fill(s.scores_max, -T.infinity("float32"))
    T.mbarrier_wait_parity(s.Q.full[tile.wg], tile.turn % 2)
    if c.kernel.q_operand == "registers":
        T.copy(s.Q.shared[tile.wg, :, :], s.Q_local)
        if c.kernel.output != "tma":
            # An arrival alone holds back no load by TMA: it would write over rows that are still being read.
            T.fence_proxy_async()
            release_q(tile.wg, s)
    loop(tile, s, c)
