"""Writes definitions down: a heading for each file, comments where they stood, formatted."""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import dropwhile
from typing import Any

from tl_attention.errors import InputError
from tl_attention.leaderboard.python_text import literal
from tl_attention.leaderboard.specialise.source import Definition

# A line that parts a file.
RULE = "# ---"
LINE_LENGTH = 120
# As in the extra `submit` of pyproject.toml: another release may format otherwise.
RELEASE = "0.17.6"
FORMAT = ("format", "--isolated", f"--line-length={LINE_LENGTH}", "--config=format.skip-magic-trailing-comma=true", "-")
# A comment's number follows.
MARK = "comment "


def written(definitions: Sequence[Definition], headings: Mapping[str, str], constants: Mapping[str, Any]) -> str:
    """The program: its constants, then the definitions under the headings of their files."""
    parts = ["# The problem, the tile of a thread block, and what it has of the machine.", ""]
    parts += [f"{name} = {_constant(value)}" for name, value in constants.items()]
    file = ""
    for definition in definitions:
        above = [line for line in getattr(definition.node, "above", ()) if not line.startswith(RULE)]
        if definition.file != file:
            file = definition.file
            parts += ["", "", _heading(headings[file]), ""]
            above = list(dropwhile(lambda line: not line, above))
        parts += [*above, _text(definition)]
    return formatted("\n".join(parts))


def _heading(docstring: str) -> str:
    """What a module says of itself, as a comment."""
    paragraphs = [textwrap.fill(part, LINE_LENGTH - len("# ")) for part in docstring.split("\n\n")]
    return "\n".join(f"# {line}".rstrip() for line in "\n\n".join(paragraphs).split("\n"))


def _constant(value: Any) -> str:
    """A constant of the program; a text of several lines as it is."""
    if isinstance(value, str) and "\n" in value:
        assert '"""' not in value and "\\" not in value
        return f'"""{value}"""'
    return literal(value)


def _text(definition: Definition) -> str:
    if definition.function:
        return with_comments(definition.function)
    return f"{definition.text}  {getattr(definition.node, 'beside', '')}".rstrip()


def with_comments(function: ast.FunctionDef) -> str:
    """The text of a function; while Python writes it, comments are statements."""
    comments = _Comments()
    text = ast.unparse(ast.fix_missing_locations(comments.visit(copy.deepcopy(function))))
    text = re.sub(rf"( *)'{MARK}(\d+)'\n", lambda m: f"{m[1]}{comments.lines[int(m[2])]}".rstrip() + "\n", text)
    # Python puts what is returned together into parentheses.
    return re.sub(r"^( *return )\((.*)\)$", _without_parentheses, text, flags=re.MULTILINE)


def _without_parentheses(found: re.Match[str]) -> str:
    whole = ast.parse(found[0].strip()).body[0]
    is_tuple = isinstance(whole, ast.Return) and isinstance(whole.value, ast.Tuple) and len(whole.value.elts) > 1
    return f"{found[1]}{found[2]}" if is_tuple else found[0]


class _Comments(ast.NodeTransformer):
    """Puts marks before the statements that have comments, or empty lines, above."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        super().visit(node)
        for block in ("body", "orelse"):
            if isinstance(node, ast.stmt) and isinstance(body := getattr(node, block, None), list):
                body[:] = [new for statement in body for new in self._commented(statement, statement is body[0])]
        return node

    def _commented(self, statement: ast.stmt, first: bool) -> Iterator[ast.stmt]:
        above = getattr(statement, "above", [])
        for line in above[1:] if first and above and not above[0] else above:
            self.lines.append(line)
            yield ast.Expr(ast.Constant(f"{MARK}{len(self.lines) - 1}"))
        yield statement


def formatted(text: str) -> str:
    """The text as ruff formats it. Raises InputError unless ruff is there in RELEASE."""
    try:
        found = version("ruff")
    except PackageNotFoundError:
        found = "missing"
    if found != RELEASE:
        raise InputError(
            f"ruff is {found}, and a packed program is formatted by ruff {RELEASE}: `pip install ruff=={RELEASE}`, or "
            "pack without it: --embed cuda"
        )
    command = [sys.executable, "-m", "ruff", *FORMAT]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
