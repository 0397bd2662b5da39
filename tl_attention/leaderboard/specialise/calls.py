"""Decides parameters: what all calls of a function pass alike stands in the function itself, what it does not use goes.

A record becomes those of its fields that are used. Where calls pass different lists of operations, each list gets a
function of its own.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tl_attention.leaderboard.specialise.known import (
    UNKNOWN,
    Environment,
    Known,
    Rename,
    expression,
    is_plain,
    names_in,
)
from tl_attention.leaderboard.specialise.local_names import bindings, without_assignments
from tl_attention.leaderboard.specialise.source import Definition

ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List)
Arguments = dict[str, ast.expr]


def parameters(args: ast.arguments) -> list[str]:
    return [arg.arg for arg in args.args]


def bound(args: ast.arguments, call: ast.Call) -> Arguments:
    """What a call passes, by parameter, in their order; defaults included."""
    stars = [arg for arg in call.args if isinstance(arg, ast.Starred)] + [k for k in call.keywords if k.arg is None]
    assert not stars, f"{ast.unparse(call)}: expected every argument by itself"
    names, defaults = parameters(args), args.defaults
    given = dict(zip(names[len(names) - len(defaults) :], defaults))
    given |= dict(zip(names, call.args))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    assert set(names) == set(given), f"{ast.unparse(call)} does not pass {names}"
    return {name: given[name] for name in names}


def calls_of(definitions: Sequence[Definition]) -> dict[str, list[Arguments]]:
    """The arguments of each call of each function.

    None of a function that is also named without a call; nor of one that is asked for a function, and will be gone.
    """
    functions = {d.name: d.function for d in definitions if d.function}
    found: dict[str, list[Arguments]] = {name: [] for name in functions}
    asked: set[str] = set()
    mentioned: list[str] = []
    for definition in definitions:
        mentioned += names_in(definition.node)
        for node in ast.walk(definition.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and isinstance(node.func.func, ast.Name):
                asked.add(node.func.func.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                found[node.func.id].append(bound(functions[node.func.id].args, node))
    return {n: calls for n, calls in found.items() if n not in asked and mentioned.count(n) == len(calls)}


def drop_idle_defaults(definitions: Sequence[Definition]) -> None:
    """Drop the defaults of functions whose calls pass everything themselves."""
    calls = [node for definition in definitions for node in ast.walk(definition.node) if isinstance(node, ast.Call)]
    for definition in definitions:
        if function := definition.function:
            own = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == definition.name]
            if all(len(call.args) + len(call.keywords) == len(function.args.args) for call in own):
                function.args.defaults = []


def known_of(call: Arguments, known: Known) -> Environment:
    """What is known of a call's arguments."""
    values = {name: known.value(argument) for name, argument in call.items()}
    return {name: value for name, value in values.items() if value is not UNKNOWN}


@dataclass
class Plan:
    """How a function and its calls change. `args` is what it took before.

    `gone` are parameters, and what stands for them; `fields` those of records; `passed` names that become parameters;
    `copies` a parameter, and a function for each text that is passed for it.
    """

    args: ast.arguments
    gone: dict[str, ast.expr | None] = field(default_factory=dict)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    passed: dict[str, ast.expr] = field(default_factory=dict)
    copies: tuple[str, dict[str, str]] | None = None


class _Calls(ast.NodeTransformer):
    """Makes calls fit functions that have changed."""

    def __init__(self, plans: Mapping[str, Plan], known: Known) -> None:
        self._plans = plans
        self._known = known

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        plan = self._plans.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if plan is None:
            return node
        arguments = bound(plan.args, node)
        if plan.copies:
            param, names = plan.copies
            return ast.Call(ast.Name(names[ast.unparse(arguments[param])], ast.Load()), node.args, node.keywords)
        by_keyword = {keyword.arg for keyword in node.keywords}
        kept = {n: value for n, value in arguments.items() if n not in plan.gone and n not in plan.fields}
        keywords = [ast.keyword(n, value) for n, value in kept.items() if n in by_keyword]
        keywords += [ast.keyword(n, self._written(value)) for n, value in self._new(plan, arguments)]
        return ast.Call(node.func, [value for n, value in kept.items() if n not in by_keyword], keywords)

    def _new(self, plan: Plan, arguments: Arguments) -> Iterator[tuple[str, Any]]:
        for name, fields in plan.fields.items():
            record = self._known.value(arguments[name])
            yield from ((f, getattr(record, f)) for f in fields)
        environment = known_of(arguments, self._known)
        yield from ((name, self._known.value(value, environment)) for name, value in plan.passed.items())

    def _written(self, value: Any) -> ast.expr:
        return expression(value) if is_plain(value) else self._known.symbol(value, named_fields=False)


def apply(definitions: Sequence[Definition], plans: Mapping[str, Plan], known: Known) -> list[Definition]:
    """The definitions with changed functions and calls."""
    calls = _Calls(plans, known)
    changed: list[Definition] = []
    for definition in definitions:
        plan = plans.get(definition.name)
        node = calls.visit(definition.node)
        if plan and plan.copies:
            for name in plan.copies[1].values():
                copied = copy.deepcopy(node)
                copied.name = name
                changed.append(replace(definition, name=name, node=copied))
        else:
            changed.append(replace(definition, node=_changed(node, plan) if plan else node))
    return changed


def _changed(function: ast.FunctionDef, plan: Plan) -> ast.FunctionDef:
    without_assignments(function, plan.passed)
    gone, fields = plan.gone, plan.fields
    function.body = [_Fields(fields).visit(Rename(gone.get).visit(statement)) for statement in function.body]
    args = function.args
    defaults = dict(zip(parameters(args)[len(args.args) - len(args.defaults) :], args.defaults))
    kept = [arg for arg in args.args if arg.arg not in gone and arg.arg not in fields]
    new = [*(f for names in fields.values() for f in names), *plan.passed]
    args.args = [*kept, *map(ast.arg, new)]
    args.defaults = [] if new else [defaults[arg.arg] for arg in kept if arg.arg in defaults]
    return function


class _Fields(ast.NodeTransformer):
    """`outstanding` for op.outstanding."""

    def __init__(self, records: Mapping[str, Any]) -> None:
        self._records = records

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        is_field = isinstance(node.value, ast.Name) and node.value.id in self._records
        return ast.Name(node.attr, node.ctx) if is_field else node


# --- plans ---------------------------------------------------------------------------------------------------------


def agreed(definitions: Sequence[Definition], entry: str, known: Known) -> dict[str, Plan]:
    """Parameters that a function does not use, or that all calls pass the same: something without local names."""
    said = {*known.values, *(definition.name for definition in definitions), "T"}
    plans: dict[str, Plan] = {}
    for name, function, calls in _called(definitions, entry):
        used = names_in(*function.body)
        times = bindings(function)
        gone: dict[str, ast.expr | None] = {}
        for param in parameters(function.args):
            first, *others = [call[param] for call in calls]
            alike = all(ast.unparse(other) == ast.unparse(first) for other in others)
            if param not in used:
                gone[param] = None
            elif alike and times[param] == 1 and isinstance(first, ATOMS) and said.issuperset(names_in(first)):
                gone[param] = first
        if gone:
            plans[name] = Plan(copy.deepcopy(function.args), gone)
    return plans


def parted(
    definitions: Sequence[Definition], entry: str, known: Known, differing: Mapping[str, Arguments]
) -> dict[str, Plan]:
    """Records as their fields, what each call knows another value of as a parameter; else a copy for each record."""
    plans: dict[str, Plan] = {}
    for name, function, calls in _called(definitions, entry):
        plan = Plan(copy.deepcopy(function.args), passed=differing.get(name, {}))
        # What is passed need no longer be worked out: which fields it takes is seen when that is gone.
        for param in [] if plan.passed else parameters(function.args):
            records = [known.value(call[param]) for call in calls]
            if any(record is UNKNOWN for record in records) or all(map(is_plain, records)):
                continue
            fields = _fields_used(function, param)
            if fields is not None:
                plan.fields[param] = fields
            else:
                texts = dict.fromkeys(ast.unparse(call[param]) for call in calls)
                plan.copies = param, dict(zip(texts, (f"{name}_{n}" if n > 1 else name for n in count(1))))
        if plan.passed or plan.fields or plan.copies:
            plans[name] = plan
    return plans


def _called(definitions: Sequence[Definition], entry: str) -> Iterator[tuple[str, ast.FunctionDef, list[Arguments]]]:
    calls = calls_of(definitions)
    for definition in definitions:
        if definition.function and definition.name != entry and calls.get(definition.name):
            yield definition.name, definition.function, calls[definition.name]


def _fields_used(function: ast.FunctionDef, param: str) -> tuple[str, ...] | None:
    """The fields of a parameter that a function uses, in their order; None if it uses the whole."""
    found = [
        node.attr
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == param
    ]
    return tuple(dict.fromkeys(found)) if len(found) == names_in(*function.body).count(param) else None
