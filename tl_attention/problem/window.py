"""Windows as users give them."""

from __future__ import annotations

from typing import Literal, get_args

from tl_attention.errors import InputError, shown
from tl_attention.problem.mask import CAUSAL, FULL, Mask

OPEN = -1
# Of a side: PyTorch's operators take integers of 64 bits.
WIDEST = 2**63 - 1
# Of masks: a causal window hides later keys too, as causal with window_size (left, -1) does.
MaskKind = Literal["full", "causal", "window", "causal_window"]
MASK_KINDS: tuple[MaskKind, ...] = get_args(MaskKind)
# How a window is written, as `parse_window` reads it.
WINDOW_TEXT = "LEFT,RIGHT: keys that a query sees before and after its own, -1 is open"


def masked(causal: bool, window: object = (OPEN, OPEN)) -> Mask:
    """The mask of these arguments, of which it is the intersection: -1 is an open side. Raises InputError."""
    if not isinstance(window, (tuple, list)) or len(window) != 2 or not all(map(_is_side, window)):
        expected = "two integers (left, right) of at least -1 and below 2^63; -1 is open"
        raise InputError(f"window_size is {shown(window)}, expected {expected}")
    left, right = (None if side == OPEN else side for side in window)
    return Mask(left, 0 if causal else right)


def kind_of(mask: Mask) -> MaskKind:
    """Which of them a mask is."""
    if mask == FULL:
        return "full"
    if mask == CAUSAL:
        return "causal"
    return "causal_window" if mask.right == 0 else "window"


def sides(mask: Mask) -> list[int]:
    """The window of a mask, as `masked` takes it."""
    return [OPEN if side is None else side for side in (mask.left, mask.right)]


def is_window(mask: Mask) -> bool:
    """Whether it is neither full nor causal."""
    return mask not in (FULL, CAUSAL)


def _is_side(side: object) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and OPEN <= side <= WIDEST


def parse_window(text: str) -> tuple[int, ...]:
    """The sides that a text in the form of WINDOW_TEXT names. Raises InputError."""
    try:
        return tuple(int(side) for side in text.split(","))
    except ValueError:
        raise InputError(f"window: {text[:40]!r} is none, expected {WINDOW_TEXT}, such as 1023,0") from None


def fitted(mask: Mask, seq_q: int, seq_kv: int) -> Mask:
    """The mask without the sides that hide no key at these sizes, so that they are not compiled in; right 0 stays."""
    left = None if mask.left is not None and mask.left >= seq_kv - 1 else mask.left
    right = None if mask.right and mask.right >= seq_q - 1 else mask.right
    return Mask(left, right)
