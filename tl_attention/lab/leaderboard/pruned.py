"""This module leaves out of a kernel's macros what the constants alone decide.

That is a branch, a conditional expression or an entry of a table. Comments and layout stay as they are in the package.
Nothing else is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import libcst as cst

from tl_attention.kernels.shared.iterations import function_of

Node = TypeVar("Node", bound=cst.CSTNode)
UNKNOWN = object()
# Conditions on constants call these functions, besides methods of the constants.
FUNCTIONS = {"min": min, "max": max, "len": len}
# Expressions that mean the same in any place without parentheses.
ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.BaseString, cst.Dict, cst.List)


def pruned(node: Node, known: Mapping[str, Any]) -> Node:
    """Returns a function or class without the branches and table look-ups that the `known` names decide.

    The names are those of constants and of tables of functions.
    """
    found = node.visit(_Pruned(known))
    assert isinstance(found, type(node))
    return found


def code(node: cst.CSTNode) -> str:
    """Returns the source text of a syntax node, with the comments above the node."""
    return cst.Module([]).code_for_node(node)


class _Pruned(cst.CSTTransformer):
    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = {"__builtins__": FUNCTIONS, **known}
        # An `elif` is settled together with the `if` before it.
        self._elifs: set[cst.If] = set()

    def _value(self, node: cst.BaseExpression) -> Any:
        """Returns the value of an expression if only constants occur in it, else UNKNOWN."""
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
        """Returns an `if` without conditions that constants decide, or only the statements to run if none remains."""
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
        """Returns a block without the statements that follow its first `return`."""
        body = updated_node.body
        lines = [(place, line) for place, line in enumerate(body, 1) if isinstance(line, cst.SimpleStatementLine)]
        ends = [place for place, line in lines if isinstance(line.body[-1], cst.Return)]
        return updated_node.with_changes(body=body[: ends[0]]) if ends else updated_node

    # --- expressions -----------------------------------------------------------------------------------------

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        condition = self._value(updated_node.test)
        if condition is UNKNOWN:
            return updated_node
        return _in_place_of(updated_node, updated_node.body if condition else updated_node.orelse)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """Returns the name of the function that is looked up in a known table, or else the look-up unchanged."""
        found = self._value(updated_node) if code(updated_node.value) in self._known else UNKNOWN
        return cst.Name(function_of(found).__name__) if callable(found) else updated_node


def _in_place_of(whole: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """Returns the part that replaces an expression, in the expression's parentheses unless it needs none."""
    if isinstance(part, ATOMS) or not whole.lpar:
        return part
    return part.with_changes(lpar=[*whole.lpar, *part.lpar], rpar=[*part.rpar, *whole.rpar])
