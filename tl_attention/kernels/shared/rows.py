"""Kernels learn here where rows of a tensor lie, and their proofs in `codeproof/tiles/tensors.py`.

Every tensor is (batch, heads, rows, columns), whatever its strides. Packed sequences lie one behind the other in
tensors (rows, heads, columns).
"""

import tilelang.language as T

from tl_attention.problem.warpgroup import ROWS

# A ragged view has dimensions so long that they end no sequence, and a stride of 2^34 elements, which wraps an address.
RAGGED_ROWS, RAGGED_ENDS, WRAP = 2**30, 0x7FFF0000, 2**34


def ragged(tensor):
    """Returns a view of a packed tensor (rows, heads, columns) of which a box of TMA ends with its sequence.

    Row r of a sequence is in row 2^30 - length + r of the view, which has 2^30 rows: a box is filled with 0 behind
    them, and stores nothing there. The rows are counted from the sequence's end, and from 2^30 rows before that: the
    last dimension adds 2^64 bytes less 2^30 rows. Triton's tools/ragged_tma.py has the idea.
    """
    _, heads, columns = tensor.shape
    row, head, _ = tensor.strides
    shape = (RAGGED_ENDS, RAGGED_ENDS, heads, RAGGED_ROWS, columns)
    return T.StridedTensor(shape, (WRAP - row, row, head, row, 1), tensor.dtype, data=tensor.data)


def viewed(tensor, c):
    """Returns the view of a tensor that TMA's boxes are taken from, which is ragged for packed sequences."""
    return ragged(tensor) if c.packed else tensor


def rows_of(tensor, sequence, head, first, count, c, columns=None, length=None, from_column=None):
    """Returns the slice of `count` rows of a sequence's head from row `first` on, with its columns up to `columns`.

    `sequence` is its batch; or where it begins, if it is packed, has `length` rows, and the tensor is a ragged view.
    `columns` is given for a tile that is wider than the tensor. TMA and the copies of TileLang fill columns and rows
    beyond the tensor's with 0, and store none.
    """
    if c.packed:
        first = RAGGED_ROWS - length + first
        return tensor[RAGGED_ROWS, sequence + length, head, first : first + count, from_column:columns]
    return tensor[sequence, head, first : first + count, from_column:columns]


def kv_head(head, given, c):
    """Returns the head of K and V that belongs to a tile's head, which is a head of Q unless a tile has several."""
    if c.group is None:
        return kv_head_of(head, given.group)
    return head if c.group == c.tile_heads else head // c.variant.subgroups


@T.macro
def kv_head_of(head, group):
    """Returns a variable with a head's number divided by `group`, so that no loop over keys divides."""
    kv_head = T.alloc_var("int32")
    kv_head = T.truncdiv(head, group)
    return kv_head  # noqa: RET504


def query_of(row, c):
    """Returns the number of a warpgroup's row among the rows of the same head in its tile."""
    return row if c.tile_heads == 1 else row % c.box


def first_of_row(tensor, sequence, head, row, c):
    """Returns the first element of a row of a sequence's head, which lies in a packed tensor or in one with a batch."""
    if c.packed:
        return tensor[sequence + row, head, 0]
    return tensor[sequence, head, row, 0]


def strides_of(tensor, c):
    """Returns how many elements a row and a head of an output have from one to the next, as int64."""
    if c.packed:
        return tensor.strides[0], tensor.strides[1]
    if c.strided and not c.parts:
        return tensor.strides[2], tensor.strides[1]
    return T.int64(c.columns_v), T.int64(c.columns_v) * tensor.shape[2]


def number_of(tensor, sequence, head, row, c):
    """Returns the element of a tensor that has one number for each row of a sequence's head, such as the LSE."""
    if c.packed:
        return tensor[head, sequence + row]
    return tensor[sequence, head, row]


def whole_output(given, c):
    """Returns the output of tiles with all keys: for packed sequences in parts, the one that parts are merged into."""
    return given.Merged if c.packed and c.parts else given.Output


def store_arguments(registers, row, tile, s, c):
    """Returns the arguments of the device function that stores output rows, from `row` on, out of these registers."""
    output = whole_output(s.given, c)
    head = tile.head if c.tile_heads == 1 else c.variant.first_head(tile.head, T)
    first = first_of_row(output, tile.results, head, row, c)
    place = T.address_of(first), tile.seq_q - row
    if c.tile_heads > 1:
        return (registers, *place, *strides_of(output, c))
    if c.strided and (c.packed or not c.parts):
        return (registers, *place, output.strides[0 if c.packed else 2])
    return (registers, *place)


def row_of_part(tile, s, c):
    """Returns the first of a warpgroup's rows among results of parts, of which a packed tile has a place per head."""
    return ((tile.result - 1) * s.heads + tile.head) * c.block_M + tile.wg * ROWS
