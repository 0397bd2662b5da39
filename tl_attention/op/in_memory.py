"""This module checks how the caller's tensors lie in memory: their layout, their strides, and elements they share.

Everything here takes torch's tensors, on any device, and reads no element of them. Kernels read strides with 64 bits,
and no tensor in memory is as long as the 2^40 bytes that TMA allows, so no stride is too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from tl_attention.errors import InputError, shown

# Addresses and strides are multiples of so many bytes, as TMA and 16-byte copies need.
ALIGNMENT = 16
# The limit of a search for an element that two tensors share. A search that takes longer counts as found.
MOST_WORK = 100_000
DIMENSIONS = {"bhsd": ("batch", "heads", "seq", "head_dim"), "bshd": ("batch", "seq", "heads", "head_dim")}
BHSD = "bhsd"


def check_layout(layout: object) -> None:
    """Raises InputError unless the layout is "bhsd" or "bshd"."""
    if not isinstance(layout, str) or layout not in DIMENSIONS:
        raise InputError(f"attention: layout is {shown(layout)}, expected {' or '.join(map(repr, DIMENSIONS))}")


def as_bhsd(tensor: Any, layout: str) -> Any:
    """Converts a tensor between a layout and "bhsd": for "bshd" a view with dimensions 1 and 2 swapped, else itself.

    So it turns a tensor of the layout into (batch, heads, seq, head_dim), and the other way round.
    """
    return tensor if layout == BHSD else tensor.transpose(1, 2)


def check_out(out: Any, shape: tuple[int, ...], inputs: Mapping[str, Any], layout: str) -> None:
    """Raises InputError unless `out` has this shape, the inputs' dtype and device, and no overlap with them.

    Its own elements must not overlap either. Shapes are (batch, heads, seq, head_dim).
    """
    of_each = (out, out.shape), (next(iter(inputs.values())), shape)
    found, expected = (f"{_in_order(tuple(sizes), layout)} {x.dtype} on {x.device}" for x, sizes in of_each)
    if found != expected:
        raise InputError(f"attention: out is {found}, expected {expected}")
    if overlaps_itself(out):
        raise InputError(
            f"attention: out has strides {_in_order(out.stride(), layout)}, with which its elements may overlap each "
            "other, expected a place for each"
        )
    for name, tensor in inputs.items():
        if share_memory(out, tensor):
            raise InputError(f"attention: out overlaps {name} in memory, expected memory of its own")


def placed(tensors: Mapping[str, Any], layout: str) -> tuple[bool, dict[str, Any]]:
    """Returns (whether any of the tensors is not contiguous, views of all of them with strides that a kernel takes).

    Tensors are (batch, heads, seq, head_dim). Raises InputError for one that no kernel can read, or write,
    where it lies. The error says its name, and its strides as the caller sees them.
    """
    for name, tensor in tensors.items():
        check_place(name, tensor, layout)
    if all(tensor.is_contiguous() for tensor in tensors.values()):
        return False, dict(tensors)
    return True, {name: whole_strides(tensor) for name, tensor in tensors.items()}


def check_place(name: str, tensor: Any, layout: str = BHSD) -> None:
    """Raises InputError unless a kernel can read, or write, the tensor where it lies.

    The error says its name, and its strides as the caller sees them.
    """
    if not tensor.numel():
        return
    unit, offset = ALIGNMENT // tensor.element_size(), tensor.data_ptr() % ALIGNMENT
    strides = f"strides {_in_order(tensor.stride(), layout)}"
    remedy = f"{name}.contiguous()" + (", and copy what it then has" if name == "out" else "")
    if not has_rows(tensor):
        raise InputError(
            f"attention: {name} has {strides}, expected 1 for the last dimension and multiples of {unit} ({ALIGNMENT} "
            f"bytes), not 0, for the others: pass {remedy}"
        )
    if offset:
        which, remedy = (name, f"{name}.clone()") if tensor.is_contiguous() else (f"{name}, with {strides},", remedy)
        raise InputError(
            f"attention: {which} starts {offset} bytes after a multiple of {ALIGNMENT}, expected a multiple: pass {remedy}"
        )


def has_rows(tensor: Any) -> bool:
    """Says whether a tensor's rows are contiguous, and lie apart by multiples of 16 bytes."""
    unit, (*outer, last) = ALIGNMENT // tensor.element_size(), zip(tensor.shape, tensor.stride())
    return (last[0] <= 1 or last[1] == 1) and all(n <= 1 or (s and s % unit == 0) for n, s in outer)


def whole_strides(tensor: Any) -> Any:
    """Returns a view of the tensor in which dimensions of length 1 have the strides of a contiguous tensor.

    The stride of such a dimension says nothing.
    """
    strides = [prod(tensor.shape[dim + 1 :]) if n == 1 else tensor.stride(dim) for dim, n in enumerate(tensor.shape)]
    return tensor.as_strided(tensor.shape, strides)


def _in_order(values: tuple[Any, ...], layout: str) -> tuple[Any, ...]:
    """Returns a tuple of four values for (batch, heads, seq, head_dim), the middle two swapped for layout "bshd"."""
    return values if layout == BHSD else (values[0], values[2], values[1], values[3])


# --- which elements are the same -----------------------------------------------------------------------------------


def overlaps_itself(tensor: Any) -> bool:
    """Says whether two elements of the tensor may share memory.

    They cannot if the tensor's dimensions lie within each other, in any order.
    """
    extent = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length > 1 and stride < extent:
            return True
        extent += (length - 1) * stride if length > 1 else 0
    return False


def share_memory(a: Any, b: Any) -> bool:
    """Says whether two tensors share an element in memory, or the search for one takes too long.

    Parts of one packed tensor that lie side by side share none.
    """
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    (a_first, a_end), (b_first, b_end) = extent(a), extent(b)
    if a_end <= b_first or b_end <= a_first:
        return False
    try:
        return np.shares_memory(_addresses(a), _addresses(b), max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def extent(tensor: Any) -> tuple[int, int]:
    """Returns the address of the first byte of a tensor with elements, and the address behind its last byte."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _addresses(tensor: Any) -> Any:
    """Returns a numpy array that lies where the tensor does, for a search for overlaps, which reads no element."""
    size = tensor.element_size()
    lies = {
        "version": 3,
        "shape": tuple(tensor.shape),
        "typestr": f"|V{size}",
        "data": (tensor.data_ptr(), True),
        "strides": tuple(stride * size for stride in tensor.stride()),
    }
    return np.asarray(SimpleNamespace(__array_interface__=lies))
