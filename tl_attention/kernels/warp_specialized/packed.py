"""A small kernel lists the tiles of packed sequences, and the producer warp hands each next tile to all warps.

A list entry says where a sequence lies, which of its rows the tile has, and which KV blocks if the sequence is split.
Tiles of sequences of few queries come first, longest first, each for all heads, as heads lie side by side in memory.
Then the others come, head by head and sequence by sequence, so that tiles at work share K and V in the L2 cache. The
last heads take turns, the longest tiles first, as the last tile to end keeps all others waiting.
"""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.kernels.warp_specialized.launches import LISTING, listing_call
from tl_attention.kernels.warp_specialized.tiles import begin, consume, named, put, reach, see, variables
from tl_attention.kernels.warp_specialized.transfers import produce_block, store
from tl_attention.problem.packed import FEW, TILE_WORDS, TILES_TOLD, TURNS_FROM
from tl_attention.problem.warpgroup import ALL_LANES, WARP


@dataclass(frozen=True)
class Listed:
    """Listed is what the producer warp knows of the list of tiles, and the number of the tile that is next."""

    number: object
    row_tiles: object
    few: object
    turns_from: object


@T.macro
def list_tiles(given, c):
    """Launches the kernel that writes the list of tiles.

    The main kernel starts meanwhile, and waits for this one's end before it reads the list.
    """
    # TileLang 0.1.15 gives all kernels of a function the same clusters.
    with T.Kernel(c.kernel.cluster, threads=LISTING) as (block,):
        T.pdl_trigger()
        if block == 0:
            tile = (c.block_M, c.kernel.cluster, c.block_N)
            listing, arguments = listing_call(given, c.variant, tile, T)
            T.call_extern("handle", listing, *arguments)


@T.macro
def work_packed(wg, block, s, c, is_producer):
    """Works on a block's tiles in turn, as the producer warp if `is_producer`, else as the computing warpgroup `wg`."""
    tile = variables(s, c)
    put(tile.turn, 0)
    put(tile.base, 0)
    if is_producer:
        row_tiles = T.alloc_var("int32")
        few = T.alloc_var("int32")
        turns_from = T.alloc_var("int32")
        number = T.alloc_var("int32")
        T.pdl_sync()
        row_tiles = s.given.Tiles[0]
        few = s.given.Tiles[FEW]
        turns_from = s.given.Tiles[TURNS_FROM]
        number = block // c.kernel.cluster
        hand_over(number, row_tiles, few, turns_from, 0, s, c)
    receive(tile, s, c, is_producer)
    while tile.first_row >= 0:
        reach(tile, s, c)
        if c.mask.left is not None or c.parts:
            begin(tile, tile.first_row, s, c)
        if is_producer:
            if c.kernel.tile_scheduler == "dynamic":
                drawn = T.alloc_var("int32")
                drawn = draw(s)
                produce_packed(Listed(drawn, row_tiles, few, turns_from), named(tile, s, c), s, c)
            else:
                number = number + s.given.workers
                produce_packed(Listed(number, row_tiles, few, turns_from), named(tile, s, c), s, c)
        else:
            see(tile, wg, s, c)
            consume(named(tile, s, c, wg), s, c)
            receive_rows(tile, wg, s, c)
            store(named(tile, s, c, wg), s, c)
        put(tile.base, tile.base + tile.blocks)
        put(tile.turn, tile.turn + 1)
        receive(tile, s, c, is_producer)


def draw(s):
    """Returns the number of the next tile from the counter, which lane 0 alone gets."""
    return T.call_extern("int32", "tl_attention_draw", T.address_of(s.tiles.counter[0]), s.given.workers)


@T.macro
def produce_packed(listed, tile, s, c):
    """Loads one tile, and hands over the next tile behind the first loads, which run meanwhile."""
    produce_block(0, tile, s, c)
    hand_over_next(listed, tile.turn + 1, s, c)
    for j in T.serial(tile.blocks - 1):
        produce_block(j + 1, tile, s, c)


@T.macro
def hand_over_next(listed, turn, s, c):
    """Hands over the next tile, whose number lane 0 may have drawn: the counter takes a microsecond to answer."""
    of_all = T.alloc_var("int32")
    if c.kernel.tile_scheduler == "dynamic":
        of_all = T.call_extern("int32", "tl_attention_drawn", listed.number)
    else:
        of_all = T.call_extern("int32", "__shfl_sync", T.uint32(ALL_LANES), listed.number, 0)
    hand_over(of_all, listed.row_tiles, listed.few, listed.turns_from, turn, s, c)


@T.macro
def hand_over(number, row_tiles, few, turns_from, turn, s, c):
    """Puts a tile's entry and head into shared memory, where all warps read them; -1 behind the last tile.

    Of the list's `row_tiles` entries `few` are of sequences of few queries. Heads from `turns_from` on take turns.
    """
    T.mbarrier_wait_parity(s.tiles.empty[turn % TILES_TOLD], turn // TILES_TOLD % 2 ^ 1)
    if number < row_tiles * s.heads:
        T.assume(s.heads > 0)
        next_entry = T.alloc_var("int32")
        next_head = T.alloc_var("int32")
        behind = T.alloc_var("int32")
        within = T.alloc_var("int32")
        behind = number - few * s.heads
        within = behind - turns_from * (row_tiles - few)
        # No number is negative that is divided.
        if behind < 0:
            next_entry = T.truncdiv(number, s.heads)
            next_head = T.truncmod(number, s.heads)
        elif within < 0:
            next_entry = row_tiles + T.truncmod(behind, row_tiles - few)
            next_head = T.truncdiv(behind, row_tiles - few)
        else:
            next_entry = few + T.truncdiv(within, s.heads - turns_from)
            next_head = turns_from + T.truncmod(within, s.heads - turns_from)
        T.call_extern(
            "handle",
            "tl_attention_hand_over",
            T.address_of(s.tiles.next[turn % TILES_TOLD, 0]),
            T.address_of(s.given.Tiles[(next_entry + 1) * TILE_WORDS]),
            next_head,
        )
    else:
        T.call_extern("handle", "tl_attention_hand_over_none", T.address_of(s.tiles.next[turn % TILES_TOLD, 0]))
    T.mbarrier_arrive(s.tiles.full[turn % TILES_TOLD])


def received_word(word, tile, s):
    """Returns a word of the entry that the producer warp hands over for this turn; behind the entry stands the head."""
    return s.tiles.next[tile.turn % TILES_TOLD, word]


@T.macro
def receive(tile, s, c, is_producer):
    """Waits for the entry that the producer warp hands over, and sets the tile's variables to it.

    Warpgroups that compute need not know where rows begin: where those of Q do, they read when they store.
    """
    T.mbarrier_wait_parity(s.tiles.full[tile.turn % TILES_TOLD], tile.turn // TILES_TOLD % 2)
    put(tile.first_row, received_word(0, tile, s))
    put(tile.seq_q, received_word(2, tile, s))
    put(tile.seq_kv, received_word(4, tile, s))
    put(tile.head, received_word(TILE_WORDS, tile, s))
    if c.parts:
        put(tile.part_first, received_word(5, tile, s))
        put(tile.part_end, received_word(6, tile, s))
    if is_producer:
        put(tile.queries, received_word(1, tile, s))
        put(tile.keys, received_word(3, tile, s))


@T.macro
def receive_rows(tile, wg, s, c):
    """Reads again where a warpgroup's rows of Q lie, and frees the entry's place for a later tile.

    Kept in registers, they would take the room of the loop's bounds, which ptxas then works out in each iteration.
    """
    put(tile.first_row, received_word(0, tile, s))
    put(tile.queries, received_word(1, tile, s))
    put(tile.seq_q, received_word(2, tile, s))
    put(tile.head, received_word(TILE_WORDS, tile, s))
    if c.parts:
        put(tile.result, received_word(7, tile, s))
    put(tile.first_row, (tile.first_row + s.rank) * c.tile_rows + wg * c.box)
    if T.shuffle_elect(WARP):
        T.mbarrier_arrive(s.tiles.empty[tile.turn % TILES_TOLD])
