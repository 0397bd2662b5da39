"""These kernels compute gradients: a producer warp loads, and warpgroups compute with products in flight.

threadIdx.y is the warpgroup: those that compute, 64 rows each, then the producer's. A thread block takes every n-th
tile. Tiles of `dq` have queries as rows, those of `dkdv` keys; there, `seq_q` and `seq_kv` change places.
"""

from dataclasses import dataclass

import tilelang.language as T

from tl_attention.kernels.backward.packed import numbers_from, numbers_of, work_packed
from tl_attention.kernels.backward.state import STATES
from tl_attention.kernels.shared.device_code import is_bf16
from tl_attention.kernels.shared.iterations import LoopTile, loop
from tl_attention.kernels.shared.rows import first_of_row, kv_head, number_of, rows_of
from tl_attention.kernels.shared.signature import aligned
from tl_attention.kernels.warp_specialized.packed import hand_over_next, list_tiles, receive_rows
from tl_attention.kernels.warp_specialized.tiles import (
    advance,
    begin,
    draw_tile,
    locate,
    named,
    put,
    reset_counter,
    see,
)
from tl_attention.kernels.warp_specialized.transfers import slot, store_function, wait_empty
from tl_attention.problem.warpgroup import ALL_LANES, ROWS, WARP, WARPGROUP


@T.macro
def launch(given, c):
    """Launches the thread blocks; in each, the last warpgroup is the producer and the others compute."""
    warpgroups = c.block_M // ROWS
    if c.packed:
        list_tiles(given, c)
    with T.Kernel(given.workers, threads=(WARPGROUP, warpgroups + 1), prelude=c.prelude) as (block,):
        if c.strided:
            aligned(given, c)
        s = STATES[c.variant.loop](given, c)
        ty = T.get_thread_binding(1)
        if ty == warpgroups:
            T.set_max_nreg(c.kernel.registers[1], 0)
            if T.get_thread_binding(0) < WARP:
                work_of_block(0, block, s, c, is_producer=True)
                if c.kernel.tile_scheduler == "dynamic":
                    reset_counter(s, c)
        else:
            T.set_max_nreg(c.kernel.registers[0], 1)
            # Broadcast, so that ptxas knows it to be the same in all lanes of a warp.
            wg = T.alloc_var("int32")
            wg = T.call_extern("int32", "__shfl_sync", T.uint32(ALL_LANES), ty, 0)
            work_of_block(wg, block, s, c, is_producer=False)


# --- tile after tile -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientTile(LoopTile):
    """A GradientTile is a LoopTile of one head; `part` is the head's number among those that share its accumulators."""

    members: int = 1  # so many heads share them

    def opens(self, t):
        """Returns the condition that block t is the first that its accumulators see."""
        return t == 0 if self.part is None else t + self.part == 0

    @property
    def closes(self):
        """Returns the condition that its head is the last that its accumulators see."""
        return True if self.part is None else self.part == self.members - 1


@T.macro
def variables(s, c):
    """Allocates the variables of a LoopTile, which each next tile of the block uses again, and returns the LoopTile.

    Its lengths get no name here: of keys as rows TileLang would call the kernel's sizes by each other's.
    """
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
    return LoopTile(
        first, blocks, first_row, head, bz, bz, s.seq_q, s.seq_kv, visible, cut, turn=turn, base=base, number=tile
    )


@T.macro
def work_of_block(wg, block, s, c, is_producer):
    """Works on a block's tiles, which are those of packed sequences' list or of a batch."""
    if c.packed:
        work_packed(wg, block, s, c, of_tile, is_producer=is_producer)
    else:
        work(wg, block, s, c, is_producer=is_producer)


@T.macro
def work(wg, block, s, c, is_producer):
    """Works on a block's tiles in turn, as the producer warp if `is_producer`, else as the computing warpgroup `wg`."""
    tile = variables(s, c)
    row_tiles = T.ceildiv(s.seq_q, c.block_M)
    put(tile.number, block)
    put(tile.turn, 0)
    put(tile.base, 0)
    while tile.number < row_tiles * s.heads * s.batch:
        locate(tile, row_tiles, s, c)
        if c.mask.left is not None:
            begin(tile, tile.first_row, s, c)
        if not is_producer:
            see(tile, wg, s, c)
        of_heads(tile, wg, s, c, is_producer=is_producer)
        if is_producer:
            if c.kernel.tile_scheduler == "dynamic":
                draw_tile(tile.turn, s, c)
        else:
            store(gradient_tile(tile, None, s, c, wg), s, c)
        advance(tile, row_tiles, s, c, is_producer=is_producer)
        put(tile.turn, tile.turn + 1)


@T.macro
def of_tile(tile, wg, s, c, is_producer, listed):
    """Loads a tile of packed sequences and hands over the next, or computes its gradients and stores them."""
    of_heads(tile, wg, s, c, is_producer=is_producer, listed=listed)
    if not is_producer:
        receive_rows(tile, wg, s, c)
        store(gradient_tile(tile, None, s, c, wg), s, c)


@T.macro
def of_heads(tile, wg, s, c, is_producer, listed=None):
    """Loads a tile's blocks, or computes what they add to its accumulators, head by head of Q."""
    if c.members == 1:
        of_head(tile, None, wg, s, c, is_producer=is_producer, listed=listed)
    else:
        # The heads of Q that share a tile of keys come one behind the other.
        put(tile.head, tile.head * c.members)
        for member in T.serial(c.members):
            of_head(tile, member, wg, s, c, is_producer=is_producer, listed=listed)
            put(tile.head, tile.head + 1)
        put(tile.head, tile.head - 1)


def gradient_tile(tile, member, s, c, wg=None):
    """Returns the tile with its numbers as named variables, for a warpgroup and a member of its heads."""
    if c.packed:
        own = vars(named(tile, s, c, wg))
    else:
        own = numbers(
            tile.turn, tile.base, tile.first, tile.blocks, tile.first_row, tile.head, tile.queries, tile.visible,
            tile.cut,
        )  # fmt: skip
    return GradientTile(**{**vars(tile), **own, "wg": wg, "part": member, "members": c.members})


@T.macro
def numbers(turn, base, first, blocks, first_row, head, bz, visible, cut):
    """Returns these numbers of a tile, which get names in generated code because they are a macro's parameters.

    The lengths keep theirs: of keys as rows TileLang would call them by each other's.
    """
    return {
        "turn": turn, "base": base, "first": first, "blocks": blocks, "first_row": first_row, "head": head,
        "queries": bz, "keys": bz, "visible": visible, "cut": cut,
    }  # fmt: skip


@T.macro
def of_head(tile, member, wg, s, c, is_producer, listed):
    """Loads one head's blocks of a tile, or computes what they add to the tile's accumulators."""
    if is_producer:
        produce(gradient_tile(tile, member, s, c), listed, s, c)
    else:
        consume(gradient_tile(tile, member, s, c, wg), s, c)
    put(tile.base, tile.base + tile.blocks)


# --- the producer ----------------------------------------------------------------------------------------------------


@T.macro
def produce(tile, listed, s, c):
    """Loads one head's blocks, and what is resident behind a tile's first block: its buffers are free later.

    Of packed sequences the next tile is handed over there.
    """
    for j in T.serial(tile.blocks):
        for name in c.loop.loads:
            load(getattr(s, c.ring_of[name]), j, tile, s, c)
        if tile.opens(j):
            for wg in range(c.block_M // ROWS):
                for name in c.resident_of.values():
                    load_resident(getattr(s, name), wg, tile, s, c)
            if c.packed:
                hand_over_next(listed, tile.turn + 1, s, c)


@T.macro
def load(ring, j, tile, s, c):
    """Starts the TMA loads of a tile's j-th block, and of its row vector if the ring has one, once a slot is free."""
    step, first = tile.base + j, tile.kv_block(j) * c.block_N
    head = head_of(ring, tile, s, c)
    wait_empty(ring, step)
    T.tma_copy(
        rows_of(ring.source, tile.keys, head, first, c.block_N, c, ring.columns, tile.seq_kv),
        ring.shared[slot(ring, step), :, :],
        barrier=ring.full[slot(ring, step)],
        leader_scope_threads=WARP,
    )
    if ring.vector is not None:
        T.tma_copy(
            numbers_from(ring.numbers, head, first, tile, c),
            ring.vector[slot(ring, step), :],
            barrier=ring.full[slot(ring, step)],
            leader_scope_threads=WARP,
        )
    T.mbarrier_arrive(ring.full[slot(ring, step)])


@T.macro
def load_resident(ring, wg, tile, s, c):
    """Starts the TMA load of a warpgroup's rows of a resident tile, once their buffer is free."""
    T.mbarrier_wait_parity(ring.empty[wg], tile.turn % 2 ^ 1)
    first = tile.first_row + wg * ROWS
    T.tma_copy(
        rows_of(ring.source, tile.queries, head_of(ring, tile, s, c), first, ROWS, c, ring.columns, tile.seq_q),
        ring.shared[wg, :, :],
        barrier=ring.full[wg],
        leader_scope_threads=WARP,
    )
    T.mbarrier_arrive(ring.full[wg])


def head_of(ring, tile, s, c):
    """Returns the head of a ring's tensor that belongs to a tile's head, which is a head of Q."""
    return kv_head(tile.head, s.given, c) if ring in (s.K, s.V) else tile.head


# --- the warpgroups that compute -------------------------------------------------------------------------------------


@T.macro
def consume(tile, s, c):
    """Computes what a head's blocks add to a warpgroup's accumulators, once its resident rows have arrived."""
    if c.variant.loop == "dq":
        row_facts(tile, s, c)
    for name in c.resident_of.values():
        T.mbarrier_wait_parity(getattr(s, name).full[tile.wg], tile.turn % 2)
    loop(tile, s, c)


@T.macro
def row_facts(tile, s, c):
    """Sets LSE and D of a warpgroup's rows, and stores them for the kernel of dK and dV."""
    given, row = s.given, tile.first_row
    T.fill(s.row_lse, 0)
    T.fill(s.row_d, 0)
    T.call_extern(
        "handle",
        f"tl_attention_row_facts<{c.columns_v}, {is_bf16(c)}>",
        s.row_lse.data,
        s.row_d.data,
        T.address_of(first_of_row(given.O, tile.queries, tile.head, row, c)),
        T.address_of(first_of_row(given.dO, tile.queries, tile.head, row, c)),
        T.address_of(number_of(given.LSE, tile.queries, tile.head, row, c)),
        T.address_of(given.RowLSE[numbers_of(tile.queries, tile.head, row, tile, c)]),
        T.address_of(given.RowD[numbers_of(tile.queries, tile.head, row, tile, c)]),
        *address_of_d_lse(row, tile, s, c),
        tile.seq_q - row,
        *row_strides(c, given.O, given.dO),
    )


def row_strides(c, *tensors):
    """Returns how many elements rows of each tensor lie apart, or nothing if the kernel knows."""
    return [tensor.strides[0 if c.packed else 2] for tensor in tensors] if c.strided else []


def address_of_d_lse(row, tile, s, c):
    """Returns an argument for the LSE's gradients from a row on, or none if the kernel does not take them."""
    return (
        [T.address_of(number_of(s.given.dLSE, tile.queries, tile.head, row, c))] if "dLSE" in c.variant.optional else []
    )


@T.macro
def store(tile, s, c):
    """Stores a warpgroup's rows of the loop's gradients, of which those of Q and K are scaled."""
    if c.variant.loop == "dq":
        store_rows(s.acc_dq, s.given.dQ, tile.head, c.head_dim, True, tile, s, c)
    else:
        # The list names heads of K.
        head = tile.head if c.packed else kv_head(tile.head, s.given, c)
        store_rows(s.acc_dk, s.given.dK, head, c.head_dim, True, tile, s, c)
        store_rows(s.acc_dv, s.given.dV, head, c.head_dim_v, False, tile, s, c)


@T.macro
def store_rows(accumulator, tensor, head, columns, scaled, tile, s, c):
    """Stores a warpgroup's rows of an accumulator, 16 bytes a lane, times the softmax scale if `scaled`."""
    if scaled:
        for i, j in T.Parallel(ROWS, columns):
            accumulator[i, j] *= s.given.softmax_scale
    T.call_extern(
        "handle",
        store_function(tensor.shape[-1], columns, c),
        accumulator.data,
        T.address_of(first_of_row(tensor, tile.queries, head, tile.first_row, c)),
        tile.seq_q - tile.first_row,
        *row_strides(c, tensor),
    )
