"""What is known of names and expressions when a program is packed."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

UNKNOWN: Any = object()
# To find out what an expression is worth, nothing else is called but functions of the package.
BUILTINS = {
    name: getattr(builtins, name)
    for name in ("all", "any", "dict", "len", "list", "max", "min", "range", "sum", "tuple", "vars", "zip")
} | {"SimpleNamespace": SimpleNamespace}

Environment = Mapping[str, Any]
NOTHING: Environment = {}


def is_plain(value: Any) -> bool:
    """Whether the value can be written as a constant."""
    if type(value) in (tuple, list):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(part) for item in value.items() for part in item)
    return type(value) in (bool, int, float, str, type(None))


def expression(value: Any) -> ast.expr:
    """A plain value as an expression."""
    return ast.parse(repr(value), mode="eval").body


def read(name: str) -> ast.Name:
    """The name as an expression."""
    return ast.Name(name, ast.Load())


def names_in(*nodes: ast.AST) -> list[str]:
    """Every name that occurs, read or bound, as often as it does."""
    return [part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)]


class Rename(ast.NodeTransformer):
    """Puts an expression wherever a name is read."""

    def __init__(self, replacement: Callable[[str], ast.expr | None]) -> None:
        self._replacement = replacement

    def visit_Name(self, node: ast.Name) -> ast.expr:
        new = self._replacement(node.id) if isinstance(node.ctx, ast.Load) else None
        return copy.deepcopy(new) if new else node


class Known:
    """Names and their values. `unsayable` are those that the packed text does not have: what they are decides.

    `constants` are those that it gets, and `depths` of how many names the path to each is: the problem's and the tile's
    are shorter than those of options. Fields below one of `nameless` have no name that says anything by itself.
    """

    def __init__(self, values: Environment, unsayable: Collection[str], functions: Mapping[int, str]) -> None:
        self.values = dict(values)
        self.unsayable = set(unsayable)
        self.constants: dict[str, Any] = {}
        self.depths: dict[str, int] = {}
        self.nameless: Collection[str] = ()
        self._functions = functions
        self._with_named_fields = set(unsayable)

    def symbol(self, value: Any, *, named_fields: bool) -> ast.Name:
        """A new name for a value that cannot be written."""
        name = f"known_{len(self.unsayable)}_"
        self.values[name] = value
        self.unsayable.add(name)
        if named_fields:
            self._with_named_fields.add(name)
        return read(name)

    def constant(self, name: str, value: Any, depth: int = 1) -> ast.Name:
        """A constant of the packed text."""
        assert self.values.get(name, value) == value, f"{name} is {self.values[name]!r} and {value!r}"
        self.values[name] = self.constants[name] = value
        self.depths.setdefault(name, depth)
        return read(name)

    def value(self, node: ast.expr, local: Environment = NOTHING) -> Any:
        """What the expression is worth, or UNKNOWN."""
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
        bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        for name in names:
            if name.id not in self.values and name.id not in local and name.id not in BUILTINS and name.id not in bound:
                return UNKNOWN
        tree = ast.fix_missing_locations(ast.Expression(node))
        try:
            return eval(compile(tree, "<packed>", "eval"), {**BUILTINS, **self.values, **local, "__builtins__": {}})
        except Exception:
            # Whatever it raises here, it is not known.
            return UNKNOWN

    def function(self, value: Any) -> str | None:
        """The name of a function of the program."""
        return self._functions.get(id(value))

    def says(self, node: ast.AST) -> bool:
        """Whether the packed text has every name of the expression."""
        return self.unsayable.isdisjoint(names_in(node))

    def written(self, node: ast.expr, value: Any) -> ast.expr:
        """The plain value of a field: a constant of the field's name, if that says more than the value."""
        path = _path(node)
        says_more = type(value) in (int, float, str) and value and len(path) > 1
        if not says_more or path[0] not in self._with_named_fields or not set(path).isdisjoint(self.nameless):
            return expression(value)
        return self.constant(path[-1].upper(), value, len(path))


def _path(node: ast.expr) -> list[str]:
    """["c", "kernel", "cluster"] of c.kernel.cluster; [] of what is no such chain."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        path = _path(node.value)
        return [*path, node.attr] if path else []
    return []
