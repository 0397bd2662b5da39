"""Rules about results kept between calls: pointer caches and replayed outputs.

A kernel cache keyed by shape is fine. What the servers flag is a cache that recognises its inputs by their address,
and an output that outlives the call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tl_attention.leaderboard.names import FUNCTIONS, Names, assigned, bound, own_nodes, scopes

Found = Iterator[tuple[int, str]]

LOOKUPS = ("get", "setdefault", "pop", "__getitem__", "__setitem__", "__contains__", "add")
CACHE_DECORATORS = ("functools.lru_cache", "functools.cache")


def pointer_caches(tree: ast.Module, names: Names) -> Found:
    """No `data_ptr()` or `id()` is a key, or is compared with another: addresses repeat while contents change.

    A test of alignment (`% 16`, `& 15`) or against a constant remembers nothing and is fine.
    """
    for scope in scopes(tree):
        pointers: set[str] = set()
        for name, value in assigned(scope):
            if _holds_pointer(value, pointers):
                pointers.add(name)
        for node in (node for node in own_nodes(scope) if isinstance(node, ast.expr)):
            for place in _key_places(node):
                if _holds_pointer(place, pointers):
                    yield node.lineno, "A tensor's address (data_ptr or id) is a key or is compared: a pointer cache."


def kept_outputs(tree: ast.Module, names: Names) -> Found:
    """custom_kernel returns what this call computed, not what the module kept from an earlier one."""
    for kernel in tree.body:
        if not isinstance(kernel, ast.FunctionDef) or kernel.name != "custom_kernel":
            continue
        for decorator in kernel.decorator_list:
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            if names.dotted(function) in CACHE_DECORATORS:
                yield decorator.lineno, f"custom_kernel is wrapped in {names.dotted(function)}: it replays outputs."
        declared = {name for node in own_nodes(kernel) if isinstance(node, ast.Global) for name in node.names}
        kept = declared | (names.module_level - set(bound(kernel)) - _arguments(kernel))
        for name, value in assigned(kernel):
            if _read_from(value, kept):
                kept.add(name)
        for node in own_nodes(kernel):
            if isinstance(node, ast.Return) and node.value is not None and _read_from(node.value, kept):
                yield node.lineno, "custom_kernel returns what the module keeps between calls: a replayed output."


def _key_places(node: ast.expr) -> list[ast.expr]:
    """The parts of an expression whose value is looked up or compared."""
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key is not None]
    if isinstance(node, ast.Set):
        return node.elts
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        others_constant = sum(isinstance(side, ast.Constant) for side in sides) == len(sides) - 1
        return [] if others_constant else sides
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS:
        return node.args
    return []


def _holds_pointer(node: ast.expr, pointers: set[str]) -> bool:
    """Whether an address is the value of an expression or a part of it; a remainder of one is not."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.BitAnd)):
        return False
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "data_ptr":
            return True
        if isinstance(node.func, ast.Name) and node.func.id == "id":
            return True
        # tuple(...), hash(...), str(...) keep the address; a kernel that is handed one does not return it.
        keeps = isinstance(node.func, ast.Name) and node.func.id in ("tuple", "hash", "str", "frozenset", "int", "repr")
        return keeps and any(_holds_pointer(argument, pointers) for argument in node.args)
    if isinstance(node, ast.Name):
        return node.id in pointers
    if isinstance(node, (*FUNCTIONS, ast.Subscript, ast.Compare, ast.Attribute)):
        return False
    children = ast.iter_child_nodes(node)
    return any(_holds_pointer(child, pointers) for child in children if isinstance(child, ast.expr))


def _read_from(node: ast.expr, kept: set[str]) -> bool:
    """Whether an expression is a kept object itself or an item or attribute of one: no call in between but a lookup."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS):
                return False
            node = node.func
        node = node.value
    return isinstance(node, ast.Name) and node.id in kept


def _arguments(function: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
