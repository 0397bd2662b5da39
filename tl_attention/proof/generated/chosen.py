"""What may be compared: a tile's place or a size for equality with nothing but the smallest numbers, and never its bits.

What holds for one head or one length alone, or for one in a thousand, shows at no other, so no runs of samples would find
it. The smallest of each are among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tl_attention.problem.variant import Sizes
from tl_attention.proof.generated.expression import Expression, Tree, walk
from tl_attention.proof.generated.nodes import Assign, For, If, Leave, Step, every
from tl_attention.proof.generated.refused import Unsafe

PLACES = frozenset({*Sizes._fields, "blockIdx_x", "blockIdx_y", "blockIdx_z"})
EQUALITIES = {"==", "!="}
SMALL = 4
BITS_OF = {"&", "|", "^", "%"}


def check_equalities(body: Iterable[Any]) -> None:
    """Raise Unsafe where something is compared for equality that depends on sizes, or on which tile a block has."""
    nodes = list(every(body))
    of_tiles = set(PLACES)
    while more := {name for node in nodes for name, read in _assigned(node) if of_tiles & read} - of_tiles:
        of_tiles |= more
    for node in nodes:
        for expression in _expressions(node):
            for part in walk(expression.tree):
                if part[0] in EQUALITIES and of_tiles & Expression(part).names and not any(map(_is_small, part[1:])):
                    name = sorted(of_tiles & Expression(part).names)[0]
                    raise Unsafe(f"line {node.line + 1} asks whether {name} equals something")
                if part[0] in EQUALITIES and (names := of_tiles & _names_of_bits(part)):
                    raise Unsafe(f"line {node.line + 1} asks for bits of {min(names)}, or for a remainder of it")


def _names_of_bits(tree: Tree) -> frozenset[str]:
    """The variables of which something has bits, or a remainder."""
    return frozenset().union(*(Expression(part).names for part in walk(tree) if part[0] in BITS_OF))


def _is_small(tree: Tree) -> bool:
    return tree[0] == "number" and tree[1] <= SMALL


def _assigned(node: Any) -> Iterable[tuple[str, frozenset[str]]]:
    """The variables that a statement changes, each with what its value depends on."""
    if isinstance(node, Assign):
        yield node.name, node.expression.names
    elif isinstance(node, Step):
        # What is read from shared memory is the number of a tile.
        yield from ((name, PLACES) for name in node.assigned)


def _expressions(node: Any) -> tuple[Expression, ...]:
    if isinstance(node, Step):
        return node.expressions
    found = {Assign: "expression", For: "trips", Leave: "condition", If: "condition"}.get(type(node))
    expression = getattr(node, found) if found else None
    return (expression,) if expression is not None else ()
