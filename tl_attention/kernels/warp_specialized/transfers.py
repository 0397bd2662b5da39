"""Tiles move between global and shared memory here: rings of buffers, a producer warp's TMA loads, stores of output.

The producer warp loads as far ahead as the rings allow.

Load number `step` of a ring is in slot step % depth. The phase of a full barrier ends when a load has arrived, that of
an empty one when all have read it.
"""

import tilelang.language as T

from tl_attention.kernels.shared.device_code import is_bf16
from tl_attention.kernels.shared.features import Totals, at_totals
from tl_attention.kernels.shared.rows import row_of_part, rows_of, store_arguments, viewed
from tl_attention.problem.warpgroup import OWN, ROWS, WARP, WARPGROUP

# Of so many boxes of a KV block the pages are looked up one after the other: that takes less time than to ask lanes.
FEW_BOXES = 3


def slot(ring, step):
    """Returns the index of the ring's slot that load number `step` fills."""
    return step % ring.depth


def parity(ring, step):
    """Returns the parity, 0 or 1, of the mbarrier phase of load number `step`; it changes with each lap."""
    return step // ring.depth % 2


def wait_full(ring, step):
    """Waits until load number `step` of the ring has arrived."""
    return T.mbarrier_wait_parity(ring.full[slot(ring, step)], parity(ring, step))


def wait_empty(ring, step):
    """Waits until the slot of load number `step` is empty; at first it is."""
    return T.mbarrier_wait_parity(ring.empty[slot(ring, step)], parity(ring, step) ^ 1)


@T.macro
def release(ring, at, c):
    """Signals once per warp, to each block of the cluster, that the ring's slot `at` has been read.

    The warp's lanes have waited together.
    """
    if T.shuffle_elect(WARP):
        if c.kernel.cluster == 1:
            T.mbarrier_arrive(ring.empty[at])
        else:
            for rank in T.unroll(c.kernel.cluster):
                T.ptx_arrive_cluster_barrier(ring.empty[at], rank)


@T.macro
def release_q(wg, s):
    """Signals once per warp that its warpgroup's rows of Q_shared have been read."""
    if T.shuffle_elect(WARP):
        T.mbarrier_arrive(s.Q.empty[wg])


@T.macro
def produce(tile, s, c):
    """Loads one tile's KV blocks, and its rows of Q behind the first block: the buffer of Q is free later."""
    for j in T.serial(tile.blocks):
        produce_block(j, tile, s, c)


@T.macro
def produce_block(j, tile, s, c):
    """Loads a tile's j-th KV block, and behind the first its rows of Q."""
    for name in c.loop.loads:
        LOADS[name](j, tile, s, c)
    if j == 0:
        for wg in range(c.block_M // ROWS):
            load_q(wg, tile, s, c)


@T.macro
def load_k(j, tile, s, c):
    load(s.K, tile.base + j, tile.kv_block(j), tile, s, c)


@T.macro
def load_v(j, tile, s, c):
    load(s.V, tile.base + j, tile.kv_block(j), tile, s, c)


LOADS = {"load_k": load_k, "load_v": load_v}


@T.macro
def load(ring, step, kv, tile, s, c):
    """Starts the TMA load of KV block `kv` as load number `step` of the ring, once its slot is free."""
    if c.key_box:
        load_pages(ring, step, kv * c.block_N, tile, s, c)
    else:
        wait_empty(ring, step)
        # As many columns as the tile has, where the tensor has fewer.
        columns = ring.shared.shape[2] if c.narrow else None
        T.tma_copy(
            rows_of(ring.source, tile.keys, tile.kv_head, kv * c.block_N, c.block_N, c, columns, tile.seq_kv),
            ring.shared[slot(ring, step), :, :],
            barrier=ring.full[slot(ring, step)],
            leader_scope_threads=WARP,
            **multicast(c),
        )
    T.mbarrier_arrive(ring.full[slot(ring, step)])


@T.macro
def load_pages(ring, step, first_row, tile, s, c):
    """Starts the TMA loads of a KV block whose rows lie in pages: a box for each panel of `key_box` rows."""
    shift = T.alloc_var("int32")
    boxes = c.block_N // c.key_box
    if boxes == 1:
        # The table may take as long to answer as the slot to be free.
        shift = T.call_extern("int32", "tl_attention_page_shift", *table(s), tile.keys + first_row)
        wait_empty(ring, step)
        load_panels(ring, step, 0, first_row, tile.keys + shift, tile, c)
    elif boxes <= FEW_BOXES:
        wait_empty(ring, step)
        for box in T.unroll(boxes):
            key = tile.keys + (first_row + box * c.key_box)
            shift = T.call_extern("int32", "tl_attention_page_shift", *table(s), key)
            load_panels(ring, step, box, first_row, tile.keys + shift, tile, c)
    else:
        load_looked_up(ring, step, boxes, first_row, tile, s, c)


@T.macro
def load_looked_up(ring, step, boxes, first_row, tile, s, c):
    """Starts the TMA loads of so many boxes, of which each lane looks up one beside the others."""
    shifts = T.alloc_var("int32")
    shift = T.alloc_var("int32")
    following = T.alloc_var("int32")
    # The table may take as long to answer as the slot to be free, and a lane as long as a box to be loaded.
    shifts = T.call_extern("int32", "tl_attention_page_shifts", *table(s), tile.keys + first_row, c.key_box)
    shift = T.call_extern("int32", "tl_attention_shift_of", shifts, 0)
    wait_empty(ring, step)
    for box in T.unroll(boxes):
        if boxes > WARP:
            if (box + 1) % WARP == 0:
                key = tile.keys + (first_row + (box + 1) * c.key_box)
                shifts = T.call_extern("int32", "tl_attention_page_shifts", *table(s), key, c.key_box)
        following = T.call_extern("int32", "tl_attention_shift_of", shifts, (box + 1) % WARP)
        load_panels(ring, step, box, first_row, tile.keys + shift, tile, c)
        shift = following


def table(s):
    """Returns what a page is looked up in and by: the block table, its length, the sizes of pages, and their number."""
    given = s.given
    entries = T.address_of(given.BlockTable[0]), given.BlockTable.shape[0]
    return (*entries, given.page_size, given.page_rows, given.pages)


@T.macro
def load_panels(ring, step, box, first_row, keys, tile, c):
    """Starts the TMA loads of those rows of a KV block that lie in one page, panel by panel."""
    width, rows = panel_of(ring.shared.shape[2]), c.key_box
    for panel in T.unroll(ring.shared.shape[2] // width):
        first, end = panel * width, (panel + 1) * width
        T.tma_copy(
            rows_of(ring.source, keys, tile.kv_head, first_row + box * rows, rows, c, end, tile.seq_kv, first),
            ring.shared[slot(ring, step), box * rows : (box + 1) * rows, first:end],
            barrier=ring.full[slot(ring, step)],
            leader_scope_threads=WARP,
            **multicast(c),
        )


def multicast(c):
    """Returns the keyword that makes a TMA load go to all blocks of a cluster, as a dict, {} without a cluster.

    All of them expect the bytes of every load, which the first block issues for all.
    """
    return {"cluster_mask": 2**c.kernel.cluster - 1} if c.kernel.cluster > 1 else {}


@T.macro
def load_q(wg, tile, s, c):
    """Starts the TMA load of a warpgroup's rows of Q, once their buffer is free."""
    T.mbarrier_wait_parity(s.Q.empty[wg], tile.turn % 2 ^ 1)
    if c.tile_heads == 1:
        columns = c.head_dim if c.narrow else None
        T.tma_copy(
            rows_of(s.Q.source, tile.queries, tile.head, tile.first_row + wg * ROWS, ROWS, c, columns, tile.seq_q),
            s.Q.shared[wg, :, :],
            barrier=s.Q.full[wg],
            leader_scope_threads=WARP,
        )
    else:
        for member in T.unroll(c.tile_heads):
            for panel in T.unroll(c.head_dim // panel_of(c.head_dim)):
                load_box(member, panel, wg, tile, s, c)
    T.mbarrier_arrive(s.Q.full[wg])


@T.macro
def clear_idle_rows(s, c):
    """Sets the rows of Q_shared that are no head's to 0, once: what lies there would slow down their warps."""
    for wg in range(c.block_M // ROWS):
        function = f"tl_attention_clear<{c.head_dim}, {ROWS - c.idle_rows}>"
        T.call_extern("handle", function, T.address_of(s.Q.shared[wg, 0, 0]))
    T.fence_proxy_async()


def panel_of(columns):
    """Returns how many columns of a row of so many stand together in shared memory."""
    return 64 if columns % 64 == 0 else 32


@T.macro
def load_box(member, panel, wg, tile, s, c):
    """Starts the TMA load of a panel of a warpgroup's rows of one of its tile's heads."""
    width, head = panel_of(c.head_dim), c.variant.first_head(tile.head, T) + member
    first, end = panel * width, (panel + 1) * width
    T.tma_copy(
        rows_of(s.Q.source, tile.queries, head, tile.first_row + wg * c.box, c.box, c, end, tile.seq_q, first),
        s.Q.shared[wg, member * c.box : (member + 1) * c.box, first:end],
        barrier=s.Q.full[wg],
        leader_scope_threads=WARP,
    )


@T.macro
def store(tile, s, c):
    """Stores acc_o / denominator as a warpgroup's output rows, after features have acted on the rows' totals."""
    if c.softmax.row_sum == "thread":
        T.reduce_sum(s.denominator, s.scores_scale, dim=1)
        if c.features.at("totals"):
            at_totals(totals_of(s.scores_scale, tile, s, c), s, c)
        for i in T.Parallel(ROWS):
            s.scores_scale[i] = inverse(s.scores_scale[i], c)
    else:
        if c.features.at("totals"):
            at_totals(totals_of(s.denominator, tile, s, c), s, c)
        for i in T.Parallel(ROWS):
            s.scores_scale[i] = inverse(s.denominator[i], c)
    if c.features.rescales:
        for i in T.Parallel(ROWS):
            s.scores_scale[i] *= s.scores_max_prev[i]
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        s.acc_o[i, j] *= s.scores_scale[i]
    if not (c.packed and c.parts):
        store_rows(tile, s, c)
    elif tile.result > 0:
        store_at_place(tile, s, c)
    else:
        store_rows(tile, s, c)


@T.macro
def store_rows(tile, s, c):
    """Stores a warpgroup's output rows where its queries lie, or of a part of a batch's keys in its results."""
    if c.parts and not c.packed:
        T.call_extern("handle", *stored_part(store_arguments(s.acc_o.data, tile.first_row, tile, s, c), c))
    elif c.tile_heads > 1:
        store_heads(tile, s, c)
    else:
        STORES[c.kernel.output](tile, s, c)


@T.macro
def store_at_place(tile, s, c):
    """Stores a warpgroup's rows of a part of a packed sequence's keys, in fp32, at the part's own place."""
    T.call_extern("handle", *stored_part(place_of_part(tile, s, c), c))


def inverse(total, c):
    """Returns 1 / total, or 0 for the total of a row that sees no key, as packed sequences and parts of keys have."""
    return T.if_then_else(total == 0, T.float32(0), 1.0 / total) if c.packed or c.parts else 1.0 / total


def totals_of(total, tile, s, c):
    """Returns the Totals of a warpgroup's rows, for features such as sinks and the LSE to act on."""
    return Totals(
        s.scale,
        s.scores_max.data,
        total.data,
        tile.results,
        tile.seq_q,
        tile.head,
        tile.first_row,
        count=ROWS,
        total=total,
        place=tile.result if c.packed else None,
        row_of_part=row_of_part(tile, s, c) if c.packed and c.parts else None,
    )


@T.macro
def store_vector(tile, s, c):
    """Stores a warpgroup's output rows, 16 bytes a lane. Lanes exchange what they hold."""
    T.call_extern(
        "handle",
        store_function(c.columns_v, c.head_dim_v, c),
        *store_arguments(s.acc_o.data, tile.first_row, tile, s, c),
    )


@T.macro
def store_heads(tile, s, c):
    """Stores a warpgroup's rows of each of its tile's heads."""
    name = f"tl_attention_store_of<{is_bf16(c)}, {template(c)}>"
    T.call_extern("handle", name, *store_arguments(s.acc_o.data, tile.first_row, tile, s, c))


def template(c):
    """Returns the template arguments, as text, for an output's columns and the heads in a tile."""
    return f"{c.columns_v}, {c.tile_heads}, {c.box}"


def stored_part(given, c):
    """Returns the device function that stores a warpgroup's rows of a part's output, in fp32, with its arguments."""
    name = (
        f"tl_attention_store_part<{c.columns_v}>" if c.tile_heads == 1 else f"tl_attention_store_part_of<{template(c)}>"
    )
    return (name, *given)


def place_of_part(tile, s, c):
    """Returns the arguments of the device function that stores rows of a part of a packed sequence."""
    place = s.acc_o.data, T.address_of(s.given.Output[row_of_part(tile, s, c), 0]), tile.seq_q - tile.first_row
    return place if c.tile_heads == 1 else (*place, T.int64(c.columns_v), T.int64(c.box * c.columns_v))


def store_function(columns, of_tile, c):
    """Returns the name of the device function that stores rows of so many columns, of a tile that may have more."""
    return f"tl_attention_store{'' if columns == of_tile else '_columns'}<{columns}, {is_bf16(c)}>"


@T.macro
def store_direct(tile, s, c):
    """Stores a warpgroup's output rows, of which each lane stores the elements that it holds, 4 bytes at a time."""
    for i, j in T.Parallel(ROWS, c.head_dim_v):
        if tile.first_row + i < tile.seq_q and (c.columns_v == c.head_dim_v or j < c.columns_v):
            if c.packed:
                s.given.Output[tile.queries + tile.first_row + i, tile.head, j] = s.acc_o[i, j]
            else:
                s.given.Output[tile.queries, tile.head, tile.first_row + i, j] = s.acc_o[i, j]


@T.macro
def store_tma(tile, s, c):
    """Stores a warpgroup's output rows by TMA through its rows of Q_shared, and then frees those."""
    T.copy(s.acc_o, s.Q.shared[tile.wg, :, :])
    T.fence_proxy_async()
    T.sync_threads(OWN + tile.wg, WARPGROUP)
    columns = c.head_dim_v if c.columns_v < c.head_dim_v else None
    T.tma_copy(
        s.Q.shared[tile.wg, :, :],
        rows_of(viewed(s.given.Output, c), tile.queries, tile.head, tile.first_row, ROWS, c, columns, tile.seq_q),
    )
    T.tma_store_wait(0)
    T.sync_threads(OWN + tile.wg, WARPGROUP)
    release_q(tile.wg, s)


STORES = {"direct": store_direct, "vector": store_vector, "tma": store_tma}
