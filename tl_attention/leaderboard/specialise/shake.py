"""Drops what is not used: functions, constants, names of a function, fields of a namespace, functions that pass on."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from tl_attention.leaderboard.specialise.calls import bound, parameters
from tl_attention.leaderboard.specialise.known import Rename
from tl_attention.leaderboard.specialise.local_names import assigned, without_assignments
from tl_attention.leaderboard.specialise.source import Definition

NAMESPACE = "SimpleNamespace"
# What only computes: to leave it out changes nothing.
PURE = {"T.ceildiv", "T.min", "T.max", NAMESPACE}


def used(definitions: Sequence[Definition], entry: str) -> list[Definition]:
    """The definitions that the entry needs."""
    by_name = {definition.name: definition for definition in definitions}
    needed: set[str] = set()
    new = {entry}
    while new:
        needed |= new
        nodes = [node for name in new for node in ast.walk(by_name[name].node)]
        new = {node.id for node in nodes if isinstance(node, ast.Name) and node.id in by_name}
        new |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and n.attr in by_name and by_name[n.attr].method}
        new -= needed
    return [definition for definition in definitions if definition.name in needed]


def drop(definitions: Sequence[Definition]) -> None:
    """Drop what is not used inside of definitions."""
    pass_on = PassOn(definitions)
    for definition in definitions:
        pass_on.visit(definition.node)
        if definition.function:
            drop_unread_names(definition.function)
    drop_unread_fields(definitions)


def drop_unread_names(function: ast.FunctionDef) -> None:
    """Drop assignments whose name is not read; `x = ...; return x` becomes `return ...`."""
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    without_assignments(function, {n for n, value in assigned(function).items() if n not in read and is_pure(value)})
    assign, last = function.body[-2:] if len(function.body) > 1 else (None, None)
    returned = last.value if isinstance(last, ast.Return) else None
    if isinstance(assign, ast.Assign) and returned and ast.unparse(assign.targets[0]) == ast.unparse(returned):
        function.body[-2:] = [ast.Return(assign.value)]


def is_pure(value: ast.expr) -> bool:
    """Whether an expression does nothing but compute."""
    return all(ast.unparse(node.func) in PURE for node in ast.walk(value) if isinstance(node, ast.Call))


def drop_unread_fields(definitions: Sequence[Definition]) -> None:
    """Drop what namespaces are given that nothing reads."""
    nodes = [node for definition in definitions for node in ast.walk(definition.node)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == NAMESPACE:
            node.keywords = [k for k in node.keywords if k.arg is None or k.arg in read]


class PassOn(ast.NodeTransformer):
    """Functions that return a name, or a call with nothing but their parameters, stand where they are called."""

    def __init__(self, definitions: Sequence[Definition]) -> None:
        found = {d.name: d.function for d in definitions if d.function}
        self._passing = {n: (f, value) for n, f in found.items() if (value := _passed_on(f)) is not None}

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id not in self._passing:
            return node
        function, value = self._passing[node.func.id]
        return Rename(bound(function.args, node).get).visit(copy.deepcopy(value))


def _passed_on(function: ast.FunctionDef) -> ast.expr | None:
    *texts, last = function.body
    value = last.value if isinstance(last, ast.Return) and len(texts) < 2 and not function.decorator_list else None
    if texts and not isinstance(texts[0], ast.Expr):
        return None
    names = parameters(function.args)
    if isinstance(value, ast.Call) and not value.keywords:
        return value if [arg.id if isinstance(arg, ast.Name) else None for arg in value.args] == names else None
    return value if isinstance(value, ast.Name) and {value.id} >= set(names) else None
