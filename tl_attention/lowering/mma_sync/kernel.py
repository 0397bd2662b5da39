"""FlashAttention forward: fragments by ldmatrix, products by mma.sync, loads by cp.async.

Every thread computes and loads. A warp has 16 rows of each 16 * warps of the tile, so that its fragments of K and V
serve all of them. KV blocks come from the last to the first, so that those that need a mask come first.
"""

import tilelang.language as T

from tl_attention.lowering.device_code import STORE, STRIDED_STORE, device_code
from tl_attention.lowering.iterations import Tile, loop
from tl_attention.lowering.mma_sync.copies import load_q
from tl_attention.lowering.mma_sync.device_code import GREW
from tl_attention.lowering.mma_sync.output import store
from tl_attention.lowering.mma_sync.state import block_state, start
from tl_attention.lowering.signature import aligned


@T.macro
def launch(given, c):
    """The thread blocks: one for each row tile."""
    batch, heads, seq_q, _ = given.Q.shape
    with T.Kernel(T.ceildiv(seq_q, c.block_M), heads, batch, threads=c.threads, prelude=prelude(c)) as (bx, by, bz):
        T.annotate_min_blocks_per_sm(c.kernel.blocks_per_sm)
        if c.strided:
            aligned(given)
        s = block_state(given, c)
        work(bx, by, bz, s, c)


def prelude(c):
    """The CUDA device functions that the kernel calls."""
    text = STRIDED_STORE if c.strided else STORE
    if c.softmax.rescale_threshold > 0:
        text += GREW
    if c.features.at_totals:
        text += device_code(c.features.totals)
    return text


@T.macro
def work(bx, by, bz, s, c):
    """A row tile."""
    first_row = T.alloc_var("int32")
    blocks = T.alloc_var("int32")
    visible = T.alloc_var("int32")
    first = T.alloc_var("int32") if c.mask.left is not None else 0
    cut = T.alloc_var("int32") if c.mask.left is not None else 0
    # A head's last tile is its longest: it comes first.
    first_row = (T.ceildiv(s.seq_q, c.block_M) - 1 - bx) * c.block_M if c.mask.grows else bx * c.block_M
    blocks = c.mask.end_block(T.ceildiv(s.seq_kv, c.block_N), first_row + c.block_M + s.past_len, c.block_N, T)
    visible = c.mask.end_whole(s.seq_kv // c.block_N, first_row + s.past_len, c.block_N, T)
    if c.mask.left is not None:
        first = c.mask.first_block(first_row + s.past_len, c.block_N, T)
        blocks = T.max(blocks - first, c.loop.least_blocks)
        visible -= first
        cut = c.mask.first_whole(first_row + c.block_M + s.past_len, c.block_N, T) - first
    else:
        # Short loops get blocks that are masked whole.
        blocks = T.max(blocks, c.loop.least_blocks)
    tile = Tile(first, blocks, first_row, by, bz, visible, cut)
    load_q(first_row, tile, s, c)
    start(s, c)
    loop(tile, s, c)
    store(first_row, tile, s, c)
