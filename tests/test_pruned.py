"""What constants alone decide is left out of a definition, and nothing else is changed."""

from __future__ import annotations

from textwrap import dedent
from types import SimpleNamespace

import libcst as cst
import pytest

from tl_attention.leaderboard.pruned import code, pruned

CONSTANTS = SimpleNamespace(on=True, off=False, way="near", depth=2, record=None)
TABLES = {"WAYS": cst.ensure_type(cst.parse_expression('{"near": go_near, "far": go_far}'), cst.Dict)}

CASES = {
    "a branch that is taken": ("if c.on:\n    x()\ny()", "x()\ny()"),
    "a branch that is not": ("if c.off:\n    x()\ny()", "y()"),
    "the other branch": ("if c.off:\n    x()\nelse:\n    y()", "y()"),
    "nothing is left": ("if c.off:\n    x()", "pass"),
    "nothing is left of a loop": ("for t in range(n):\n    if c.off:\n        x()", "for t in range(n):\n    pass"),
    "the last of three": ("if c.off:\n    x()\nelif c.off:\n    y()\nelse:\n    z()", "z()"),
    "the second of three": ("if c.off:\n    x()\nelif c.on:\n    y()\nelse:\n    z()", "y()"),
    "an open condition behind": ("if c.off:\n    x()\nelif t:\n    y()", "if t:\n    y()"),
    "an open condition before": (
        "if t:\n    x()\nelif c.on:\n    y()\nelse:\n    z()",
        "if t:\n    x()\nelse:\n    y()",
    ),
    "an open condition alone": ("if t:\n    x()\nelif c.off:\n    y()", "if t:\n    x()"),
    "a nested branch": ("if t:\n    if c.on:\n        x()", "if t:\n    x()"),
    "what stands behind a return": ("if c.on:\n    return x()\nreturn y()", "return x()"),
    "an open return": ("if t:\n    return x()\nreturn y()", "if t:\n    return x()\nreturn y()"),
    "a comment of what is kept": ("# Why.\nif c.on:\n    # How.\n    x()", "# Why.\n# How.\nx()"),
    "a comment of what is not": ("# Why.\nif c.off:\n    # How.\n    x()\ny()", "y()"),
    "a conditional expression": ("x(1 if c.way == 'near' else 2)", "x(1)"),
    "one in another": ("x(a if t else b if c.off else d)", "x(a if t else d)"),
    "parentheses that are needed": ("x((a + b if c.on else d) * e)", "x((a + b) * e)"),
    "parentheses that are not": ("x((a if c.on else d) * e)", "x(a * e)"),
    "one side that decides": ("if c.off and t:\n    x()", "pass"),
    "one side that does not": ("if c.on and t:\n    x()", "if c.on and t:\n    x()"),
    "a function of constants": ("if max(c.depth, 1) > 1:\n    x()", "x()"),
    "no value": ("if c.record is not None:\n    x(c.record.first)", "pass"),
    "an entry of a table": ("WAYS[c.way](t)", "go_near(t)"),
    "an entry of a table by a choice": ("WAYS['far' if c.on else c.way](t)", "go_far(t)"),
    "an entry that is open": ("WAYS[way](t)", "WAYS[way](t)"),
    "an entry of another table": ("OTHERS[c.way](t)", "OTHERS[c.way](t)"),
    "a number": ("x(c.depth * 2)", "x(c.depth * 2)"),
    "a parameter of a constant's name": ("if masked and t:\n    x(on)", "if masked and t:\n    x(on)"),
}


@pytest.mark.parametrize("before, after", CASES.values(), ids=CASES.keys())
def test_what_is_decided_is_left_out(before: str, after: str) -> None:
    assert body(before) == dedent(after)


def body(text: str) -> str:
    """What is left of a function of these lines."""
    lines = text.replace("\n", "\n    ")
    function = cst.ensure_type(cst.parse_statement(f"def f(t, u, way):\n    {lines}\n"), cst.FunctionDef)
    left = code(pruned(function, {"c": CONSTANTS}, TABLES))
    return dedent(left.partition("\n")[2]).strip()
