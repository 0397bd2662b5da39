"""A thread block computes tile after tile: which is next, where it lies, and what each role does of it.

A tile here is that of a whole cluster, block_M rows for each of its blocks, until a warpgroup sees its own rows.
"""

import tilelang.language as T

from tl_attention.kernels.shared.iterations import LoopTile, loop
from tl_attention.kernels.shared.rows import kv_head
from tl_attention.kernels.warp_specialized.transfers import produce, release_q, store
from tl_attention.problem.tiling import SECTION_BYTES, taper
from tl_attention.problem.warpgroup import WARP


@T.macro
def variables(s, c):
    """Allocates the variables of a LoopTile, which each next tile of the block uses again, and returns the LoopTile.

    Without them TileLang would put expressions into the loops.
    """
    tile = None if c.packed else T.alloc_var("int32")
    turn = T.alloc_var("int32")
    base = T.alloc_var("int32")
    first_row = T.alloc_var("int32")
    head = T.alloc_var("int32")
    bz = None if c.packed else T.alloc_var("int32")
    q_begin = T.alloc_var("int32") if c.packed else None
    seq_q = T.alloc_var("int32") if c.packed else s.seq_q
    k_begin = T.alloc_var("int32") if c.packed else None
    seq_kv = T.alloc_var("int32") if c.packed else s.seq_kv
    blocks = T.alloc_var("int32")
    visible = T.alloc_var("int32")
    first = T.alloc_var("int32") if c.mask.left is not None or c.parts else 0
    cut = T.alloc_var("int32") if c.mask.left is not None else 0
    result = T.alloc_var("int32") if c.parts else None
    part = T.alloc_var("int32") if c.parts and not c.packed else None
    part_first = T.alloc_var("int32") if c.parts and c.packed else None
    part_end = T.alloc_var("int32") if c.parts and c.packed else None
    own = blocks_of_part(part, s.given.part_blocks) if c.parts and not c.packed else (part_first, part_end)
    return LoopTile(
        first, blocks, first_row, head, q_begin if c.packed else bz, k_begin if c.packed else bz, seq_q, seq_kv, visible, cut,
        turn=turn, base=base, number=tile, result=result, part=part, part_first=own[0], part_end=own[1],
    )  # fmt: skip


def blocks_of_part(part, part_blocks):
    """Returns the first KV block of a part of a batch's keys, and the one behind its last."""
    return part * part_blocks, (part + 1) * part_blocks


def put(variable, value):
    """Assigns a value to a variable of a tile. TileLang itself assigns to names only."""
    T.buffer_store(variable.buffer, value, variable.indices)


def named(tile, s, c, wg=None):
    """Returns the producer's or warpgroup `wg`'s tile with its numbers as named variables.

    Others would go into every expression.
    """
    bz, q_begin, k_begin = (None, tile.queries, tile.keys) if c.packed else (tile.queries, None, None)
    own = values_of(
        tile.turn, tile.base, tile.first, tile.blocks, tile.first_row, tile.head, bz, q_begin, tile.seq_q, k_begin, tile.seq_kv,
        tile.visible, tile.cut, tile.result, c,
    )  # fmt: skip
    of_kv = kv_head(own["head"], s.given, c) if wg is None else None
    return LoopTile(**{**vars(tile), **own, "kv_head": of_kv, "wg": wg})


@T.macro
def values_of(turn, base, first, blocks, first_row, head, bz, q_begin, seq_q, k_begin, seq_kv, visible, cut, result, c):
    """Returns these numbers of a LoopTile, which get names in generated code because they are a macro's parameters."""
    return {
        "turn": turn, "base": base, "first": first, "blocks": blocks, "first_row": first_row, "head": head, "seq_q": seq_q,
        "seq_kv": seq_kv, "queries": q_begin if c.packed else bz, "keys": k_begin if c.packed else bz, "visible": visible,
        "cut": cut, "result": result,
    }  # fmt: skip


def place(tile, row_tiles, heads, s, c):
    """Returns (row tile, head counted over all batches) of a tile number, in the schedule's order of tiles."""
    row, head = ORDERS[c.kernel.tile_order](tile, row_tiles, heads, s, c)
    if c.mask.grows:
        # A head's last tile is its longest.
        row = row_tiles - 1 - row
    return row, head


def by_rows(tile, row_tiles, heads, s, c):
    """Returns (row tile, head) of a tile number where all tiles of a head come before the next head's."""
    return tile % row_tiles, tile // row_tiles


def tapered(tile, row_tiles, heads, s, c):
    """Returns (row tile, head) of a tile number, head by head, except that the last heads take turns tile by tile.

    The last heads' first tiles come before their next ones. The last of many workers (blocks, or clusters) to take a
    long tile keeps the others waiting.
    """
    width = tapered_heads(row_tiles, heads, s, c)
    within = in_taper(tile, row_tiles, heads, s, c)
    row = T.if_then_else(within < 0, tile % row_tiles, within // width)
    head = T.if_then_else(within < 0, tile // row_tiles, heads - width + within % width)
    return row, head


def tapered_heads(row_tiles, heads, s, c):
    """Returns how many of the last heads take turns tile by tile, with the tapered order of tiles."""
    return T.min(heads, T.ceildiv(taper(c.head_dim, c.head_dim_v) * s.given.workers, row_tiles))


def in_taper(tile, row_tiles, heads, s, c):
    """Returns the number of a tile among those of the last heads, which take turns; it is negative for other tiles."""
    return tile - (heads - tapered_heads(row_tiles, heads, s, c)) * row_tiles


def by_sections(tile, row_tiles, heads, s, c):
    """Returns (row tile, head) of a tile number where a section's heads have their first tiles first, then the next."""
    group = s.given.group if c.group is None else c.variant.subgroups
    of_kv = s.batch * s.given.K.shape[1] if c.group is None else heads // group
    section = section_heads(of_kv, s.seq_kv, c) * group
    first = tile // (section * row_tiles) * section
    within = tile % (section * row_tiles)
    width = T.min(section, heads - first)
    return within // width, first + within % width


def section_heads(heads, seq_kv, c):
    """Returns how many heads' K and V fit into SECTION_BYTES, at least 1 and at most `heads`.

    They have 2 bytes for each key and column.
    """
    return T.max(1, T.min(heads, SECTION_BYTES // (seq_kv * ((c.head_dim + c.head_dim_v) * 2))))


ORDERS = {"rows": by_rows, "tapered": tapered, "sections": by_sections}


@T.macro
def consume(tile, s, c):
    """Computes acc_o and denominator of a warpgroup's rows of a tile, once its rows of Q have arrived."""
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


@T.macro
def work(wg, block, s, c, is_producer):
    """Works on a block's tiles in turn, as the producer warp if `is_producer`, else as the computing warpgroup `wg`."""
    tile = variables(s, c)
    row_tiles = T.ceildiv(s.seq_q, c.tile_rows * c.kernel.cluster)
    put(tile.number, block // c.kernel.cluster)
    put(tile.turn, 0)
    put(tile.base, 0)
    while tile.number < row_tiles * s.heads * s.batch:
        locate(tile, row_tiles, s, c)
        if c.mask.left is not None or c.parts:
            begin(tile, tile.first_row, s, c)
        if is_producer:
            produce(named(tile, s, c), s, c)
            if c.kernel.tile_scheduler == "dynamic":
                # After the loads: the counter takes a microsecond to answer.
                draw_tile(tile.turn, s, c)
        else:
            see(tile, wg, s, c)
            consume(named(tile, s, c, wg), s, c)
            store(named(tile, s, c, wg), s, c)
        put(tile.base, tile.base + tile.blocks)
        advance(tile, row_tiles, s, c, is_producer=is_producer)
        put(tile.turn, tile.turn + 1)


@T.macro
def locate(tile, row_tiles, s, c):
    """Sets a tile's first row, head and sequence from its number, and the number of KV blocks up to its last one."""
    put(tile.first_row, place(tile.number, row_tiles, s.batch * s.heads, s, c)[0] * c.kernel.cluster)
    put(tile.head, place(tile.number, row_tiles, s.batch * s.heads, s, c)[1])
    if c.parts:
        put(tile.result, tile.head // s.heads)
        put(tile.part, tile.result // s.given.Q.shape[0])
    reach(tile, s, c)
    put(tile.queries, tile.head // s.heads)
    put(tile.head, tile.head % s.heads)
    if c.parts:
        put(tile.queries, tile.result % s.given.Q.shape[0])


@T.macro
def reach(tile, s, c):
    """Sets a tile's number of KV blocks, up to the last that it needs, and the first row of the thread block.

    Before that is counted in multiples of block_M, and of the whole cluster's tile.
    """
    put(tile.blocks, T.ceildiv(tile.seq_kv, c.block_N))
    # Blocks of a cluster load together: as many KV blocks as its last row needs.
    put(
        tile.blocks,
        c.mask.end_block(tile.blocks, tile.own_key((tile.first_row + c.kernel.cluster) * c.tile_rows), c.block_N, T),
    )
    if c.parts:
        put(tile.blocks, T.min(tile.blocks, tile.part_end))
    put(tile.blocks, T.max(tile.blocks, c.loop.least_blocks))
    put(tile.first_row, (tile.first_row + s.rank) * c.tile_rows)


@T.macro
def begin(tile, first_row, s, c):
    """Sets a tile's first KV block to the first that its rows see, and the number of its blocks from there on."""
    # Blocks of a cluster load together: from the first that its first row needs.
    put(tile.first, c.mask.first_block(tile.own_key(first_row - s.rank * c.tile_rows), c.block_N, T))
    if c.parts:
        put(tile.first, T.max(tile.first, tile.part_first))
        if c.mask.left is not None:
            # A part that lies before the window has its own last block, which is masked, not the window's first.
            put(tile.first, T.min(tile.first, tile.part_end - 1))
    put(tile.blocks, T.max(tile.blocks - tile.first, c.loop.least_blocks))


@T.macro
def see(tile, wg, s, c):
    """Sets a tile's first row to the warpgroup's own, and the bounds of the KV blocks that need no mask."""
    put(tile.first_row, tile.first_row + wg * c.box)
    put(tile.visible, tile.seq_kv // c.block_N)
    put(tile.visible, c.mask.end_whole(tile.visible, tile.own_key(tile.first_row), c.block_N, T))
    if c.mask.left is not None or c.parts:
        put(tile.visible, tile.visible - tile.first)
    if c.mask.left is not None:
        put(tile.cut, c.mask.first_whole(tile.own_key(tile.first_row + c.box), c.block_N, T) - tile.first)


@T.macro
def advance(tile, row_tiles, s, c, is_producer):
    """Sets the tile's number to that of the block's next tile, as kernel.tile_scheduler decides."""
    if c.kernel.tile_scheduler == "one_tile":
        put(tile.number, row_tiles * s.heads * s.batch)
    elif c.kernel.tile_scheduler == "static":
        put(tile.number, tile.number + s.given.workers)
    else:
        take_tile(tile.number, tile.turn, s, is_producer=is_producer)


@T.macro
def draw_tile(turn: T.Ref, s, c):
    """Takes the next tile's number from the counter in the producer warp, and puts it where all warps read it."""
    T.mbarrier_wait_parity(s.tiles.empty[turn % 2], turn // 2 % 2 ^ 1)
    if T.shuffle_elect(WARP):
        s.tiles.next[turn % 2] = T.atomic_add(s.tiles.counter[0], 1, return_prev=True) + s.given.workers
    T.mbarrier_arrive(s.tiles.full[turn % 2])


@T.macro
def take_tile(tile: T.Ref, turn: T.Ref, s, is_producer):
    """Waits for the tile number that the producer warp has drawn, and sets `tile` to it."""
    T.mbarrier_wait_parity(s.tiles.full[turn % 2], turn // 2 % 2)
    tile = s.tiles.next[turn % 2]
    if not is_producer:
        if T.shuffle_elect(WARP):
            T.mbarrier_arrive(s.tiles.empty[turn % 2])


@T.macro
def reset_counter(s, c):
    """Sets the counter of tiles back to 0 in the last block to finish."""
    if T.shuffle_elect(WARP):
        if T.atomic_add(s.tiles.counter[1], 1, return_prev=True) == s.given.workers - 1:
            s.tiles.counter[0] = 0
            s.tiles.counter[1] = 0
