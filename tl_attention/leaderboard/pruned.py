"""Leaves out of a kernel's macros what the constants alone decide: a branch, a conditional expression, an entry of a table.

Comments and layout stay as they are in the package. Nothing else is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import libcst as cst

from tl_attention.lowering.iterations import function_of

Node = TypeVar("Node", bound=cst.CSTNode)
UNKNOWN = object()
# What conditions on constants call, beside methods of the constants.
FUNCTIONS = {"min": min, "max": max, "len": len}
# Expressions that mean the same in any place without parentheses.
ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.BaseString, cst.Dict, cst.List)


def pruned(node: Node, known: Mapping[str, Any]) -> Node:
    """A function or class without what is decided by the `known` names, constants and tables of functions."""
    found = node.visit(_Pruned(known))
    assert isinstance(found, type(node))
    return found


def code(node: cst.CSTNode) -> str:
    """The text of a node, with the comments above it."""
    return cst.Module([]).code_for_node(node)


class _Pruned(cst.CSTTransformer):
    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = {"__builtins__": FUNCTIONS, **known}
        # An `elif` is settled together with the `if` before it.
        self._elifs: set[cst.If] = set()

    def _value(self, node: cst.BaseExpression) -> Any:
        """The value of an expression of constants alone, else UNKNOWN."""
        try:
            return eval(code(node).strip(), dict(self._known))
        except NameError:
            return UNKNOWN

    # --- statements ------------------------------------------------------------------------------------------

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._elifs.add(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        settled = updated_node if original_node in self._elifs else self._settled(updated_node)
        if isinstance(settled, cst.If):
            return settled
        if settled:
            above = [*updated_node.leading_lines, *settled[0].leading_lines]
            settled[0] = settled[0].with_changes(leading_lines=above)
        return cst.FlattenSentinel(settled) if settled else cst.RemoveFromParent()

    def _settled(self, node: cst.If) -> Any:
        """An `if` whose conditions are all open, or the statements that remain of it."""
        condition = self._value(node.test)
        if condition is not UNKNOWN and condition:
            return list(node.body.body)
        rest: Any = node.orelse
        if isinstance(rest, cst.If):
            rest = self._settled(rest)
        elif isinstance(rest, cst.Else):
            rest = list(rest.body.body)
        if condition is not UNKNOWN:
            return rest or []
        if isinstance(rest, list):
            rest = cst.Else(cst.IndentedBlock(rest)) if rest else None
        return node.with_changes(orelse=rest)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> Any:
        """Nothing comes behind a `return`."""
        body = updated_node.body
        ends = [place for place, statement in enumerate(body, 1) if _returns(statement)]
        return updated_node.with_changes(body=body[: ends[0]]) if ends else updated_node

    # --- expressions -----------------------------------------------------------------------------------------

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        condition = self._value(updated_node.test)
        if condition is UNKNOWN:
            return updated_node
        return _in_place_of(updated_node, updated_node.body if condition else updated_node.orelse)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """A function that a table has."""
        found = self._value(updated_node) if code(updated_node.value) in self._known else UNKNOWN
        return cst.Name(function_of(found).__name__) if callable(found) else updated_node


def _returns(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], cst.Return)


def _in_place_of(whole: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """The part, in the parentheses that the whole had where it may need them."""
    if isinstance(part, ATOMS) or not whole.lpar:
        return part
    return part.with_changes(lpar=[*whole.lpar, *part.lpar], rpar=[*part.rpar, *whole.rpar])
