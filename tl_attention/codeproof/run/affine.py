"""Forms say how an expression depends on what a loop counts, so that a few periods stand for all iterations.

What is counted - loops' counters, and what is carried from tile to tile - may occur affinely, or modulo a period.
Expressions are evaluated on Forms by the same code that evaluates them on numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from tl_attention.codeproof.read.expression import Expression

# The kinds of forms.
INVARIANT, AFFINE, FLOORED, PERIODIC, THRESHOLD, OTHER = (
    "invariant",
    "affine",
    "floored",
    "periodic",
    "threshold",
    "other",
)

Core = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class Form:
    """A Form says how an expression depends on counted variables, such as loop counters, affinely or with a period.

    Its core is a sum of counted variables times coefficients, None where unknown.

    invariant   no counted variable; `value` where the expression is a number in the code
    affine      the core, times or plus what is invariant
    floored     something affine in the core, divided by `period` and rounded
    periodic    equal for cores that are equal modulo `period`, for the cores that are not negative: C's division rounds
                towards 0, but what is counted grows, and a run begins where it is least
    threshold   a comparison of something affine
    other       any other dependence on what is counted
    """

    kind: str
    core: Core = ()
    period: int = 1
    value: int | None = None

    def __add__(self, other: Any) -> Form:
        return _sum(self, form(other), 1)

    def __radd__(self, other: Any) -> Form:
        return _sum(form(other), self, 1)

    def __sub__(self, other: Any) -> Form:
        return _sum(self, form(other), -1)

    def __rsub__(self, other: Any) -> Form:
        return _sum(form(other), self, -1)

    def __neg__(self) -> Form:
        return _sum(form(0), self, -1)

    def __mul__(self, other: Any) -> Form:
        a, b = self, form(other)
        if b.kind != INVARIANT:
            a, b = b, a
        if b.kind != INVARIANT:
            return Form(OTHER)
        if a.kind == INVARIANT:
            return form(None if a.value is None or b.value is None else a.value * b.value)
        if a.kind == AFFINE:
            return replace(a, core=tuple((name, _times(c, b.value)) for name, c in a.core))
        return a if a.kind == PERIODIC else Form(OTHER)

    __rmul__ = __mul__

    def __rshift__(self, other: Any) -> Form:
        bits = form(other).value
        return quotient(self, 1 << bits) if bits is not None and form(other).kind == INVARIANT else _mixed(self, other)

    def __rrshift__(self, other: Any) -> Form:
        return _mixed(other, self)

    def __and__(self, other: Any) -> Form:
        mask = form(other)
        if mask.kind == INVARIANT and mask.value is not None and mask.value & (mask.value + 1) == 0 and mask.value >= 0:
            return remainder(self, mask.value + 1)
        return _mixed(self, mask)

    __rand__ = __and__

    def __xor__(self, other: Any) -> Form:
        return _mixed(self, other)

    __rxor__ = __xor__

    def __or__(self, other: Any) -> Form:
        return _mixed(self, other)

    __ror__ = __or__

    def compared(self, other: Any) -> Form:
        """Returns a comparison's Form, `threshold` if the sides are affine, floored or invariant, not both invariant.

        Else it is invariant or periodic where both sides are so, or it is `other`.
        """
        found = _mixed(self, other)
        if found.kind == OTHER and {self.kind, form(other).kind} <= {INVARIANT, AFFINE, FLOORED}:
            return Form(THRESHOLD)
        return found

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = compared  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def form(value: Any) -> Form:
    """Returns a Form unchanged, and wraps a number, or None for an unknown value, in a Form that no loop changes."""
    return value if isinstance(value, Form) else Form(INVARIANT, value=value)


def counted(name: str) -> Form:
    """Returns the form of a variable that a loop counts, which is affine in that variable."""
    return Form(AFFINE, ((name, 1),))


def _times(coefficient: int | None, factor: int | None) -> int | None:
    return None if coefficient is None or factor is None else coefficient * factor


def _sum(a: Form, b: Form, sign: int) -> Form:
    if a.kind == b.kind == INVARIANT:
        return form(None if a.value is None or b.value is None else a.value + sign * b.value)
    if INVARIANT in (a.kind, b.kind):
        found = a if b.kind == INVARIANT else b
        if b is found and found.kind == AFFINE and sign < 0:
            return found * -1
        return found if found.kind != THRESHOLD else Form(OTHER)
    if a.kind == b.kind == AFFINE:
        core = dict(a.core)
        for name, c in b.core:
            mine = core.get(name, 0)
            core[name] = None if mine is None or c is None else mine + sign * c
        core = {name: c for name, c in core.items() if c != 0}
        return Form(AFFINE, tuple(sorted(core.items()))) if core else form(None)
    return _mixed(a, b)


def _mixed(a: Any, b: Any) -> Form:
    """Returns the form of any operation on `a` and `b`, invariant or periodic where both are so, else `other`.

    Periodic forms must have the same core.
    """
    a, b = form(a), form(b)
    if a.kind == b.kind == INVARIANT:
        return form(None)
    if {a.kind, b.kind} <= {INVARIANT, PERIODIC} and (not a.core or not b.core or a.core == b.core):
        return Form(PERIODIC, a.core or b.core, lcm(a.period, b.period))
    return Form(OTHER)


def quotient(a: Any, b: Any) -> Form:
    """Returns the form of a / b, floored where `a` is affine or floored and `b` is a known number."""
    a, b = form(a), form(b)
    if a.kind in (AFFINE, FLOORED) and b.kind == INVARIANT and b.value and _whole(a.core):
        return Form(FLOORED, a.core, a.period * b.value)
    return _mixed(a, b)


def remainder(a: Any, b: Any) -> Form:
    """Returns the form of a % b, periodic where `a` is affine or floored and `b` is a known number."""
    a, b = form(a), form(b)
    if a.kind in (AFFINE, FLOORED) and b.kind == INVARIANT and b.value and _whole(a.core):
        return Form(PERIODIC, a.core, a.period * b.value)
    return _mixed(a, b)


def _whole(core: Core) -> bool:
    return all(c is not None for _, c in core)


def _logical(a: Any, b: Any) -> Form:
    a, b = form(a), form(b)
    if THRESHOLD in (a.kind, b.kind) and {a.kind, b.kind} <= {INVARIANT, THRESHOLD, PERIODIC}:
        return Form(THRESHOLD)
    return _mixed(a, b)


def _select(condition: Any, a: Any, b: Any) -> Form:
    condition, a, b = form(condition), form(a), form(b)
    if condition.kind == INVARIANT and a.kind == b.kind == AFFINE and a.core == b.core:
        return a
    if condition.kind in (THRESHOLD, INVARIANT) and {a.kind, b.kind} <= {INVARIANT, THRESHOLD}:
        return Form(THRESHOLD if THRESHOLD in (condition.kind, a.kind, b.kind) else INVARIANT)
    return _mixed(_mixed(condition, a), b)


FORMS: dict[str, Any] = {
    "__builtins__": {},
    "quotient": quotient,
    "remainder": remainder,
    "select": _select,
    "both": _logical,
    "either": _logical,
    "negation": lambda a: form(a) if form(a).kind != AFFINE else Form(THRESHOLD),
    "min": lambda a, b: _mixed(a, b),
    "max": lambda a, b: _mixed(a, b),
    "equal": lambda a, b: a == b,
    "unequal": lambda a, b: a != b,
    "int64_t": form,
    "__shfl_sync": lambda lanes, value, lane: form(value),
}


class Forms(dict[str, Form]):
    """Forms is a dict from variables' names to their Forms; an unknown name gives a Form that depends on no counter."""

    def __missing__(self, name: str) -> Form:
        # Python looks up the functions of an expression here first.
        if name in FORMS:
            raise KeyError(name)
        return form(None)


def form_of(expression: Expression, names: Mapping[str, Form]) -> Form:
    """Evaluates an expression on the Forms of its variables, and returns the expression's own Form.

    Raises TypeError where an operator has none.
    """
    return form(expression(FORMS, names))
