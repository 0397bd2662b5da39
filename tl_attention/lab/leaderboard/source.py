"""This module reads modules of the package as text: their definitions to the letter, and what names in these mean."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import NamedTuple

PACKAGE = "tl_attention"


class Global(NamedTuple):
    """A Global is a module and a name that it defines; a name of "" is the module as a whole."""

    module: str
    name: str


@dataclass(frozen=True)
class Source:
    """A Source is a module of the package as text."""

    name: str
    path: str
    docstring: str
    lines: tuple[str, ...]
    # Each top-level definition by name, with the line behind the definition before it.
    definitions: dict[str, tuple[int, ast.stmt]] = field(default_factory=dict)
    imports: dict[str, Global] = field(default_factory=dict)  # where each name from the package is defined
    others: dict[str, str] = field(default_factory=dict)  # the statement that imports each other name

    def meaning(self, node: ast.expr) -> Global | None:
        """Returns what a name, or an attribute of an imported module, means here, None if it is not the package's."""
        if isinstance(node, ast.Attribute):
            of = self.meaning(node.value)
            return origin(Global(of.module, node.attr)) if of and not of.name else None
        name = getattr(node, "id", "")
        return Global(self.name, name) if name in self.definitions else self.imports.get(name)

    def text(self, name: str, keeps: Callable[[ast.stmt], bool]) -> str:
        """Returns a definition's text with the comment above it, of a class only the methods that `keeps` names."""
        begin, node = self.definitions[name]
        if not isinstance(node, ast.ClassDef):
            return "".join(self.lines[begin : node.end_lineno])
        end = start(node.body[0])
        kept = [*self.lines[begin:end]]
        for part in node.body:
            if not isinstance(part, ast.FunctionDef) or keeps(part):
                kept += self.lines[end : part.end_lineno]
            end = part.end_lineno or 0
        return "".join(kept)


@functools.cache
def read(name: str) -> Source:
    """Reads a module of the package from its file, without importing it."""
    spec = find_spec(name)
    assert spec and spec.origin
    text = Path(spec.origin).read_text(encoding="utf-8")
    tree = ast.parse(text)
    source = Source(name, spec.origin, ast.get_docstring(tree) or "", tuple(text.splitlines(keepends=True)))
    end = 0
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            source.definitions[node.name] = (end, node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (name for target in targets for name in _stored(target))
            source.definitions.update(dict.fromkeys(names, (end, node)))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                _note_import(source, node, alias)
        end = node.end_lineno or 0
    return source


def _note_import(source: Source, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
    if isinstance(node, ast.ImportFrom):
        of = resolve_name("." * node.level + (node.module or ""), source.name.rpartition(".")[0])
        own, place, text = alias.asname or alias.name, Global(of, alias.name), f"from {of} import {ast.unparse(alias)}"
    else:
        root = alias.name.partition(".")[0]
        own, place, text = alias.asname or root, Global(alias.name if alias.asname else root, ""), ast.unparse(node)
    if place.module.partition(".")[0] != PACKAGE:
        source.others[own] = text
    else:
        source.imports[own] = origin(place) if place.name else place


def origin(place: Global) -> Global:
    """Returns where a name is defined, which the module of that name may itself import."""
    source = read(place.module)
    if place.name in source.definitions:
        return place
    return source.imports.get(place.name) or Global(f"{place.module}.{place.name}", "")


def start(node: ast.stmt) -> int:
    """Returns how many lines stand before a statement, and before its decorators."""
    return min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))) - 1


def used(node: ast.AST) -> Iterator[ast.expr]:
    """Yields a definition's attributes, and its names but for those that are a function's own."""
    if isinstance(node, ast.ClassDef):
        # Methods do not see the names of their class.
        for part in (*node.bases, *node.decorator_list, *node.body):
            yield from (name for name in used(part) if isinstance(getattr(name, "ctx", None), ast.Load))
        return
    own = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    if isinstance(node, ast.FunctionDef):
        own |= _stored(node) | {str(getattr(part, "name", "")) for part in ast.walk(node)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) or (isinstance(part, ast.Name) and part.id not in own):
            yield part


def _stored(node: ast.AST) -> set[str]:
    """Returns the names that are given a value."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def renamed(text: str, names: dict[ast.expr, str]) -> str:
    """Returns a text with other names in the place of these parts of its syntax tree."""
    lines = text.encode().splitlines(keepends=True)
    for part, name in sorted(names.items(), key=lambda item: item[0].col_offset, reverse=True):
        line = lines[part.lineno - 1]
        lines[part.lineno - 1] = line[: part.col_offset] + name.encode() + line[part.end_col_offset :]
    return b"".join(lines).decode()
