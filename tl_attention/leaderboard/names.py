"""What a dotted name in a syntax tree means, once the file's imports are taken into account."""

from __future__ import annotations

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Names:
    """The imports and the simple assignments of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._origin: dict[str, str] = {}
        self._values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    # `import a.b` binds a, `import a.b as c` binds c to a.b.
                    self._origin[item.asname or item.name.split(".")[0]] = (
                        item.name if item.asname else item.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for item in node.names:
                    self._origin[item.asname or item.name] = f"{node.module}.{item.name}"
        for scope in scopes(tree):
            for name, value in assigned(scope):
                self._values.setdefault(name, []).append(value)
        self.module_level = frozenset(bound(tree))

    def dotted(self, node: ast.AST) -> str:
        """`t.perf_counter` after `import time as t` is "time.perf_counter"; "" for what is no imported name."""
        if isinstance(node, ast.Name):
            return self._origin.get(node.id, "")
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def imports(self, name: str) -> bool:
        """Whether an import binds the name."""
        return name in self._origin

    def strings(self, node: ast.AST) -> list[str]:
        """The string constants inside an expression, those of the names that it mentions included."""
        parts = list(ast.walk(node))
        for name in [part.id for part in parts if isinstance(part, ast.Name)]:
            for value in self._values.get(name, []):
                parts += ast.walk(value)
        return [text for part in parts if (text := string_in(part)) is not None]


def string_in(node: ast.AST) -> str | None:
    """The text of a string constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and every function in it."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS)))


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope in source order, without those of the functions inside it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, FUNCTIONS):
            yield from own_nodes(child)


def assigned(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of each assignment to a plain name in a scope, tuples and walrus included."""
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield from _pairs(node.target, node.value)


def bound(scope: ast.AST) -> Iterator[str]:
    """The names that a scope's own code binds by assignment, `for`, `with` or `def`; imports are left out."""
    for node in own_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they are assigned; the parts of a tuple share its value when that has no parts of its own."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        values = parts if len(parts) == len(target.elts) else [value] * len(target.elts)
        for part, part_value in zip(target.elts, values):
            yield from _pairs(part, part_value)
