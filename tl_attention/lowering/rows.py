"""Kernels learn here where rows of a tensor lie, and their proofs in `proof/code/tensors.py`.

Every tensor is (batch, heads, rows, columns), whatever its strides.
"""

import tilelang.language as T


def rows_of(tensor, batch, head, first, count, columns=None):
    """Returns the slice of `count` rows of one head from row `first` on, with all columns or the first `columns`.

    `columns` is given for a tile that is wider than the tensor. TMA and the copies of TileLang fill columns and rows
    beyond the tensor's with 0, and store none.
    """
    if columns is None:
        return tensor[batch, head, first : first + count, :]
    return tensor[batch, head, first : first + count, 0:columns]


def kv_head(head, c):
    """Returns the number of the head of K and V that belongs to this head of Q."""
    return head if c.group == 1 else head // c.group


def element_of(tensor, batch, head, row, column=0):
    """Returns the element of a (batch, heads, rows, columns) tensor at these indices."""
    return tensor[batch, head, row, column]


def stored(registers, row, tile, s, c):
    """Returns the arguments of the device function that stores output rows, from `row` on, out of these registers."""
    place = T.address_of(element_of(s.given.Output, tile.batch, tile.head, row)), s.seq_q - row
    return (registers, *place, s.given.Output.strides[2]) if c.strided else (registers, *place)
