"""Scalars of other libraries become Python's own, so that a call has a plan and the checks see one kind of number."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

# Python's classes for NumPy's kinds of scalars; that for item() of a longdouble would be its own.
PYTHONS = {"b": bool, "i": int, "u": int, "f": float}


def plain(value: Any) -> Any:
    """Returns NumPy's scalar, or array without dimensions, as Python's bool, int or float, and other values unchanged.

    A window is returned with such sides.
    """
    if isinstance(value, (tuple, list)):
        sides = tuple(_scalar(side) for side in value)
        return sides if any(new is not old for new, old in zip(sides, value)) else value
    return _scalar(value)


def _scalar(value: Any) -> Any:
    # Dynamo has an array for each scalar of NumPy.
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 and value.dtype.kind in PYTHONS:
        return PYTHONS[value.dtype.kind](value)
    return value


def length(value: Any) -> Any:
    """Returns what `plain` does, and the number in a tensor without dimensions on the CPU as Python's.

    A tensor on a GPU is returned as it is: to read it would wait for the GPU. FlashAttention's functions do wait.
    """
    if type(value) is Tensor and value.dim() == 0 and value.device.type == "cpu":
        return value.item()
    return plain(value)
