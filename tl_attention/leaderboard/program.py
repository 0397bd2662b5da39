"""The TileLang program of a schedule as one text: constants, the loop printed from the Program, and the macros it calls.

The macros stand as the package has them, less what the constants decide (pruned.py) and what nothing calls. Modules of a
kernel import by `from module import name`, and no two modules of a lowering define the same name.
"""

from __future__ import annotations

import ast
import functools
import importlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst as cst

from tl_attention.leaderboard.printed import constants_text, entry, function_of, phase_text
from tl_attention.leaderboard.pruned import code, pruned
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

PACKAGE = "tl_attention"
# The function of the package that makes the macros of a loop from the Program; they are printed instead.
MAKES_A_LOOP = "iterations"

Place = tuple[str, str]
"""A definition: its module and its name."""


def program_text(schedule: Schedule, variant: Variant) -> str:
    """The program, whose `attention_kernel()` gives the prim_func. Imports tilelang.

    The file that holds it has `T`, which is tilelang.language, SimpleNamespace and dataclass.
    """
    lowering = lowering_of(schedule)
    program = _Program(lowering.constants(schedule, variant))
    launch = function_of(lowering.launch())
    program.add((launch.__module__, launch.__name__))
    program.add_classes()
    return program.text(entry(variant))


@dataclass(frozen=True)
class Module:
    """A module of the package: the definitions at its top level by name, and what it imports from the package."""

    name: str
    docstring: str
    traced: bool
    definitions: dict[str, cst.CSTNode]
    imports: dict[str, Place]

    @functools.cached_property
    def tables(self) -> dict[str, cst.Dict]:
        """The dictionaries that have a name."""
        found = {name: _assigned(node) for name, node in self.definitions.items()}
        return {name: value for name, value in found.items() if isinstance(value, cst.Dict)}


@functools.cache
def read_module(name: str) -> Module:
    """A module of the package, read from its file; `traced` if it is TileLang's text."""
    path = Path(str(importlib.import_module(name).__file__))
    tree = cst.parse_module(path.read_text(encoding="utf-8"))
    definitions: dict[str, cst.CSTNode] = {}
    imports: dict[str, Place] = {}
    for node in tree.body:
        [plain] = ast.parse(code(node)).body
        if isinstance(plain, (ast.FunctionDef, ast.ClassDef)):
            definitions[plain.name] = node
        elif isinstance(plain, ast.ImportFrom) and str(plain.module).startswith(f"{PACKAGE}."):
            imports |= {alias.name: (str(plain.module), alias.name) for alias in plain.names}
        elif isinstance(plain, (ast.Assign, ast.AnnAssign)):
            definitions |= {part.id: node for part in ast.walk(plain) if _is_stored(part)}
    traced = "import tilelang.language as T\n" in tree.code
    return Module(name, str(tree.get_docstring()), traced, definitions, imports)


class _Program:
    """The definitions of a program, found by who calls them."""

    def __init__(self, c: SimpleNamespace) -> None:
        self._c = c
        self._texts: dict[Place, str] = {}

    def add(self, *wanted: Place) -> None:
        """Add definitions and all that they use, in the order in which a reader comes to them."""
        waiting = list(wanted)
        while waiting:
            place = waiting.pop(0)
            if place in self._texts:
                continue
            module = read_module(place[0])
            if place[1] not in module.definitions:
                # It passes on what it imports.
                waiting.insert(0, module.imports[place[1]])
                continue
            node = module.definitions[place[1]]
            if _made_by(node) == MAKES_A_LOOP:
                source = importlib.import_module(module.name)
                text, called = phase_text(place[1], getattr(source, place[1]), self._c, source.call_of)
                uses = [(function_of(macro).__module__, function_of(macro).__name__) for macro in called]
            else:
                text = self._without_what_is_decided(node, module)
                uses = [_found(name, module) for name in _used(text)]
            self._texts[place] = text
            waiting += filter(None, uses)

    def add_classes(self) -> None:
        """Add the classes of constants that have methods, with those that are called."""
        for value in vars(self._c).values():
            module = type(value).__module__
            if module.startswith(f"{PACKAGE}.problem."):
                self._texts[module, type(value).__name__] = self._class_of(value)

    def _without_what_is_decided(self, node: cst.CSTNode, module: Module) -> str:
        return code(pruned(node, {"c": self._c}, module.tables) if isinstance(node, cst.FunctionDef) else node)

    def _class_of(self, value: Any) -> str:
        """The class of a constant: there is no other instance, so what that one decides is left out of its methods."""
        node = read_module(type(value).__module__).definitions[type(value).__name__]
        assert isinstance(node, cst.ClassDef)
        called = {part.attr for text in self._texts.values() for part in ast.walk(ast.parse(text)) if _is_field(part)}
        body = [part for part in node.body.body if not isinstance(part, cst.FunctionDef) or part.name.value in called]
        return code(pruned(node.with_changes(body=node.body.with_changes(body=body)), {"self": value}, {}))

    def text(self, head: str) -> str:
        """The whole text: what the constants are made of, the constants, the head, and the modules from the kernel down."""
        names = dict.fromkeys(module for module, _ in self._texts)
        depths = {name: _depth(name, names) for name in names}
        classes = [name for name in names if name.startswith(f"{PACKAGE}.problem.")]
        traced = sorted((name for name in names if read_module(name).traced), key=depths.__getitem__)
        # Constants stand behind those of which they are made.
        others = sorted(({*names} - {*classes, *traced}), key=lambda name: (-depths[name], name))
        constants = "# What the schedule and the problem fix.\n\n" + constants_text(self._c, self._texts.values())
        parts = [*map(self._section, classes), constants, head, *map(self._section, [*traced, *others])]
        return "\n\n".join(parts)

    def _section(self, name: str) -> str:
        """What is left of a module, below its docstring."""
        module = read_module(name)
        kept = dict.fromkeys(self._texts[name, found] for found in module.definitions if (name, found) in self._texts)
        heading = textwrap.indent(module.docstring.strip(), "# ", lambda line: True).replace("# \n", "#\n")
        return "\n".join([heading, "\n", *kept])


def _depth(name: str, names: dict[str, None]) -> int:
    """How many imports lead from the kernel to a module, by the longest way."""
    importers = [other for other in names if any(module == name for module, _ in read_module(other).imports.values())]
    return max((1 + _depth(other, names) for other in importers), default=0)


def _found(name: str, module: Module) -> Place | None:
    """What a name means in a module, None for one that is not the package's."""
    return (module.name, name) if name in module.definitions else module.imports.get(name)


def _used(text: str) -> Iterator[str]:
    """The names that a definition reads and does not bind, in the order of its text."""
    nodes = sorted(
        (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)), key=lambda n: (n.lineno, n.col_offset)
    )
    bound = {node.id for node in nodes if _is_stored(node)}
    bound |= {node.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.arg)}
    return (node.id for node in nodes if node.id not in bound)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_field(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute)


def _assigned(node: cst.CSTNode) -> cst.BaseExpression | None:
    """The value of an assignment."""
    if not isinstance(node, cst.SimpleStatementLine) or not isinstance(node.body[0], (cst.Assign, cst.AnnAssign)):
        return None
    return node.body[0].value


def _made_by(node: cst.CSTNode) -> str:
    """The function whose call is assigned."""
    value = _assigned(node)
    return code(value.func) if isinstance(value, cst.Call) else ""
