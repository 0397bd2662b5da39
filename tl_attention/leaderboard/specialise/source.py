"""The modules of a program, as definitions with their comments, and what their names are worth."""

from __future__ import annotations

import ast
import importlib
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tl_attention.leaderboard.specialise.known import Known
from tl_attention.leaderboard.specialise.local_names import bound_names

PACKAGE = Path(__file__).parents[2]
# What the file has that the text is packed into.
PROVIDED = ("import tilelang.language as T", "from types import SimpleNamespace")


@dataclass
class Definition:
    """A function, or a name with a constant, of which `text` is what stands in the file; `method`: of an instance."""

    file: str
    name: str
    node: ast.FunctionDef | ast.Assign
    text: str = ""
    method: bool = False

    @property
    def function(self) -> ast.FunctionDef | None:
        return self.node if isinstance(self.node, ast.FunctionDef) else None


@dataclass(frozen=True)
class Source:
    """The definitions in the order of the files, what each file says of itself, and what is known of all names."""

    definitions: list[Definition]
    headings: dict[str, str]
    known: Known


def read_source(files: Sequence[str]) -> Source:
    """The modules; paths from the package's folder. AssertionError where one is not as the contract asks."""
    modules = {file: importlib.import_module(_module_name(file)) for file in files}
    definitions: list[Definition] = []
    headings: dict[str, str] = {}
    values: dict[str, Any] = {}
    foreign: set[str] = set()
    for file, module in modules.items():
        text = (PACKAGE / file).read_text(encoding="utf-8")
        tree = ast.parse(text)
        stray = attach_comments(tree, text)
        assert not stray, f"{file}: lines {sorted(stray)}: a comment stands above a statement, on lines of its own"
        headings[file] = ast.get_docstring(tree) or ""
        for name, origin in _imported(tree, file):
            values[name] = getattr(module, name)
            foreign |= set() if origin in map(_module_name, files) else {name}
        for definition in _definitions(tree, file, text):
            definitions.append(definition)
            values[definition.name] = _value(module, definition.name)
    names = [definition.name for definition in definitions]
    assert len(set(names)) == len(names), f"defined twice: {sorted({n for n in names if names.count(n) > 1})}"
    for definition in definitions:
        if definition.function:
            hidden = bound_names(definition.function) & {*values, "T"}
            assert not hidden, f"{definition.file}: {definition.name} binds {sorted(hidden)}, names of the program"
    functions = {id(values[d.name]): d.name for d in definitions if d.function}
    return Source(definitions, headings, Known(values, foreign, functions))


def _module_name(file: str) -> str:
    return f"{PACKAGE.name}.{file.removesuffix('.py').replace('/', '.')}"


def _value(module: ModuleType, name: str) -> Any:
    """What a name of the module is worth; the methods of its classes are its functions."""
    if hasattr(module, name):
        return getattr(module, name)
    return next(vars(kind)[name] for kind in vars(module).values() if isinstance(kind, type) and name in vars(kind))


def _imported(tree: ast.Module, file: str) -> Iterator[tuple[str, str]]:
    """(name, module) of what is imported beside PROVIDED."""
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and ast.unparse(node) not in PROVIDED:
            assert isinstance(node, ast.ImportFrom) and node.module and not node.level, f"{file}: {ast.unparse(node)}"
            for alias in node.names:
                assert alias.name != "*" and not alias.asname, f"{file}: {ast.unparse(node)}"
                yield alias.name, node.module


def _definitions(tree: ast.Module, file: str, text: str) -> Iterator[Definition]:
    """Functions and constants; a class's methods as functions of its instances."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield Definition(file, node.name, node)
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and not part.decorator_list]
            yield from (Definition(file, method.name, method, method=True) for method in methods)
        elif isinstance(node, ast.Assign):
            (target,) = node.targets
            assert isinstance(target, ast.Name), f"{file}: {ast.unparse(node)}"
            yield Definition(file, target.id, node, ast.get_source_segment(text, node) or "")
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            assert node is tree.body[0] and isinstance(node, ast.Expr), f"{file}: {ast.unparse(node)}"


# --- comments ------------------------------------------------------------------------------------------------------


def attach_comments(tree: ast.Module, text: str) -> set[int]:
    """Gives statements `above`, the lines of comment before them, "" for an empty one, and `beside`, after them.

    Returns the lines of comments that belong to none.
    """
    lines = text.splitlines()
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    left = set(comments)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            above: list[str] = []
            while first > 1 and (line := lines[first - 2].strip()) in ("", comments.get(first - 1)):
                above.insert(0, line)
                first -= 1
            node.above = above  # type: ignore[attr-defined]
            left -= set(range(first, node.lineno))
            if isinstance(node, ast.Assign) and node in tree.body:
                node.beside = comments.get(node.lineno, "")  # type: ignore[attr-defined]
                left.discard(node.lineno)
    return left
