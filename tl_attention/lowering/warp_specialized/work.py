"""Tile after tile: what a role of the thread block works on, and which tile is next."""

import tilelang.language as T

from tl_attention.hardware.warpgroup import ROWS, WARP
from tl_attention.lowering.warp_specialized.consumer import consume
from tl_attention.lowering.warp_specialized.output import store
from tl_attention.lowering.warp_specialized.producer import produce
from tl_attention.lowering.warp_specialized.tiles import named, place, put, variables, workers


@T.macro
def work(wg, block, s, c, is_producer):
    """Tile after tile, by the producer warp or by one warpgroup that computes."""
    tile = variables(c)
    row_tiles = T.ceildiv(s.seq_q, c.block_M * c.kernel.cluster)
    put(tile.number, block // c.kernel.cluster)
    put(tile.turn, 0)
    put(tile.base, 0)
    while tile.number < row_tiles * s.heads * s.batch:
        locate(tile, row_tiles, s, c)
        if c.mask.left is not None:
            begin(tile, tile.first_row, s, c)
        if is_producer:
            produce(named(tile), s, c)
            if c.kernel.tile_scheduler == "dynamic":
                # After the loads: the counter takes a microsecond to answer.
                draw_tile(tile.turn, s, c)
        else:
            see(tile, wg, s, c)
            consume(named(tile, wg), s, c)
            store(named(tile, wg), s, c)
        put(tile.base, tile.base + tile.blocks)
        advance(tile, row_tiles, s, c, is_producer=is_producer)
        put(tile.turn, tile.turn + 1)


@T.macro
def locate(tile, row_tiles, s, c):
    """A tile's rows, head and sequence, and how many KV blocks they need."""
    cluster = c.kernel.cluster
    put(tile.first_row, place(tile.number, row_tiles, s.batch * s.heads, s, c)[0] * cluster)
    put(tile.head, place(tile.number, row_tiles, s.batch * s.heads, s, c)[1])
    put(tile.blocks, T.ceildiv(s.seq_kv, c.block_N))
    # Blocks of a cluster load together: as many KV blocks as its last row needs.
    put(tile.blocks, c.mask.end_block(tile.blocks, (tile.first_row + cluster) * c.block_M + s.past_len, c.block_N, T))
    put(tile.blocks, T.max(tile.blocks, c.loop.least_blocks))
    put(tile.first_row, (tile.first_row + s.rank) * c.block_M)
    put(tile.batch, tile.head // s.heads)
    put(tile.head, tile.head % s.heads)


@T.macro
def begin(tile, first_row, s, c):
    """The first KV block that a tile's rows reach back to, from which its blocks are counted then."""
    # Blocks of a cluster load together: from the first that its first row needs.
    put(tile.first, c.mask.first_block(first_row - s.rank * c.block_M + s.past_len, c.block_N, T))
    put(tile.blocks, T.max(tile.blocks - tile.first, c.loop.least_blocks))


@T.macro
def see(tile, wg, s, c):
    """A warpgroup's own rows, and which KV blocks all of them see."""
    put(tile.first_row, tile.first_row + wg * ROWS)
    put(tile.visible, s.seq_kv // c.block_N)
    put(tile.visible, c.mask.end_whole(tile.visible, tile.first_row + s.past_len, c.block_N, T))
    if c.mask.left is not None:
        put(tile.visible, tile.visible - tile.first)
        put(tile.cut, c.mask.first_whole(tile.first_row + ROWS + s.past_len, c.block_N, T) - tile.first)


@T.macro
def advance(tile, row_tiles, s, c, is_producer):
    """The tile that comes next."""
    if c.kernel.tile_scheduler == "one_tile":
        put(tile.number, row_tiles * s.heads * s.batch)
    elif c.kernel.tile_scheduler == "static":
        put(tile.number, tile.number + workers(c))
    else:
        take_tile(tile.number, tile.turn, s, is_producer=is_producer)


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
