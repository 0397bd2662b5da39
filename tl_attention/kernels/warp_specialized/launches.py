"""A launch may have two small kernels beside the main one: one before it lists row tiles, one behind it merges parts.

What they call, and how many thread blocks they have, is stated here for the kernel and for the proof. Both give the
tensors that the kernel takes, `given`, and `ops`, which has TileLang's names for what is done with these. The proof's
are texts, or numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tl_attention.kernels.shared.device_code import is_bf16
from tl_attention.problem.mask import WINDOW, sides
from tl_attention.problem.packed import LEAST_BLOCKS, MERGE_LISTED, MOST_TILES, UNEVEN
from tl_attention.problem.tiling import TILE, taper
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import WARP
from tl_attention.schedule.loop.loops import LOOPS

# Threads of a block of each kernel, and how many parts a warp merges at once.
LISTING, MERGING, AT_ONCE = 512, 256, 8


class DeviceCall(NamedTuple):
    """A DeviceCall is a call of a device function: its name, with the template's arguments, and its arguments."""

    function: str
    arguments: tuple[Any, ...]


def listing_call(given: Any, variant: Variant, tile: tuple[int, int, int], ops: Any) -> DeviceCall:
    """Returns the call that writes the list of tiles, from where sequences begin and how many rows of each count.

    A tile is (block_M, thread blocks of a cluster, block_N). Where a loop's tiles have keys as rows, queries and keys
    change places.
    """
    of_keys = LOOPS[variant.loop].rows == "keys"
    order = slice(None, None, -1 if of_keys else 1)
    offsets, used = (given.CuSeqlensQ, given.CuSeqlensK)[order], (given.SeqUsedQ, given.SeqUsedK)[order]
    of_window, read = [*zip(WINDOW, sides(variant.mask))][order], variant.mask.names
    window = (getattr(given, name) if name in read else side for name, side in of_window)
    # The table has so many keys, which lie in pages.
    keys = given.BlockTable.shape[0] * given.page_size if variant.key_box else given.K.shape[0]
    counts = (tensor.shape[0] for tensor in (offsets[0], *used))
    lengths = *counts, *(given.Q.shape[0], keys)[order]
    results = given.Output.shape[0] if variant.parts else 0
    block_M, cluster, block_N = tile
    of_tile = variant.rows_of(block_M) * cluster, cluster, block_N, block_M, taper(variant.tile_dim, variant.tile_dim_v)
    # In 32nds of the time of a KV block.
    times = (round(32 * time) for time in (TILE, MERGE_LISTED, UNEVEN))
    split = (LEAST_BLOCKS, MOST_TILES, *times) if variant.parts else (0,) * 5
    template = ", ".join(map(str, (*of_tile, *split)))
    heads = variant.heads_of_tiles(given.Q.shape[1], ops.truncdiv)
    if of_keys and variant.some_group > 1:
        heads = ops.truncdiv(heads, variant.some_group)
    room = heads, results, ops.address_of(given.Tiles[0])
    arguments = (*(tensor.data for tensor in (*offsets, *used)), *window, *lengths, given.workers, *room)
    return DeviceCall(f"tl_attention_list_tiles<{template}>", arguments)


def merging_call(given: Any, variant: Variant, block_M: int, ops: Any) -> DeviceCall:
    """Returns the call that merges the parts of all rows of a batch, or of the listed rows of packed sequences."""
    columns = f"{variant.head_dim_v}, {is_bf16(variant)}"
    merged = (ops.address_of(tensor[(0,) * len(tensor.shape)]) for tensor in (given.Merged, given.MergedLSE))
    # A sink counts once: no part adds it.
    sinks = () if given.Sinks is None else (given.Sinks.data,)
    of_parts, strides = (given.Output.data, given.LSE.data, *merged), row_strides(given.Merged, variant, ops)
    if variant.packed:
        # Rows of one head lie as if its group had no other.
        group = 1 if variant.tile_heads == 1 else variant.group
        template = f"{columns}, {block_M}, {group}, {variant.tile_heads}, {variant.box}"
        listed = given.Tiles.data, given.Q.shape[1], given.Q.shape[0]
        return DeviceCall(f"tl_attention_merge_listed<{template}>", (*of_parts, *listed, *strides, *sinks))
    sizes = number_of_parts(given, ops), number_of_rows(given), given.Q.shape[1], given.Q.shape[2]
    return DeviceCall(f"tl_attention_merge<{columns}>", (*of_parts, *sizes, *strides, *sinks))


def merging_blocks(given: Any, variant: Variant, blocks_per_sm: int, ops: Any) -> Any:
    """Returns how many blocks merge the parts of rows.

    For a batch, the more parts there are, the fewer rows a block has, from eight to one. For packed sequences the host
    knows neither, and the blocks fill the GPU.
    """
    if variant.packed:
        return ops.truncdiv(4 * given.workers, blocks_per_sm)
    rows, parts = number_of_rows(given), number_of_parts(given, ops)
    of_block = 1 + ops.truncdiv(MERGING // WARP - 1, ops.ceildiv(parts, AT_ONCE))
    return ops.truncdiv(rows + of_block - 1, of_block)


def number_of_rows(given: Any) -> Any:
    """Returns how many rows a batch's results of all keys have."""
    batch, heads, seq_q, _ = given.Q.shape
    return batch * heads * seq_q


def number_of_parts(given: Any, ops: Any) -> Any:
    """Returns in how many parts a batch's keys are computed, whose results are those of more batches."""
    return ops.truncdiv(given.Output.shape[0], given.Q.shape[0])


def row_strides(tensor: Any, variant: Variant, ops: Any) -> tuple[Any, ...]:
    """Returns how many elements a batch, a head and a row of a tensor have from one to the next, as int64.

    A packed tensor has no batch.
    """
    if variant.packed:
        return tensor.strides[1], tensor.strides[0]
    if variant.strided:
        return tuple(tensor.strides[:3])
    _, heads, rows, columns = tensor.shape
    return (ops.int64(1) * heads * rows * columns, ops.int64(1) * rows * columns, ops.int64(1) * columns)
