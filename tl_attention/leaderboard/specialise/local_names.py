"""The names of a function that are bound once, to something that is known: what is known stands in their place."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tl_attention.leaderboard.specialise.known import UNKNOWN, Environment, Known, Rename, expression, is_plain, read


def bindings(function: ast.FunctionDef) -> Counter[str]:
    """How often each name is bound in a function, as a parameter too, the functions inside it included."""
    found: Counter[str] = Counter()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] += 1
        elif isinstance(node, ast.arg):
            found[node.arg] += 1
        elif isinstance(node, ast.FunctionDef) and node is not function:
            found[node.name] += 1
    return found


def bound_names(function: ast.FunctionDef) -> set[str]:
    return set(bindings(function))


def assigned(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The names that are bound once, by a plain assignment, and what they are assigned."""
    times = bindings(function)
    return {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and times[node.targets[0].id] == 1
    }


def without_assignments(function: ast.FunctionDef, names: Collection[str]) -> None:
    """Drop the assignments to these names."""

    class Dropped(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
            target = node.targets[0]
            return None if isinstance(target, ast.Name) and target.id in names else node

    Dropped().visit(function)


@dataclass(frozen=True)
class Settled:
    """`numbers` are names that stay, since they say more than their value.

    `differing` are names whose value every call decides, but not alike.
    """

    numbers: dict[str, Any]
    differing: dict[str, ast.expr]


def settle(function: ast.FunctionDef, known: Known, calls: Sequence[Environment]) -> Settled:
    """Replace the names that stand for something known in a function; each call of it knows one of `calls`."""
    found = Settled({}, {})
    replacements: dict[str, ast.expr] = {}
    times = bindings(function)
    for name, node in assigned(function).items():
        values = [known.value(node, call) for call in calls]
        if any(type(value) in (list, dict, set) for value in values):
            # It may change.
            continue
        if any(value is UNKNOWN for value in values):
            # Another name for a parameter. Not in a macro: TileLang names a variable anew where it is bound.
            if isinstance(node, ast.Name) and times[node.id] == 1 and not function.decorator_list:
                replacements[name] = node
        elif any(value != values[0] for value in values):
            found.differing[name] = node
        elif type(values[0]) in (int, float) and isinstance(node, (ast.BinOp, ast.Attribute)):
            found.numbers[name] = values[0]
        else:
            replacements[name] = _stands_for(values[0], node, known)
    without_assignments(function, replacements)
    Rename(replacements.get).visit(function)
    return found


def _stands_for(value: Any, node: ast.expr, known: Known) -> ast.expr:
    if isinstance(node, ast.Name):
        return node
    if function := known.function(value):
        return read(function)
    return expression(value) if is_plain(value) else known.symbol(value, named_fields=True)
