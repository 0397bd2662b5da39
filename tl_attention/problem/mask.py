"""A mask says which keys a query sees."""

import operator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args

from tl_attention.errors import InputError, shown


def ceildiv(a: Any, b: Any) -> Any:
    """Returns the quotient rounded up, of integers and of arrays of integers."""
    return -(-a // b)


# Python's arithmetic of integers, under the names that a mask asks for.
INTEGERS = SimpleNamespace(min=min, max=max, ceildiv=ceildiv, Or=operator.or_)
# The same of torch's tensors, as far as which elements are hidden needs it.
TENSORS = SimpleNamespace(min=lambda number, tensor: tensor.clamp(max=number), Or=operator.or_)


# The parameters of a kernel that are the sides of its window.
WINDOW = ("window_left", "window_right")


@dataclass(frozen=True)
class Mask:
    """A Mask lets a query see the keys from `left` before its own key to `right` after it; None is an open side.

    Query i stands at key i + past_len, past_len = seq_kv - seq_q: queries and keys end together.

    For a tile with queries at first_key to end_key - 1, the KV blocks from `first_block` to `end_block` are needed, and
    of these only the blocks from `first_whole` to `end_whole` need no mask.

    The methods work on Python ints, torch tensors and TileLang expressions; `ops` supplies min, max, ceildiv and Or for
    that kind of number, as `tilelang.language` does for its own. `own_key` is where a query stands; `key` counts from
    key `first` on.
    """

    left: int | None = None  # keys that a query sees before its own
    right: int | None = None  # and after it

    @property
    def suffix(self) -> str:
        """Returns the mask as text to put behind a dtype, such as ` causal`; it is empty for a full mask."""
        if self.names:
            return f" {' and '.join(self.names)}"
        return {FULL: "", CAUSAL: " causal"}.get(self, f" window {self.left, self.right}")

    @property
    def runtime(self) -> "Mask":
        """Returns the mask of a kernel that reads a window's sides at run time, with its parameters' names as sides."""
        if not is_window(self):
            return self
        return Mask(*(None if side is None else cast(Any, name) for name, side in zip(WINDOW, (self.left, self.right))))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the kernel's parameters that stand for a side."""
        sides: tuple[Any, ...] = (self.left, self.right)
        return tuple(side for side in sides if isinstance(side, str))

    def values(self, names: tuple[str, ...]) -> dict[str, int]:
        """Returns the sides of a window by these names of a kernel's parameters."""
        sides = zip(WINDOW, (self.left, self.right))
        return {name: side for name, side in sides if name in names and side is not None}

    @property
    def grows(self) -> bool:
        """Returns True if later queries see more keys, as under a causal mask."""
        return self.left is None and self.right is not None

    @property
    def transposed(self) -> "Mask":
        """Returns the mask with queries and keys exchanged: which queries a key is hidden from."""
        return Mask(self.right, self.left)

    def hidden(self, key: Any, own_key: Any, seq_kv: Any, ops: Any, first: Any = 0) -> Any:
        """Returns True where a key, counted from key `first` on, is hidden from the query that stands at `own_key`."""
        end = seq_kv if self.right is None else ops.min(seq_kv, own_key + 1 + self.right)
        too_late = key >= end - first
        return too_late if self.left is None else ops.Or(too_late, self.behind(key, own_key, first))

    def behind(self, key: Any, own_key: Any, first: Any = 0) -> Any:
        """Returns True where a key, counted from key `first` on, lies before all that the query at `own_key` sees."""
        return key < own_key - self.left - first

    def first_block(self, first_key: Any, block_N: Any, ops: Any) -> Any:
        """Returns the index of the first KV block that a query at key `first_key` or later reaches back to."""
        return 0 if self.left is None else ops.max(first_key - self.left, 0) // block_N

    def end_block(self, blocks: Any, end_key: Any, block_N: Any, ops: Any) -> Any:
        """Returns the index after the last KV block that a query before key `end_key` reaches, at most `blocks`."""
        return blocks if self.right is None else ops.min(blocks, ops.ceildiv(end_key + self.right, block_N))

    def first_whole(self, end_key: Any, block_N: Any, ops: Any) -> Any:
        """Returns the index of the first KV block whose first key all queries that stand before `end_key` reach."""
        return 0 if self.left is None else ops.ceildiv(ops.max(end_key - 1 - self.left, 0), block_N)

    def end_whole(self, blocks: Any, first_key: Any, block_N: Any, ops: Any) -> Any:
        """Returns the index after the last KV block whose last key all queries at key `first_key` or later reach.

        It is at most `blocks`, which counts full blocks.
        """
        return blocks if self.right is None else ops.min(blocks, (first_key + 1 + self.right) // block_N)

    def rows_before(self, seq_q: int, seq_kv: int) -> int:
        """Returns how many queries see no key because they stand too far before the first key."""
        return 0 if self.right is None else max(0, seq_q - seq_kv - self.right)

    def pairs(self, seq_q: int, seq_kv: int) -> int:
        """Returns how many (query, key) pairs are not hidden."""
        past_len = seq_kv - seq_q

        def before(key: int) -> int:
            """Counts the pairs with a key before `key` for query 0, before `key` + 1 for query 1, and so on."""
            return _sum_from_0(key, seq_q) - _sum_from_0(key - seq_kv, seq_q)

        end = seq_q * seq_kv if self.right is None else before(past_len + 1 + self.right)
        return end - (0 if self.left is None else before(past_len - self.left))


FULL = Mask()
CAUSAL = Mask(right=0)


def _sum_from_0(first: int, count: int) -> int:
    """Returns max(first, 0) + max(first + 1, 0) + ..., `count` terms."""
    last = first + count - 1
    return (max(last, 0) * max(last + 1, 0) - max(first - 1, 0) * max(first, 0)) // 2


# --- windows as users give them -----------------------------------------------------------------------------------

OPEN = -1
# Of a side: PyTorch's operators take integers of 64 bits.
WIDEST = 2**63 - 1
# Of masks: a causal window hides later keys too, as causal with window_size (left, -1) does.
MaskKind = Literal["full", "causal", "window", "causal_window"]
MASK_KINDS: tuple[MaskKind, ...] = get_args(MaskKind)
# How a window is written, as `parse_window` reads it.
WINDOW_TEXT = "LEFT,RIGHT: keys that a query sees before and after its own, -1 is open"


def masked(causal: bool, window: object = (OPEN, OPEN)) -> Mask:
    """Returns the Mask of the keys that `causal` and `window` both allow; a side of -1 is open. Raises InputError."""
    if not isinstance(window, (tuple, list)) or len(window) != 2 or not all(map(_is_side, window)):
        expected = "two integers (left, right) of at least -1 and below 2^63; -1 is open"
        raise InputError(f"window_size is {shown(window)}, expected {expected}")
    left, right = (None if side == OPEN else side for side in window)
    return Mask(left, 0 if causal else right)


def kind_of(mask: Mask) -> MaskKind:
    """Returns the kind of a mask, which is full, causal, window or causal_window."""
    if mask == FULL:
        return "full"
    if mask == CAUSAL:
        return "causal"
    return "causal_window" if mask.right == 0 else "window"


def sides(mask: Mask) -> list[int]:
    """Returns a mask's window as [left, right], with -1 for an open side."""
    return [OPEN if side is None else side for side in (mask.left, mask.right)]


def is_window(mask: Mask) -> bool:
    """Says whether a mask is neither full nor causal."""
    return mask not in (FULL, CAUSAL)


def _is_side(side: object) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and OPEN <= side <= WIDEST


def parse_window(text: str) -> tuple[int, int]:
    """Returns the two integers that a text such as `1023,0` names. Raises InputError for any other text."""
    try:
        left, right = map(int, text.split(","))
    except ValueError:
        raise InputError(f"--window: {text[:40]!r} is none, expected LEFT,RIGHT such as 1024,0") from None
    return left, right


def shortened(mask: Mask, most: int) -> Mask:
    """Returns the mask with no side longer than `most`: of sequences that are no longer it hides the same keys."""
    return Mask(*(None if side is None else min(side, most) for side in (mask.left, mask.right)))


def fitted(mask: Mask, seq_q: int, seq_kv: int) -> Mask:
    """Returns the mask without the sides that hide no key at these sizes, whose kernel is faster.

    A right side of 0 stays.
    """
    left = None if mask.left is not None and mask.left >= seq_kv - 1 else mask.left
    right = None if mask.right and mask.right >= seq_q - 1 else mask.right
    return Mask(left, right)
