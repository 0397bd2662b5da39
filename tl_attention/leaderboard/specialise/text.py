"""Specialises a program and writes it down."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tl_attention.leaderboard.specialise import calls, shake
from tl_attention.leaderboard.specialise.fold import Fold
from tl_attention.leaderboard.specialise.known import Known, Rename, is_plain, names_in
from tl_attention.leaderboard.specialise.layout import written
from tl_attention.leaderboard.specialise.local_names import settle
from tl_attention.leaderboard.specialise.source import Definition, read_source


def specialised(files: Sequence[str], entry: str, arguments: Mapping[str, Any], nameless: Sequence[str] = ()) -> str:
    """The text of a program whose `entry` is called with these arguments; in the text it takes none.

    `files` are the modules of the program, paths from the package's folder, in the order in which they are written.
    Numbers that are decided get names, those of their fields, but for what is below one of the `nameless`.
    Raises InputError without the formatter, AssertionError where a module is not as the contract asks.
    """
    source = read_source(files)
    known = source.known
    known.nameless = nameless
    for definition in source.definitions:
        if definition.name == entry and definition.function:
            _give(definition.function, arguments, known)
    with warnings.catch_warnings():
        # Of expressions that are tried out.
        warnings.simplefilter("ignore", SyntaxWarning)
        definitions = _specialised(source.definitions, entry, known)
    mentioned = {name for definition in definitions for name in names_in(definition.node)}
    assert mentioned.isdisjoint(known.unsayable), f"not decided: {sorted(mentioned & known.unsayable)}"
    constants = {n: known.constants[n] for n in sorted(known.constants, key=known.depths.__getitem__) if n in mentioned}
    return written(definitions, source.headings, constants)


def _give(function: ast.FunctionDef, arguments: Mapping[str, Any], known: Known) -> None:
    """Put the arguments for the parameters."""
    parameters = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    assert parameters == set(arguments), f"{function.name} takes {sorted(parameters)}, found {sorted(arguments)}"
    values = {
        name: known.constant(name.upper(), value)
        if is_plain(value)
        else known.symbol(value, named_fields=name not in known.nameless)
        for name, value in arguments.items()
    }
    function.args = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    Rename(values.get).visit(function)


def _specialised(definitions: Sequence[Definition], entry: str, known: Known) -> list[Definition]:
    """What is left once nothing changes any more."""
    text = ""
    while True:
        definitions = shake.used(definitions, entry)
        differing = _fold(definitions, known)
        definitions = calls.apply(definitions, calls.agreed(definitions, entry, known), known)
        shake.drop(definitions)
        before, text = text, "\n".join(ast.unparse(definition.node) for definition in definitions)
        if text == before:
            plans = calls.parted(definitions, entry, known, differing)
            if not plans:
                calls.drop_idle_defaults(definitions)
                return definitions
            definitions = calls.apply(definitions, plans, known)


def _fold(definitions: Sequence[Definition], known: Known) -> dict[str, dict[str, ast.expr]]:
    """Decide in each function what is known. Returns the names of each that every call knows, but not alike."""
    differing = {}
    found = calls.calls_of(definitions)
    for definition in definitions:
        if definition.function:
            environments = [calls.known_of(call, known) for call in found.get(definition.name, [])] or [{}]
            settled = settle(definition.function, known, environments)
            Fold(known, [{**each, **settled.numbers} for each in environments]).visit(definition.function)
            differing[definition.name] = settled.differing
    return differing
