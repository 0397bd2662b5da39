"""Tile after tile: what a role of the thread block works on, and which tile is next."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import ROWS, WARP
from tl_attention.lowering.warp_specialized.consumer import consume, tile_of
from tl_attention.lowering.warp_specialized.output import store
from tl_attention.lowering.warp_specialized.producer import produce
from tl_attention.lowering.warp_specialized.tiles import place, workers


@T.macro
def work(wg, block, s, c, is_producer):
    """Tile after tile, by the producer warp or by one warpgroup that computes."""
    # Variables: TileLang would put the expressions into the loops.
    tile = T.alloc_var("int32")
    turn = T.alloc_var("int32")
    base = T.alloc_var("int32")
    first_row = T.alloc_var("int32")
    head = T.alloc_var("int32")
    bz = T.alloc_var("int32")
    blocks = T.alloc_var("int32")
    visible = T.alloc_var("int32")
    first = T.alloc_var("int32") if c.mask.left is not None else 0
    cut = T.alloc_var("int32") if c.mask.left is not None else 0
    row_tiles = T.ceildiv(s.seq_q, c.block_M * c.kernel.cluster)
    tile = block // c.kernel.cluster
    turn = 0
    base = 0
    while tile < row_tiles * s.heads * s.batch:
        locate(tile, first_row, head, bz, blocks, row_tiles, s, c)
        if c.mask.left is not None:
            begin(first, blocks, first_row, s, c)
        if is_producer:
            produce(turn, base, first, blocks, first_row, head, bz, s, c)
            if c.kernel.tile_scheduler == "dynamic":
                # After the loads: the counter takes a microsecond to answer.
                draw_tile(turn, s, c)
        else:
            first_row += wg * ROWS
            visible = s.seq_kv // c.block_N
            visible = c.mask.end_whole(visible, first_row + s.past_len, c.block_N, T)
            if c.mask.left is not None:
                visible -= first
                cut = c.mask.first_whole(first_row + ROWS + s.past_len, c.block_N, T) - first
            consume(tile_of(turn, base, first, blocks, first_row, head, visible, cut, wg), s, c)
            store(first_row, head, bz, wg, s, c)
        base += blocks
        advance(tile, turn, row_tiles, s, c, is_producer=is_producer)
        turn += 1


@T.macro
def locate(tile: T.Ref, first_row: T.Ref, head: T.Ref, bz: T.Ref, blocks: T.Ref, row_tiles, s, c):
    """A tile's rows, head and batch, and how many KV blocks they need."""
    cluster = c.kernel.cluster
    first_row = place(tile, row_tiles, s.batch * s.heads, s, c)[0] * cluster
    head = place(tile, row_tiles, s.batch * s.heads, s, c)[1]
    blocks = T.ceildiv(s.seq_kv, c.block_N)
    # Blocks of a cluster load together: as many KV blocks as its last row needs.
    blocks = c.mask.end_block(blocks, (first_row + cluster) * c.block_M + s.past_len, c.block_N, T)
    blocks = T.max(blocks, c.loop.least_blocks)
    first_row = (first_row + s.rank) * c.block_M
    bz = head // s.heads
    head = head % s.heads


@T.macro
def begin(first: T.Ref, blocks: T.Ref, first_row, s, c):
    """The first KV block that a tile's rows reach back to, from which its blocks are counted then."""
    # Blocks of a cluster load together: from the first that its first row needs.
    first = c.mask.first_block(first_row - s.rank * c.block_M + s.past_len, c.block_N, T)
    blocks = T.max(blocks - first, c.loop.least_blocks)


@T.macro
def advance(tile: T.Ref, turn: T.Ref, row_tiles, s, c, is_producer):
    """The tile that comes next."""
    if c.kernel.tile_scheduler == "one_tile":
        tile = row_tiles * s.heads * s.batch
    elif c.kernel.tile_scheduler == "static":
        tile += workers(c)
    else:
        take_tile(tile, turn, s, is_producer=is_producer)


@T.macro
def draw_tile(turn: T.Ref, s, c):
    """The producer warp takes the next tile from the counter."""
    T.mbarrier_wait_parity(s.tiles.empty[turn % 2], turn // 2 % 2 ^ 1)
    if T.shuffle_elect(WARP):
        s.tiles.next[turn % 2] = T.atomic_add(s.tiles.counter[0], 1, return_prev=True) + workers(c)
    T.mbarrier_arrive(s.tiles.full[turn % 2])


@T.macro
def take_tile(tile: T.Ref, turn: T.Ref, s, is_producer):
    """The tile that the producer warp has drawn."""
    T.mbarrier_wait_parity(s.tiles.full[turn % 2], turn // 2 % 2)
    tile = s.tiles.next[turn % 2]
    if not is_producer:
        if T.shuffle_elect(WARP):
            T.mbarrier_arrive(s.tiles.empty[turn % 2])


@T.macro
def reset_counter(s, c):
    """The last block leaves the counter as it found it."""
    if T.shuffle_elect(WARP):
        if T.atomic_add(s.tiles.counter[1], 1, return_prev=True) == workers(c) - 1:
            s.tiles.counter[0] = 0
            s.tiles.counter[1] = 0
