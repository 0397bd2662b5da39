"""The statements of a kernel, as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tl_attention.proof.generated.expression import Expression

Act = Callable[[Any, Any, int], None]


class Made(NamedTuple):
    """What a call does: `act` runs it with (the run, the class of threads, the line). `changes` are variables."""

    act: Act
    changes: frozenset[str] = frozenset()


@dataclass
class Step:
    """A call that is read."""

    line: int
    kind: str
    act: Act
    assigned: frozenset[str] = frozenset()
    expressions: tuple[Expression, ...] = ()


@dataclass
class Assign:
    line: int
    name: str
    expression: Expression


@dataclass
class For:
    line: int
    variable: str
    trips: Expression
    body: tuple[Any, ...]
    assigned: frozenset[str]
    unrolled: bool


@dataclass
class While:
    line: int
    body: tuple[Any, ...]
    assigned: frozenset[str] = frozenset()


@dataclass
class Leave:
    """Ends a `while`."""

    line: int
    condition: Expression


@dataclass
class If:
    """`elect` is 32 where one lane of each warp goes in, a multiple where one of so many threads, 0 of each y."""

    line: int
    condition: Expression | None
    elect: int | None
    body: tuple[Any, ...]
    otherwise: tuple[Any, ...]
    assigned: frozenset[str] = frozenset()


@dataclass
class Arithmetic:
    """Lines that compute on registers. `mask` where they hide scores."""

    lines: tuple[int, ...]
    mask: bool = False


def every(nodes: Iterable[Any]) -> Iterator[Any]:
    """Statements, and all inside of them."""
    for node in nodes:
        yield node
        yield from every((*getattr(node, "body", ()), *getattr(node, "otherwise", ())))


def is_arithmetic(nodes: Sequence[Any]) -> bool:
    return bool(nodes) and all(isinstance(node, Arithmetic) for node in nodes)


def only_numbers(nodes: Sequence[Any]) -> bool:
    """Whether all that these do is left to the numbers, if not all of it."""
    return bool(nodes) and all(map(_is_numbers, nodes))


def _is_numbers(node: Any) -> bool:
    if isinstance(node, (For, If)):
        return only_numbers((*node.body, *getattr(node, "otherwise", ())))
    return (isinstance(node, Arithmetic) and not node.mask) or (isinstance(node, Step) and "numbers:" in node.kind)


def joined(nodes: Sequence[Any]) -> tuple[Any, ...]:
    """Arithmetic that stands together, as one."""
    found: list[Any] = []
    for node in nodes:
        last = found[-1] if found else None
        if isinstance(node, Arithmetic) and isinstance(last, Arithmetic) and node.mask == last.mask:
            found[-1] = Arithmetic(last.lines + node.lines, node.mask)
        else:
            found.append(node)
    return tuple(found)


def assigned_by(nodes: Iterable[Any]) -> frozenset[str]:
    """The variables that these may change."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, Assign):
            names.add(node.name)
        else:
            names |= getattr(node, "assigned", frozenset())
    return frozenset(names)
