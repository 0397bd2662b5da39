"""This FlashAttention forward has the four macros inside `T.Pipelined`, which places the waits."""

import tilelang.language as T

from tl_attention.kernels.pipelined.macros import MMA0, MMA1, Rescale, Softmax, allocated, change_scores, store
from tl_attention.kernels.shared.features import Totals, at_totals, factor_of, read
from tl_attention.kernels.shared.rows import kv_head, rows_of
from tl_attention.kernels.shared.signature import aligned, trace
from tl_attention.kernels.shared.softmax import LOG2_E
from tl_attention.schedule.loop.loops import NUMBER


@T.macro
def launch(given, c):
    """Launches a thread block for each row tile of each head, which computes the tile's output rows."""
    batch, heads, seq_q, _ = given.Q.shape
    seq_kv = given.K.shape[2]
    with T.Kernel(
        T.ceildiv(seq_q, c.block_M),
        heads,
        batch,
        threads=c.threads,
        prelude=c.prelude if c.features.at("totals") else None,
    ) as (bx, by, bz):
        s = allocated(given, c)
        if c.traced:
            trace(given)
        if c.strided:
            aligned(given, c)
        first_row = bx * c.block_M
        past_len = seq_kv - seq_q
        if c.features.at("first"):
            read(c.features.first, by, s, c)
        scale = (factor_of(given, s.own, c) if c.features.at("factor") else given.softmax_scale) * LOG2_E
        blocks = c.mask.end_block(T.ceildiv(seq_kv, c.block_N), first_row + c.block_M + past_len, c.block_N, T)
        first = c.mask.first_block(first_row + past_len, c.block_N, T)
        # Short loops get blocks that are masked whole.
        blocks = T.max(blocks - first, c.least_blocks)
        T.copy(rows_of(given.Q, bz, by, first_row, c.block_M, c, c.head_dim if c.narrow else None), s.Q_shared)
        T.fill(s.acc_o, 0)
        T.fill(s.denominator, 0)
        T.fill(s.scores_max, -T.infinity("float32"))
        # Where TileLang chooses the order, warps that load would keep their registers if they assigned a variable.
        chosen = c.group is None and "order" not in c.pipeline
        head_kv = T.truncdiv(by, given.group) if chosen else kv_head(by, given, c)
        if c.group is None:
            # Otherwise each copy of the loop would look whether it is there.
            T.assume(head_kv >= 0)
            T.assume(head_kv < given.K.shape[1])
        if c.features.at("last"):
            read(c.features.last, by, s, c)
        for k in T.Pipelined(blocks, **(with_change(c.pipeline) if c.features.at("scores") else c.pipeline)):
            MMA0(given.K, bz, head_kv, kv_block(k, first, blocks, c), first_row, past_len, s, c)
            if c.features.at("scores"):
                change_scores(kv_block(k, first, blocks, c), first_row, past_len, s, c)
            Softmax(scale, s, c)
            Rescale(s, c)
            MMA1(given.V, bz, head_kv, kv_block(k, first, blocks, c), s, c)
        if c.features.at("totals"):
            at_totals(totals_of(bz, seq_q, by, first_row, scale, s, c), s, c)
        if c.features.rescales:
            for i, j in T.Parallel(c.block_M, c.head_dim_v):
                s.acc_o[i, j] *= s.scores_max_prev[i]
        store(given.Output, bz, by, first_row, s, c)


def kv_block(step, first, blocks, c):
    """Returns the KV block of a loop step, from the last block down if `c.descending`, else from `first` up.

    It is an expression: a name for it would be one more statement of the loop.
    """
    return first + blocks - 1 - step if c.descending else first + step


def totals_of(bz, seq_q, head, first_row, scale, s, c):
    """Returns the Totals of a tile's rows, for features such as sinks and the LSE to act on."""
    return Totals(
        scale, s.scores_max.data, s.denominator.data, bz, seq_q, head, first_row, count=c.block_M, total=s.denominator
    )


def with_change(pipeline):
    """Returns T.Pipelined's arguments with a statement added that changes scores, between mma0 and row_max.

    Arguments without an order stay as they are.
    """
    if "order" not in pipeline:
        return pipeline
    behind, row_max = NUMBER["mma0"] + 1, NUMBER["row_max"]
    place = pipeline["order"][row_max]
    order = [other + (other >= place) for other in pipeline["order"]]
    stage = pipeline["stage"]
    return {
        "order": [*order[:behind], place, *order[behind:]],
        "stage": [*stage[:behind], stage[row_max], *stage[behind:]],
    }
