"""Features such as softcap change scores before their maximum, and the mask hides some."""

import tilelang.language as T

from tl_attention.kernels.shared.features import ON_SCORES, changed_by, changes_at_once, operand_of
from tl_attention.kernels.shared.rows import query_of
from tl_attention.problem.warpgroup import ROWS


@T.macro
def mask(t, tile, s, c):
    """acc_s = -inf where the mask hides a key, after features such as softcap have changed the scores."""
    if c.features.at("scores"):
        if c.invariant:
            hide_from_neighbours(t, tile, s, c)
        change_scores(t, tile, s, c, alone=True)
    hide(t, tile, s, c, -T.infinity("float32"))


@T.macro
def hide(t, tile, s, c, value):
    """acc_s = value where the mask hides a key."""
    kv = tile.kv_block(t)
    for i, j in T.Parallel(ROWS, c.block_N):
        own_key = tile.own_key(tile.first_row + query_of(i, c))
        s.acc_s[i, j] = T.if_then_else(c.mask.hidden(j, own_key, tile.seq_kv, T, kv * c.block_N), value, s.acc_s[i, j])


@T.macro
def hide_from_neighbours(t, tile, s, c):
    """acc_s = 0 where the mask hides a key, if scores that are computed together might depend on it."""
    for name in c.features.scores:
        if changes_at_once(name):
            all_near = f"{ON_SCORES[name]}_all_near<{c.block_N // 2}>"
            if T.Not(T.call_extern("bool", all_near, s.acc_s.data, operand_of(name, s, c))):
                hide(t, tile, s, c, T.float32(0))


@T.macro
def change_scores(t, tile, s, c, alone):
    """Applies what features do to scores, such as softcap, to acc_s.

    The mask does so for masked blocks, with scores `alone`; row_max does for others.
    """
    for name in c.features.scores:
        if changes_at_once(name):
            T.call_extern(
                "handle",
                f"{ON_SCORES[name]}<{c.block_N // 2}, {'true' if alone else 'false'}>",
                s.acc_s.data,
                operand_of(name, s, c),
            )
        else:
            for i, j in T.Parallel(ROWS, c.block_N):
                key = tile.kv_block(t) * c.block_N + j
                after = key - tile.own_key(tile.first_row + query_of(i, c))
                s.acc_s[i, j] = changed_by(name, s.acc_s[i, j], after, s, c)
