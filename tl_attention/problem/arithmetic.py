"""Python's arithmetic of integers, under the names that a mask asks for."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any


def ceildiv(a: Any, b: Any) -> Any:
    """The quotient rounded up, of integers and of arrays of them."""
    return -(-a // b)


INTEGERS = SimpleNamespace(min=min, max=max, ceildiv=ceildiv, Or=operator.or_)
