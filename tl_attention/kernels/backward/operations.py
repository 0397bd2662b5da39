"""Each operation of an iteration of `dq` and `dkdv` has a macro here; a warpgroup works on the 64 rows of its tile."""

import tilelang.language as T

from tl_attention.kernels.shared.features import slope_of
from tl_attention.kernels.warp_specialized.operations import inside
from tl_attention.kernels.warp_specialized.scores import change_scores
from tl_attention.kernels.warp_specialized.transfers import release, slot, wait_full
from tl_attention.problem.warpgroup import ROWS, WARP
from tl_attention.schedule.loop.table import symbol, whole

# --- vector statements -----------------------------------------------------------------------------------------------


@T.macro
def mask(t, tile, s, c):
    """S = -inf where the mask hides a column from a row, after features such as softcap have changed the scores."""
    change_scores(t, tile, s, c, alone=True)
    first = tile.kv_block(t) * c.block_N
    for i, j in T.Parallel(ROWS, c.block_N):
        hidden = c.mask.hidden(j, tile.own_key(tile.first_row + i), tile.seq_kv, T, first)
        s.acc_s[i, j] = T.if_then_else(hidden, -T.infinity("float32"), s.acc_s[i, j])


def exp(score, lse, s):
    """Returns P = exp2(scale S - LSE): a difference of exponents in one FMA."""
    return T.exp2(T.fma(score, s.scale, -lse))


@T.macro
def change_all(t, tile, s, c, masked, columns):
    """Changes all scores as features do, before the first `columns` are read, unless the mask did so as `masked`."""
    if not masked and (columns is None or columns[0] == 0):
        change_scores(t, tile, s, c, alone=False)


@T.macro
def exp_of_row(t, tile, s, c, masked, columns=None):
    """S = P, times the slope of features that change scores, in `columns` (first, end) or in all if None."""
    change_all(t, tile, s, c, masked, columns)
    for i, j in T.Parallel(ROWS, c.block_N):
        if columns is None or inside(columns, j):
            if c.features.at("scores"):
                s.acc_s[i, j] = exp(s.acc_s[i, j], s.row_lse[i], s) * slope_of(s.acc_s[i, j], c)
            else:
                s.acc_s[i, j] = exp(s.acc_s[i, j], s.row_lse[i], s)


@T.macro
def exp_of_column(t, tile, s, c, masked, columns=None):
    """S = P, with an LSE for each column; where features change scores it does that, and cast_p the rest."""
    if c.features.at("scores"):
        change_all(t, tile, s, c, masked, columns)
    else:
        at = slot(s.Q, tile.base + t)
        for i, j in T.Parallel(ROWS, c.block_N):
            if columns is None or inside(columns, j):
                s.acc_s[i, j] = exp(s.acc_s[i, j], s.LSE[at, j], s)


@T.macro
def cast_p(t, tile, s, c, columns=None):
    """P in the precision of dO, of S; where features change scores, S = P times their slope comes here, too."""
    at = slot(s.Q, tile.base + t)
    for i, j in T.Parallel(ROWS, c.block_N):
        if columns is None or inside(columns, j):
            if c.features.at("scores"):
                s.acc_s_cast[i, j] = exp(s.acc_s[i, j], s.LSE[at, j], s)
                s.acc_s[i, j] = exp(s.acc_s[i, j], s.LSE[at, j], s) * slope_of(s.acc_s[i, j], c)
            else:
                s.acc_s_cast[i, j] = s.acc_s[i, j]


@T.macro
def ds_of_row(t, tile, s, c, columns=None):
    """dS = S (dP - D), in the precision of K."""
    for i, j in T.Parallel(ROWS, c.block_N):
        if columns is None or inside(columns, j):
            s.ds_cast[i, j] = s.acc_s[i, j] * (s.acc_dp[i, j] - s.row_d[i])


@T.macro
def ds_of_column(t, tile, s, c, columns=None):
    """dS = S (dP - D), with a D for each column, in the precision of Q."""
    at = slot(s.dO, tile.base + t)
    for i, j in T.Parallel(ROWS, c.block_N):
        if columns is None or inside(columns, j):
            s.ds_cast[i, j] = s.acc_s[i, j] * (s.acc_dp[i, j] - s.D[at, j])


VECTORS = {
    "dq": {"mask": mask, "exp": exp_of_row, "ds": ds_of_row},
    "dkdv": {"mask": mask, "exp": exp_of_column, "cast_p": cast_p, "ds": ds_of_column},
}


# --- products, waits, releases ---------------------------------------------------------------------------------------


def operand(buffer, t, tile, s, c):
    """Returns what a product reads of a buffer: a warpgroup's rows, a ring's slot, or a fragment."""
    of = getattr(s, symbol(buffer))
    if buffer in c.rings:
        return of.shared[slot(of, tile.base + t), :, :]
    return of.shared[tile.wg, :, :] if buffer in c.residents else of


def issue(statement, t, tile, s, c):
    """Starts a product; one that adds to its accumulator clears it in a tile's first block. It does not wait."""
    a, b, *adds = statement.reads
    return T.wgmma_gemm(
        operand(whole(a), t, tile, s, c),
        operand(b, t, tile, s, c),
        getattr(s, whole(statement.writes[0])),
        transpose_B=not adds,
        clear_accum=tile.opens(t) if adds else True,
        policy=T.GemmWarpPolicy.FullRow,
    )


@T.macro
def wait_product(accumulator, columns, t, tile, s, c, outstanding):
    """Waits for the product that writes an accumulator; up to `outstanding` later ones may be in flight."""
    T.wait_wgmma(outstanding)
    T.warpgroup_fence_operand(accumulator, 0, columns // 2)


def wait_load(ring, t, tile, s, c):
    """Waits until the load of a block has arrived."""
    return wait_full(ring, tile.base + t)


def release_ring(ring, t, tile, s, c):
    """Signals that the warp has read a block, so that its buffer may be filled again."""
    return release(ring, slot(ring, tile.base + t), c)


def fence(t, tile, s, c):
    """Lets the next load go over what the warp's threads have read."""
    return T.fence_proxy_async()


@T.macro
def release_resident(ring, t, tile, s, c):
    """Signals that the warp has read its warpgroup's rows of a resident tile, where no other head will."""
    if tile.closes:
        if T.shuffle_elect(WARP):
            T.mbarrier_arrive(ring.empty[tile.wg])


def macro_of(op, c):
    """Returns the macro, or function, that emits an operation of this kind and statement."""
    if op.kind == "run":
        return VECTORS[c.variant.loop][whole(op.statement)]
    if op.kind == "fence":
        return fence
    return {"issue": issued, "wait": awaited, "release": released}[op.kind](op, c)


def issued(op, c):
    statement = c.statements[op.statement]
    return lambda t, tile, s, c: issue(statement, t, tile, s, c)


def awaited(op, c):
    if op.statement not in c.products:
        return lambda t, tile, s, c: wait_load(getattr(s, c.ring_of[op.statement]), t, tile, s, c)
    accumulator = whole(c.statements[op.statement].writes[0])
    return lambda t, tile, s, c, outstanding: wait_product(
        getattr(s, accumulator), c.columns[accumulator], t, tile, s, c, outstanding
    )


def released(op, c):
    if op.statement in c.ring_of:
        return lambda t, tile, s, c: release_ring(getattr(s, c.ring_of[op.statement]), t, tile, s, c)
    return lambda t, tile, s, c: release_resident(getattr(s, c.resident_of[op.statement]), t, tile, s, c)
