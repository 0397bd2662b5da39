"""Decides what is known in a function: conditions, loops over operations, what is looked up in tables, fields."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tl_attention.leaderboard.specialise.known import UNKNOWN, Environment, Known, Rename, expression, is_plain, read
from tl_attention.leaderboard.specialise.signature import write_out


class Fold(ast.NodeTransformer):
    """Leaves of a function what is not known, if each call of it knows one of `calls`.

    What they know alike is decided.
    """

    def __init__(self, known: Known, calls: Sequence[Environment]) -> None:
        self._known = known
        self._calls = calls

    def value(self, node: ast.expr) -> Any:
        first, *others = [self._known.value(node, call) for call in self._calls]
        return first if all(type(other) is type(first) and other == first for other in others) else UNKNOWN

    # --- statements --------------------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> Any:
        visited = super().visit(node)
        for block in ("body", "orelse"):
            if isinstance(visited, ast.stmt) and isinstance(body := getattr(visited, block, None), list):
                body[:] = list(_up_to_return(body)) or ([] if block == "orelse" else [ast.Pass()])
        return visited

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        write_out(node, self._known, self._field)
        return node

    def visit_If(self, node: ast.If) -> Any:
        test = self._condition(node.test)
        if isinstance(test, ast.expr):
            node.test = test
            self.generic_visit(node)
            return node
        chosen = node.body if test else node.orelse
        return [new for statement in chosen for new in _listed(self.visit(statement))]

    def visit_For(self, node: ast.For) -> Any:
        items = self.value(node.iter)
        leaves = any(isinstance(part, (ast.Break, ast.Continue)) for part in ast.walk(node))
        if not isinstance(items, (tuple, list)) or leaves or node.orelse:
            self.generic_visit(node)
            return node
        unrolled = []
        for item in items:
            names = dict(self._bound(node.target, item))
            unrolled += [Rename(names.get).visit(copy.deepcopy(statement)) for statement in node.body]
        return [new for statement in unrolled for new in _listed(self.visit(statement))]

    def _bound(self, target: ast.expr, item: Any) -> Iterator[tuple[str, ast.expr]]:
        if isinstance(target, ast.Tuple):
            for element, part in zip(target.elts, item, strict=True):
                yield from self._bound(element, part)
        else:
            assert isinstance(target, ast.Name)
            is_record = not is_plain(item)
            yield target.id, self._known.symbol(item, named_fields=False) if is_record else expression(item)

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        value = self.value(node.value)
        if isinstance(value, tuple) and not self._known.says(node.value) and is_plain(tuple(value)):
            node.value = expression(tuple(value))
        # x = x, once what chose between it and something else is decided.
        return None if ast.unparse(node.targets[0]) == ast.unparse(node.value) else node

    def _condition(self, test: ast.expr) -> bool | ast.expr:
        """True or False where that is known, else what is left to decide."""
        value = self.value(test)
        if value is not UNKNOWN:
            return bool(value)
        if isinstance(test, ast.BoolOp):
            settles = isinstance(test.op, ast.Or)
            parts = [self._condition(part) for part in test.values]
            if any(part is settles for part in parts):
                return settles
            left = [part for part in parts if isinstance(part, ast.expr)]
            return left[0] if len(left) == 1 else ast.BoolOp(test.op, left)
        return test

    # --- expressions -------------------------------------------------------------------------------------------

    def _field(self, node: ast.expr) -> ast.expr:
        """A field or an item of what the packed text does not have, if it can be written; a function by its name."""
        value = self.value(node)
        if function := self._known.function(value):
            return read(function)
        if value is UNKNOWN or not is_plain(value) or self._known.says(node):
            return node
        return self._known.written(node, value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        # The whole chain first: what c.kernel is cannot be written.
        new = self._field(node)
        return self.generic_visit(node) if new is node else new  # type: ignore[return-value]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.value, (ast.Tuple, ast.List)) and is_plain(value := self.value(node)):
            return expression(value)
        return self._field(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        value = self.value(node)
        if function := self._known.function(value):
            return read(function)
        if isinstance(value, str):
            if "\n" in value and isinstance(node.func, ast.Name):
                return self._known.constant(node.func.id.upper(), value)
            return expression(value)
        self._call_function_of_instance(node)
        node.keywords = [new for keyword in node.keywords for new in self._keywords(keyword)]
        return node

    def _call_function_of_instance(self, call: ast.Call) -> None:
        """f(x, ...) for x.f(...), where x is known, and of a class of the program."""
        if isinstance(call.func, ast.Attribute):
            method = getattr(self.value(call.func), "__func__", None)
            if name := self._known.function(method):
                call.args.insert(0, call.func.value)
                call.func = read(name)

    def _keywords(self, keyword: ast.keyword) -> Iterator[ast.keyword]:
        """**{...} that is known, as keywords."""
        value = self.value(keyword.value) if keyword.arg is None else UNKNOWN
        if isinstance(value, Mapping) and is_plain(dict(value)):
            yield from (ast.keyword(name, expression(item)) for name, item in value.items())
        else:
            yield keyword

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self._condition(node.test)
        if isinstance(test, ast.expr):
            node.test = test
            return self.generic_visit(node)
        return self.visit(node.body if test else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        left = self.value(node.values[0])
        if left is UNKNOWN:
            return self.generic_visit(node)
        if bool(left) is isinstance(node.op, ast.Or):
            return self.visit(node.values[0])
        return self.visit(node.values[1] if len(node.values) == 2 else ast.BoolOp(node.op, node.values[1:]))

    def visit_Compare(self, node: ast.Compare) -> Any:
        value = self.value(node)
        return expression(value) if isinstance(value, bool) else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        value = self.value(node)
        return self.generic_visit(node) if value is UNKNOWN else expression(value)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if not isinstance(node.op, (ast.Add, ast.Sub)):
            return node
        right = self.value(node.right)
        if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant):
            return expression(self.value(node))
        if right in (0, "") and not isinstance(node.right, ast.Name):
            return node.left
        if type(right) is int and right < 0:
            opposite = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            return ast.BinOp(node.left, opposite, ast.Constant(-right))
        return node


def _listed(statements: Any) -> list[ast.stmt]:
    if statements is None:
        return []
    return statements if isinstance(statements, list) else [statements]


def _up_to_return(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.Return):
            return
