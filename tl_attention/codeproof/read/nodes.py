"""Nodes are the statements of a kernel, as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tl_attention.codeproof.read.expression import Expression

Act = Callable[[Any, Any, int], None]
# The kinds of a CallNode by which threads learn of tiles, and of one that reads a number of a tile's head.
COUNTER, PER_HEAD = "counter", "of its head"
# The kind of an event: arithmetic with a number of the tile's head.
COUNTS = "counts"


class Effect(NamedTuple):
    """An Effect is the function that runs a parsed call, with the variables that the call changes."""

    act: Act  # takes (the run, the class of threads, the line)
    changes: frozenset[str] = frozenset()


class Registers(NamedTuple):
    """Registers are the variables in registers that lines read or write (`touched`), and those that they may write."""

    touched: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: frozenset[str]) -> Registers:
        """Returns the Registers of a call that is given these variables; it may write all of them."""
        return cls(names, names)

    def union(self, *others: Registers) -> Registers:
        """Returns the registers of this and all others together."""
        every = (self, *others)
        return Registers(
            frozenset().union(*(one.touched for one in every)), frozenset().union(*(one.written for one in every))
        )


NO_REGISTERS = Registers()


@dataclass
class CallNode:
    """A CallNode is a call in a kernel, such as a load, a product or an arrival, with the function that runs it."""

    line: int
    kind: str
    act: Act
    assigned: frozenset[str] = frozenset()
    expressions: tuple[Expression, ...] = ()
    registers: Registers = NO_REGISTERS


@dataclass
class Assign:
    line: int
    name: str
    expression: Expression


@dataclass
class Declare:
    """A Declare declares a variable that has no value yet."""

    line: int
    name: str


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
class Break:
    """A Break ends a `while` for the threads whose condition is true."""

    line: int
    condition: Expression


@dataclass
class If:
    """An If is a branch on a condition, or, where that is None, a branch for elected lanes."""

    line: int
    condition: Expression | None
    # 32 where one lane of each warp goes in, a multiple of 32 where one of so many threads does, 0 where one of each y.
    elect: int | None
    body: tuple[Any, ...]
    otherwise: tuple[Any, ...]
    assigned: frozenset[str] = frozenset()


@dataclass
class Arithmetic:
    """An Arithmetic is a group of lines that do nothing but compute on registers."""

    lines: tuple[int, ...]
    mask: bool = False  # whether they hide scores
    registers: Registers = NO_REGISTERS

    @property
    def assigned(self) -> frozenset[str]:
        return self.registers.written


def expressions_of(node: Any) -> tuple[Expression, ...]:
    """Returns the expressions of a statement itself, such as its condition, without those of statements inside it."""
    if isinstance(node, CallNode):
        return node.expressions
    field = {Assign: "expression", For: "trips", Break: "condition", If: "condition"}.get(type(node))
    expression = getattr(node, field) if field else None
    return (expression,) if expression is not None else ()


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yields statements, and all statements inside of them."""
    for node in nodes:
        yield node
        yield from all_nodes((*getattr(node, "body", ()), *getattr(node, "otherwise", ())))


def is_arithmetic(nodes: Sequence[Any]) -> bool:
    kinds = {type(node) for node in nodes}
    return Arithmetic in kinds and kinds <= {Arithmetic, Declare}


def only_numbers(nodes: Sequence[Any]) -> bool:
    """Returns True if there are statements, and each only computes numbers; hiding scores by a mask does not count.

    Only a comparison of numbers can check what they compute.
    """
    return bool(nodes) and all(map(_is_numbers, nodes))


def _is_numbers(node: Any) -> bool:
    if isinstance(node, (For, If)):
        return only_numbers((*node.body, *getattr(node, "otherwise", ())))
    return (isinstance(node, Arithmetic) and not node.mask) or (isinstance(node, CallNode) and "numbers:" in node.kind)


def joined(nodes: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the statements with neighbouring Arithmetics joined if both hide scores or neither does."""
    merged: list[Any] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, Arithmetic) and isinstance(last, Arithmetic) and node.mask == last.mask:
            merged[-1] = Arithmetic(last.lines + node.lines, node.mask, last.registers.union(node.registers))
        else:
            merged.append(node)
    return tuple(merged)


def assigned_by(nodes: Iterable[Any]) -> frozenset[str]:
    """Returns the variables that these statements may change."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, (Assign, Declare)):
            names.add(node.name)
        else:
            names |= getattr(node, "assigned", frozenset())
    return frozenset(names)
