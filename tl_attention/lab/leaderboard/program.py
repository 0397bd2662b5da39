"""This module prints the TileLang program of a schedule as one text.

The text has the constants, the loop printed from the Program, the macros that the loop calls, and the CUDA device
functions. The macros stand as in the package, without what the constants decide (pruned.py) and without what nothing
calls. Modules of a kernel import by `from module import name`, and no two modules of a lowering define the same name.
"""

from __future__ import annotations

import ast
import functools
import importlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from inspect import getdoc
from pathlib import Path
from typing import Any, TypeGuard

import libcst as cst
from pydantic import BaseModel

from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.shared.constants import Constants, EmittedConstants
from tl_attention.kernels.shared.device_code import DeviceCode
from tl_attention.kernels.shared.iterations import call_of, function_of, parameters
from tl_attention.kernels.shared.loop import Loop
from tl_attention.lab.leaderboard.pruned import code, pruned
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.program.program import Iteration, Operation

PACKAGE = "tl_attention."
# The kernels' room, and the room of the classes whose values macros ask.
KERNELS, PROBLEM = f"{PACKAGE}kernels.", f"{PACKAGE}problem."
# The macros of the loop that read the Program; they are printed instead.
LOOP = f"{KERNELS}shared.iterations"

ENTRY = '''def attention_kernel():
    """The prim_func: Output = softmax(softmax_scale Q K^T) V, with products accumulated in float32."""
    batch, heads, seq_q, seq_kv = T.dynamic("batch, heads, seq_q, seq_kv")

    @T.prim_func
    def attention(
        {parameters},
    ):
        launch(SimpleNamespace({given}), c)

    return attention
'''
HEADING = """\
# What the schedule and the problem fix.
#
# The steady state of the loop runs from iteration `start` to the number of KV blocks plus `end`. A block that needs a mask
# is worked on up to `masked_lag` iterations after the one of its number.
"""
# These constants are printed as the macros of the loop and their arguments.
THE_LOOP = ("prologue", "steady", "unmasked", "epilogue", "named", "chunks", "macro_of")
# A submission's problem has none of these, so nothing asks for them.
NOT_THERE = ("features",)
# The variant is that of every submission, and device code is printed below the macros.
ELSEWHERE = ("variant", "device_code")
Place = tuple[str, str]
"""A definition: its module and its name."""


def program_text(planned: Planned, variant: Variant) -> str:
    """Returns a schedule's TileLang program as one text, in which `attention_kernel()` gives the prim_func.

    Imports tilelang. The file that holds the text has `T`, which is tilelang.language, SimpleNamespace and dataclass.
    The variant's sizes are read at run time, its tensors are as wide as the tiles, and it has no optional tensors.
    """
    lowering = lowering_of(planned.schedule)
    program = _Program(lowering.constants(planned, variant))
    program.add(_place_of(lowering.launch()))
    program.add_classes()
    return program.text()


@dataclass(frozen=True)
class Module:
    """A module of the package holds its top-level definitions by name, and its imports from the package.

    The module is `traced` if it is TileLang's text. `tables` are its dictionaries of functions.
    """

    name: str
    docstring: str
    traced: bool
    tables: dict[str, Any]
    definitions: dict[str, cst.CSTNode] = field(default_factory=dict)
    imports: dict[str, Place] = field(default_factory=dict)

    def find(self, name: str) -> Place | None:
        """Returns (module, name) of the definition that a name means here, None if it is not the package's."""
        return (self.name, name) if name in self.definitions else self.imports.get(name)


@functools.cache
def read_module(name: str) -> Module:
    """Reads the definitions, tables and imports of a module of the package from its source file."""
    module = importlib.import_module(name)
    tree = cst.parse_module(Path(str(module.__file__)).read_text(encoding="utf-8"))
    dictionaries = {key: value for key, value in vars(module).items() if isinstance(value, dict)}
    tables = {key: value for key, value in dictionaries.items() if all(map(callable, value.values()))}
    found = Module(name, str(tree.get_docstring()), "import tilelang.language as T\n" in tree.code, tables)
    for node in tree.body:
        [plain] = ast.parse(code(node)).body
        if isinstance(plain, (ast.FunctionDef, ast.ClassDef)):
            found.definitions[plain.name] = node
        elif isinstance(plain, ast.ImportFrom) and str(plain.module).startswith(PACKAGE):
            found.imports.update({alias.name: (str(plain.module), alias.name) for alias in plain.names})
        elif isinstance(plain, (ast.Assign, ast.AnnAssign)):
            names = [part.id for part in ast.walk(plain) if _is_stored(part)]
            found.definitions.update(dict.fromkeys(names, node))
    return found


class _Program:
    """A program collects the definitions that its entry uses, directly or through other definitions."""

    def __init__(self, c: Constants) -> None:
        self._c = c
        self._texts: dict[Place, str] = {}
        # The printed loop calls these definitions, which its module does not import.
        self._called: set[Place] = set()

    def add(self, wanted: Place) -> None:
        """Adds to the program's text a definition and every definition that it uses, itself or through others."""
        waiting = [wanted]
        while waiting:
            place = waiting.pop(0)
            if place in self._texts:
                continue
            module = read_module(place[0])
            node = module.definitions[place[1]]
            if isinstance(self._c, EmittedConstants) and place[0] == LOOP and place[1] in phases(self._c.loop):
                macro = getattr(importlib.import_module(module.name), place[1])
                text, called = phase_text(place[1], macro, self._c)
                places = [*map(_place_of, called)]
                self._called.update(places)
                waiting += places
            else:
                is_function = isinstance(node, cst.FunctionDef)
                text = code(pruned(node, {**module.tables, "c": self._c}) if is_function else node)
                waiting += filter(None, map(module.find, _used(text)))
            self._texts[place] = text

    def add_classes(self) -> None:
        """Adds the class of each constant whose class is defined in problem/, with only the methods that are called."""
        for value in printed(self._c).values():
            if PROBLEM in type(value).__module__:
                self._texts[type(value).__module__, type(value).__name__] = self._class_of(value)

    def _class_of(self, value: Any) -> str:
        """Returns the text of a constant's class, with only the methods that are called.

        The constant is the only instance, so what it decides is left out of the methods.
        """
        node = read_module(type(value).__module__).definitions[type(value).__name__]
        assert isinstance(node, cst.ClassDef)
        node = cst.ensure_type(pruned(node, {"self": value}), cst.ClassDef)
        methods = {part.name.value: code(part) for part in node.body.body if isinstance(part, cst.FunctionDef)}
        called: set[str] = set()
        waiting = [*self._texts.values()]
        while waiting:
            text = waiting.pop()
            new = {name for name in methods if f".{name}(" in text} - called
            called |= new
            waiting += (methods[name] for name in new)
        body = [part for part in node.body.body if not isinstance(part, cst.FunctionDef) or part.name.value in called]
        return code(node.with_changes(body=node.body.with_changes(body=body)))

    def text(self) -> str:
        """Returns the program as one text of the definitions added, the constants and the entry.

        In order it has the definitions of other rooms than the kernels', the constants, the entry, the modules from the
        kernel down, and the device functions.
        """
        names = dict.fromkeys(module for module, _ in self._texts)
        imports = {
            name: {place[0] for place in read_module(name).imports.values() if place in self._texts} for name in names
        }
        imports.setdefault(LOOP, set()).update(module for module, _ in self._called)
        importers = {name: [other for other in names if name in imports[other]] for name in names}
        order = [read_module(name) for name in TopologicalSorter(importers).static_order()]
        below = [module for module in order if KERNELS not in module.name]
        macros = [module for module in order if module.traced]
        # Constants stand behind the constants of which they are made.
        plain = [module for module in reversed(order) if module not in (*below, *macros)]
        behind = [*map(self._section, [*macros, *plain]), device_code_text(self._c.device_code)]
        parts = [*map(self._section, below), constants_text(self._c), entry(self._c.variant), *behind]
        return "\n\n".join(parts)

    def _section(self, module: Module) -> str:
        """Returns the text of a module's definitions that the program uses, below the module's docstring."""
        places = [(module.name, name) for name in module.definitions]
        # A statement that defines several names stands once.
        kept = dict.fromkeys(self._texts[place] for place in places if place in self._texts)
        heading = textwrap.indent(module.docstring.strip(), "# ", lambda line: True).replace("# \n", "#\n")
        return "".join([heading, "\n\n\n", *kept])


def _place_of(macro: Any) -> Place:
    return function_of(macro).__module__, function_of(macro).__name__


def _used(text: str) -> list[str]:
    """Returns the names that a definition reads and does not bind, in the same order in every process."""
    nodes = [*ast.walk(ast.parse(text))]
    bound = {node.id for node in nodes if _is_stored(node)} | {node.arg for node in nodes if isinstance(node, ast.arg)}
    return sorted({node.id for node in nodes if isinstance(node, ast.Name)} - bound)


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


# --- the loop ----------------------------------------------------------------------------------------------------


def phases(loop: Loop) -> dict[str, tuple[str, list[Iteration], Sequence[Iteration], bool]]:
    """Returns by name, for each macro of the loop, (start, iterations before, iterations, whether it masks).

    Iterations count from `start`. The list of those before holds the iteration before the first, or nothing.
    """
    steady, unmasked = loop.steady.operations, loop.unmasked
    return {
        "prologue": ("", [], loop.prologue, True),
        "steady": ("t", [Iteration(-1, unmasked)], [Iteration(0, unmasked)], False),
        "steady_masked": ("t", [Iteration(-1, steady)], [Iteration(0, steady)], True),
        "epilogue": ("blocks", [Iteration(loop.end - 1, steady)], loop.epilogue, True),
    }


def phase_text(phase: str, macro: Any, c: EmittedConstants) -> tuple[str, list[Any]]:
    """Returns the text of one macro of the loop, with a line for each operation, and the macros that the text calls."""
    start, before, iterations, masked = phases(c.loop)[phase]
    lines: list[str] = []
    later, called, flying = "", [], InFlight()
    for t, operations in before:
        for op in operations:
            flying.after(op, t - op.lag)
    for t, operations in iterations:
        # TileLang makes another expression of a sum that is passed, as the package passes it, than of one that is not.
        passed = phase == "epilogue" and t != 0
        number, own = (0, []) if passed else (t, lines)
        if len(iterations) > 1 and not passed:
            own.append(f"# Iteration {_offset(start, t)}.")
        for op in operations:
            callee, keywords = call_of(op, c, masked)
            defaults = {name: parameter.default for name, parameter in parameters(callee).items()}
            by_name = [f"{name}={value!r}" for name, value in keywords.items() if value != defaults[name]]
            block, comment = _offset(start, number - op.lag), flying.after(op, t - op.lag, start, number - t)
            own.append(f"{function_of(callee).__name__}({', '.join([block, 'tile', 's', 'c', *by_name])}){comment}")
            called.append(callee)
        if passed:
            lines.append(f"epilogue_{t}({_offset(start, t)}, tile, s, c)")
            docstring = f"Iteration {_offset(start, t)}, whose number is `blocks` here."
            later += macro_text(f"epilogue_{t}", parameters(macro), docstring, own)
    return macro_text(phase, parameters(macro), getdoc(function_of(macro)), lines) + later, called


def macro_text(name: str, takes: Iterable[str], docstring: str | None, lines: list[str]) -> str:
    """Returns the text of a macro with this name, these parameters and these lines."""
    head = f'\n\n@T.macro\ndef {name}({", ".join(takes)}):\n    """{docstring}"""\n'
    return head + "".join(f"    {line}\n" for line in lines or ["pass"])


class InFlight(list[tuple[str, int]]):
    """This list holds the products that were issued and not yet waited for, each with its block."""

    def after(self, op: Operation, block: int, start: str = "", shift: int = 0) -> str:
        """Updates the list by an operation, and returns the products in flight as a comment, "" if none changed.

        The comment counts blocks from `start`.
        """
        if op.kind == "wait" and (op.statement, block) in self:
            del self[: len(self) - op.outstanding]
        elif op.kind == "issue" and op.statement.startswith("mma"):
            self.append((op.statement, block))
        else:
            return ""
        flying = ", ".join(f"{statement}({_offset(start, of + shift)})" for statement, of in self)
        return f"  # in flight: {flying or 'nothing'}"


def _offset(start: str, number: int) -> str:
    if not start:
        return str(number)
    return f"{start} {'-' if number < 0 else '+'} {abs(number)}" if number else start


# --- the constants -------------------------------------------------------------------------------------------------


def entry(variant: Variant) -> str:
    """Returns the text of the prim_func, with the parameters that a variant's kernel takes, whose K and V have Q's heads."""
    types = {}
    for p in variant.parameters():
        dims = (f"c.{dim}" if str(dim).startswith("head_dim") else dim for dim in p.dims)
        heads = ", ".join(str(dim).replace("heads_kv", "heads") for dim in dims)
        types[p.name] = f"T.Tensor([{heads}], c.dtype)" if p.dims else f"T.{p.dtype}"
    parameters = ",\n        ".join(f"{name}: {of}" for name, of in types.items())
    return ENTRY.format(parameters=parameters, given=", ".join(f"{name}={name}" for name in types))


def constants_text(c: Constants) -> str:
    """Returns Python text that defines the constants as one namespace `c`."""
    there = ", ".join(f"{name}={_written(value)}" for name, value in printed(c).items())
    return f"{HEADING}c = SimpleNamespace({there})\n"


def printed(c: Constants) -> dict[str, Any]:
    """Returns the constants that stand in the namespace `c`, by name."""
    return {name: value for name, value in vars(c).items() if name not in (*THE_LOOP, *NOT_THERE, *ELSEWHERE)}


def device_code_text(device_code: Iterable[DeviceCode]) -> str:
    """Returns Python text that sets `c.prelude`, function by function, each below what it is for."""
    head = '# CUDA device functions stand before the kernel.\nc.prelude = ""\n'
    parts = (f'{textwrap.indent(code.about, "# ")}\nc.prelude += """{code.text}"""\n' for code in device_code)
    return "\n".join([head, *parts])


def _written(value: Any) -> str:
    """Returns the Python text of a constant, for a model or named tuple a namespace of its fields and properties.

    The namespace is without the names of THE_LOOP.
    """
    if not isinstance(value, BaseModel) and not hasattr(value, "_fields"):
        return repr(value)
    kind = type(value)
    names = [*kind.model_fields] if isinstance(value, BaseModel) else [*value._fields]
    names += [name for name, member in vars(kind).items() if isinstance(member, property)]
    fields = [f"{name}={_written(getattr(value, name))}" for name in names if name not in THE_LOOP]
    return f"SimpleNamespace({', '.join(fields)})"
