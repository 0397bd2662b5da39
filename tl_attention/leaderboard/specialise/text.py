"""Specialises a program and writes it down."""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tl_attention.leaderboard.specialise import calls, shake
from tl_attention.leaderboard.specialise.fold import Fold
from tl_attention.leaderboard.specialise.known import Known, Rename, is_plain, names_in
from tl_attention.leaderboard.specialise.layout import written
from tl_attention.leaderboard.specialise.local_names import settle
from tl_attention.leaderboard.specialise.source import Definition, read_source


def specialised(files: Sequence[str], entry: str, arguments: Mapping[str, Any], nameless: Sequence[str] = ()) -> str:
    """The text of a program whose `entry` is called with these arguments: it takes none any more."""
    source = read_source(files)
    known, definitions = source.known, source.definitions
    known.nameless = nameless
    definitions = [_with_arguments(d, arguments, known) if d.name == entry else d for d in definitions]
    with warnings.catch_warnings():
        # Of expressions that are tried out.
        warnings.simplefilter("ignore", SyntaxWarning)
        definitions = _settled(definitions, entry, known)
    calls.without_idle_defaults(definitions)
    mentioned = {name for definition in definitions for name in names_in(definition.node)}
    assert mentioned.isdisjoint(known.unsayable), f"left: {sorted(mentioned & known.unsayable)}"
    constants = {name: value for name, value in known.constants.items() if name in mentioned}
    return written(definitions, source.headings, constants)


def _with_arguments(definition: Definition, arguments: Mapping[str, Any], known: Known) -> Definition:
    function = copy.deepcopy(definition.function)
    assert function
    values = {
        name: known.constant(name.upper(), value) if is_plain(value) else known.symbol(value, named_fields=True)
        for name, value in arguments.items()
    }
    assert set(values) == {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    function.args = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return replace(definition, node=Rename(values.get).visit(function))


def _settled(definitions: Sequence[Definition], entry: str, known: Known) -> list[Definition]:
    """What is left once nothing changes any more."""
    text = ""
    while True:
        definitions, differing = _folded(shake.used(definitions, entry), known)
        definitions = calls.apply(definitions, calls.agreed(definitions, entry, known), known)
        passing = shake.PassOn(definitions)
        for definition in definitions:
            passing.visit(definition.node)
            if definition.function:
                shake.drop_unread_names(definition.function)
        shake.drop_unread_fields(definitions)
        before, text = text, "\n".join(ast.unparse(definition.node) for definition in definitions)
        if text == before:
            plans = calls.parted(definitions, entry, known, differing)
            if not plans:
                return definitions
            definitions = calls.apply(definitions, plans, known)


def _folded(definitions: Sequence[Definition], known: Known) -> tuple[list[Definition], dict[str, dict[str, ast.expr]]]:
    """The definitions with what is known decided, and the names that each call of a function knows otherwise."""
    found = calls.calls_of(definitions)
    differing = {}
    folded = []
    for definition in definitions:
        if definition.function:
            function = copy.deepcopy(definition.function)
            environments = [calls.known_of(call, known) for call in found.get(definition.name, [])] or [{}]
            settled = settle(function, known, environments)
            differing[definition.name] = settled.differing
            Fold(known, [{**each, **settled.numbers} for each in environments]).visit(function)
            definition = replace(definition, node=function)
        folded.append(definition)
    return folded, differing
