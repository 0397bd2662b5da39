"""This module prints the TileLang program of a schedule as one text.

The loop is printed from the Program. What it calls stands below it to the letter: every function of the package that
runs while TileLang traces the kernel. Other functions are None, where one that runs names them. The constants have what
is asked of them.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from tl_attention.errors import InputError
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.shared import iterations
from tl_attention.kernels.shared.constants import Constants, EmittedConstants
from tl_attention.kernels.shared.device_code import DeviceCode
from tl_attention.kernels.shared.iterations import function_of
from tl_attention.kernels.shared.signature import compiled_in, prim_func
from tl_attention.lab.leaderboard import source
from tl_attention.lab.leaderboard.printed_loop import phase_text, phases
from tl_attention.lab.leaderboard.python_text import WIDTH, enclosed, literal
from tl_attention.lab.leaderboard.source import PACKAGE, Global
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned

# The macros of the loop that read the Program; they are printed instead.
LOOP = iterations.__name__
# It is printed function by function.
PRELUDE = "prelude"
OWN = ("T", "c", "SimpleNamespace", "attention_kernel")
Seen = set[tuple[str, int]]
"""Where functions begin that ran: file and line."""

ENTRY = '''\
def attention_kernel():
    """The prim_func: Output = softmax(softmax_scale Q K^T) V, with products accumulated in float32."""
    batch, heads, seq_q, seq_kv = T.dynamic("batch, heads, seq_q, seq_kv")

    @T.prim_func
    def attention(
        {parameters},
    ):
        {launch}(SimpleNamespace({given}), c)

    return attention
'''
CONSTANTS = """\
# What the schedule and the problem fix.
#
# The steady state of the loop runs from iteration `start` to the number of KV blocks plus `end`. A block that needs a mask
# is worked on up to `masked_lag` iterations after the one of its number.
"""
ABSENT = "# Other schedules and problems need these: this kernel never comes to them."


class ProgramText(NamedTuple):
    """A ProgramText is the text of a TileLang program, with its import statements of what is not the package's."""

    imports: tuple[str, ...]
    of_tilelang: tuple[str, ...]  # imports that only a machine with TileLang can run
    text: str


def packed_program(planned: Planned, variant: Variant, taken: Iterable[str] = ()) -> ProgramText:
    """Returns a schedule's TileLang program, in which `attention_kernel()` gives the prim_func. Imports tilelang.

    The file that holds the text has `T`, which is tilelang.language, and has `taken` names for something else. The
    variant's sizes are read at run time, its SMs and ratio of heads are given. Its tensors are as wide as the tiles;
    none is optional.
    """
    lowering = lowering_of(planned.schedule)
    launch, c = lowering.launch(), lowering.constants(planned, variant)
    seen: Seen = set()

    def noted(given: Any, c: Any) -> None:
        sys.setprofile(partial(_note, seen))
        try:
            launch(given, c)
        finally:
            sys.setprofile(None)

    asked = lowering.asked_by(planned.schedule)
    prim_func(noted, c, variant, asked)
    collected = _Collected(c, compiled_in(c, variant, asked), seen, taken)
    text = collected.text(_place_of(launch))
    imports = sorted(collected.imports)
    of_tilelang = [line for line in imports if re.match(r"(from|import) (tilelang|tvm)\b", line)]
    return ProgramText(tuple(line for line in imports if line not in of_tilelang), tuple(of_tilelang), text)


def _note(seen: Seen, frame: Any, event: str, argument: Any) -> None:
    # Dataclasses have methods that stand in no file.
    if event == "call" and not frame.f_code.co_filename.startswith("<"):
        seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))


def _place_of(macro: Any) -> Global:
    return Global(function_of(macro).__module__, function_of(macro).__name__)


class _Collected:
    """This object collects the definitions that a program's entry uses, itself or through other definitions."""

    def __init__(self, c: Constants, known: dict[str, int], seen: Seen, taken: Iterable[str]) -> None:
        self._c, self._known, self._seen = c, known, seen
        self._phases = phases(c.loop) if isinstance(c, EmittedConstants) else {}
        self._texts: dict[Global, str] = {}
        self._uses: dict[Global, list[Global]] = {}
        self._absent: list[str] = []
        # What each name of the program means; the first are the file's own.
        self._names: dict[str, Global | None] = dict.fromkeys((*OWN, *taken))
        self.imports = {"from types import SimpleNamespace"}

    def text(self, launch: Global) -> str:
        """Returns the program as one text, in which `launch` is the macro that the kernel begins in.

        In order it has the entry, the loop, the package's modules, each below those that it imports, the constants, and
        the device functions.
        """
        entry = entry_text(self._c.variant, self._known, self._name_of(launch))
        self._add(launch)
        constants = f"{CONSTANTS}c = {self._written('c', self._c, ''.join([entry, *self._texts.values()]))}"
        of_loop = (Global(LOOP, name) for name in self._phases)
        loop = [self._texts.pop(place) for place in of_loop if place in self._texts]
        needs: dict[str, list[str]] = {place.module: [] for place in self._texts}
        for place in self._texts:
            others = (other.module for other in self._uses[place] if other in self._texts)
            needs[place.module] += [other for other in others if other != place.module]
        sections = map(self._section, TopologicalSorter(needs).static_order())
        parts = [entry, *loop, self._nothing(), *sections, constants, device_code_text(self._c.device_code)]
        return "\n\n\n".join(part.strip() for part in parts if part)

    # --- the package's definitions -----------------------------------------------------------------------------

    def _add(self, wanted: Global) -> None:
        """Adds to the program's text a definition and every definition that it uses, itself or through others."""
        waiting = [wanted]
        while waiting:
            place = waiting.pop(0)
            if place in self._uses:
                continue
            _, node = source.read(place.module).definitions[place.name]
            if isinstance(node, ast.FunctionDef) and not self._ran(place.module, node):
                self._absent.append(self._name_of(place))
                self._uses[place] = []
            elif place.module == LOOP and place.name in self._phases:
                assert isinstance(self._c, EmittedConstants)
                self._texts[place], called = phase_text(place.name, self._c, lambda m: self._name_of(_place_of(m)))
                self._uses[place] = [*map(_place_of, called)]
            else:
                self._texts[place], self._uses[place] = self._definition(place)
            waiting += self._uses[place]

    def _ran(self, module: str, node: ast.stmt) -> bool:
        """Says whether a function ran, by the lines that it has."""
        path, lines = source.read(module).path, range(source.start(node) + 1, (node.end_lineno or 0) + 1)
        return any((path, line) in self._seen for line in lines)

    def _definition(self, place: Global) -> tuple[str, list[Global]]:
        """Returns (a definition's text, the definitions that it uses); a class has only the methods that ran."""
        module = source.read(place.module)
        text = module.text(place.name, partial(self._ran, place.module))
        [tree] = ast.parse(text).body
        if any(isinstance(part, (ast.Import, ast.ImportFrom)) for part in ast.walk(tree)):
            raise InputError(f"{place.module}: {place.name} imports when it is called, expected imports above it")
        uses, names = [], {}
        for part in source.used(tree):
            meaning, statement = module.meaning(part), module.others.get(getattr(part, "id", ""), "")
            if meaning and meaning.name:
                uses.append(meaning)
                names[part] = self._name_of(meaning)
            elif statement.startswith("import tilelang.language as "):
                names[part] = "T"
            elif statement:
                self.imports.add(statement)
        text = source.renamed(text, {part: name for part, name in names.items() if ast.unparse(part) != name})
        return re.sub(rf"^(def|class) {place.name}\b", rf"\1 {self._name_of(place)}", text, flags=re.MULTILINE), uses

    def _name_of(self, place: Global) -> str:
        """Returns the name of a definition in the program: its own, or with its module's before it if that is taken."""
        modules = place.module.split(".")
        names = ("_".join([*modules[first:], place.name]) for first in range(len(modules), -1, -1))
        return next(name for name in names if self._names.setdefault(name, place) == place)

    def _nothing(self) -> str:
        """Returns text that gives the names of functions that did not run the value None, "" if there are none."""
        names = (f"{name}==" for name in sorted(self._absent))
        lines = textwrap.wrap(" ".join(names), WIDTH - len(" None"))
        return "\n".join([ABSENT, *(f"{line.replace('==', ' =')} None" for line in lines)]) if lines else ""

    def _section(self, name: str) -> str:
        """Returns the text of a module's definitions that the program uses, below the module's docstring."""
        module = source.read(name)
        # A statement that defines several names stands once.
        kept = dict.fromkeys(self._texts.get(Global(name, own), "") for own in module.definitions)
        heading = textwrap.indent(module.docstring, "# ", lambda line: True).replace("# \n", "#\n")
        return f"{heading}\n\n{''.join(kept).strip()}"

    # --- the constants -----------------------------------------------------------------------------------------

    def _written(self, name: str, value: Any, program: str, indent: int = 0) -> str:
        """Returns the Python text of a constant: an instance of its class if a method ran, else what is asked of it."""
        kind = type(value)
        if kind.__module__.partition(".")[0] != PACKAGE:
            return literal(value)
        fields = getattr(kind, "_fields", ()) or getattr(kind, "model_fields", ()) or kind.__dataclass_fields__
        codes = [getattr(member, "__code__", None) for member in vars(kind).values()]
        if any(code and (code.co_filename, code.co_firstlineno) in self._seen for code in codes):
            self._add(place := Global(kind.__module__, kind.__qualname__))
            of, names = self._name_of(place), [*fields]
        else:
            # What is passed as a whole, as all constants together are, may be asked for anything.
            whole = value is self._c or re.search(rf"\.{name}\b(?!\.)", program)
            asked = {*re.findall(r"\.(\w+)" if whole else rf"\b{name}\.(\w+)", program)} - {PRELUDE}
            computed = (own for own, member in vars(kind).items() if isinstance(member, property))
            of, names = "SimpleNamespace", [own for own in (*fields, *computed) if own in asked]
        given = ((own, self._written(own, getattr(value, own), program, indent + 4)) for own in names)
        return enclosed(f"{of}(", (f"{own}={text}" for own, text in given), ")", indent, len(f"{name}="))


def entry_text(variant: Variant, known: dict[str, int], launch: str) -> str:
    """Returns the text of the prim_func, with the parameters of a variant's kernel, whose K and V have Q's heads."""
    types = {}
    for p in variant.parameters():
        dims = (f"c.{dim}" if str(dim).startswith("head_dim") else dim for dim in p.dims)
        heads = ", ".join(str(dim).replace("heads_kv", "heads") for dim in dims)
        types[p.name] = f"T.Tensor([{heads}], c.dtype)" if p.dims else f"T.{p.dtype}"
    given = (*(f"{name}={name}" for name in types), *(f"{name}={value}" for name, value in known.items()))
    parameters = ",\n        ".join(f"{name}: {of}" for name, of in types.items())
    return ENTRY.format(parameters=parameters, launch=launch, given=", ".join(given))


def device_code_text(device_code: Iterable[DeviceCode]) -> str:
    """Returns Python text that sets `c.prelude`, function by function, each below what it is for."""
    head = '# CUDA device functions stand before the kernel.\nc.prelude = ""\n'
    parts = (f'{textwrap.indent(code.about, "# ")}\nc.prelude += """{code.text}"""\n' for code in device_code)
    return "\n".join([head, *parts])
