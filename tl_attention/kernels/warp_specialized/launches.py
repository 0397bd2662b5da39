"""Two small kernels may stand beside the main one in its launch: one before it lists row tiles, one behind it merges parts.

What they call, and how many thread blocks they have, is stated here for the kernel and for the proof. Both give the
tensors that the kernel takes, `given`, and `ops`, which has TileLang's names for what is done with these. The proof's are
texts, or numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tl_attention.kernels.shared.device_code import is_bf16
from tl_attention.problem.mask import WINDOW, sides
from tl_attention.problem.variant import Variant
from tl_attention.problem.warpgroup import WARP

# Threads of a block of each kernel, and how many parts a warp merges at once.
LISTING, MERGING, AT_ONCE = 1024, 256, 8


class Call(NamedTuple):
    """A Call is the call of a device function: its name, with what its template is for, and its arguments."""

    function: str
    arguments: tuple[Any, ...]


def listing_call(given: Any, variant: Variant, tile: tuple[int, int, int], ops: Any) -> Call:
    """Returns the call that writes the list of tiles, from where sequences begin and how many rows of each count.

    A tile is (block_M, thread blocks of a cluster, block_N).
    """
    offsets = given.CuSeqlensQ, given.CuSeqlensK, given.SeqUsedQ, given.SeqUsedK
    of_window, read = zip(WINDOW, sides(variant.mask)), variant.mask.names
    window = (getattr(given, name) if name in read else side for name, side in of_window)
    bounds, used_q, used_k = (tensor.shape[0] for tensor in (given.CuSeqlensQ, given.SeqUsedQ, given.SeqUsedK))
    lengths = bounds, used_q, used_k, given.Q.shape[0], given.K.shape[0]
    room = number_of_parts(given, variant, ops), given.Tiles.shape[0], ops.address_of(given.Tiles[0])
    template = ", ".join(map(str, (*tile, variant.row_heads)))
    arguments = (*(tensor.data for tensor in offsets), *window, *lengths, *room)
    return Call(f"tl_attention_list_tiles<{template}>", arguments)


def gathering_call(given: Any, variant: Variant, ops: Any) -> Call:
    """Returns the call that copies the caller's queries, and marks all rows as no sequence's."""
    rows = (ops.address_of(given.Queries[0, 0, 0]), *given.Queries.strides[:2], ops.address_of(given.Q[0, 0, 0]))
    arguments = (*rows, ops.address_of(given.LSE[0, 0]), *given.Q.shape[:2])
    return Call(f"tl_attention_gather_rows<{variant.head_dim}, {variant.row_heads}>", arguments)


def gathering_blocks(rows: Any, heads: Any, variant: Variant, ops: Any) -> Any:
    """Returns how many blocks copy the rows of queries, 16 bytes a thread, where rows of heads lie behind each other."""
    return ops.ceildiv(rows * heads, LISTING // (variant.head_dim // 8))


def merging_call(given: Any, variant: Variant, ops: Any) -> Call:
    """Returns the call that merges a row's parts; packed rows may be those of several heads."""
    template = f"{variant.head_dim_v}, {is_bf16(variant)}" + (f", {variant.row_heads}" if variant.packed else "")
    merged = (ops.address_of(tensor[(0,) * len(tensor.shape)]) for tensor in (given.Merged, given.MergedLSE))
    heads, seq_q = given.Q.shape[1], given.Q.shape[0 if variant.packed else 2]
    sizes = number_of_parts(given, variant, ops), number_of_rows(given, variant), heads, seq_q
    # A sink counts once: no part adds it.
    sinks = () if given.Sinks is None else (given.Sinks.data, given.Sinks.shape[0])
    strides = row_strides(given.Merged, variant, ops)
    arguments = (given.Output.data, given.LSE.data, *merged, *sizes, *strides, *sinks)
    return Call(f"tl_attention_merge<{template}>", arguments)


def merging_blocks(rows: Any, parts: Any, ops: Any) -> Any:
    """Returns how many blocks merge the parts of rows. The more parts, the fewer rows has a block, from eight to one."""
    of_block = 1 + ops.truncdiv(MERGING // WARP - 1, ops.ceildiv(parts, AT_ONCE))
    return ops.truncdiv(rows + of_block - 1, of_block)


def number_of_rows(given: Any, variant: Variant) -> Any:
    """Returns how many rows the results of all keys have."""
    rows = given.Q.shape[:2] if variant.packed else given.Q.shape[:3]
    return rows[1] * rows[0] if variant.packed else rows[0] * rows[1] * rows[2]


def number_of_parts(given: Any, variant: Variant, ops: Any) -> Any:
    """Returns in how many parts keys are computed: results are those of more batches, of packed sequences of more heads."""
    return ops.truncdiv(given.Output.shape[0], given.Q.shape[1 if variant.packed else 0]) if variant.parts else 1


def row_strides(tensor: Any, variant: Variant, ops: Any) -> tuple[Any, ...]:
    """Returns how many elements a batch, a head and a row of a tensor have from one to the next, as int64."""
    if variant.packed:
        return ops.int64(0), tensor.strides[1], tensor.strides[0]
    if variant.strided:
        return tuple(tensor.strides[:3])
    _, heads, rows, columns = tensor.shape
    return (ops.int64(1) * heads * rows * columns, ops.int64(1) * rows * columns, ops.int64(1) * columns)
