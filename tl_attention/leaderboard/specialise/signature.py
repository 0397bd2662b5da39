"""The types of a kernel's parameters, written out where the generator decorates with `takes`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tl_attention.leaderboard.specialise.known import UNKNOWN, Known, Rename, expression, read
from tl_attention.problem.variant import Parameter, Sizes

DECORATOR = "takes"


def write_out(function: ast.FunctionDef, known: Known, written: Callable[[ast.expr], ast.expr]) -> None:
    """Give the function types instead of `@takes(parameters, variant, Sizes(...))`, if it has that and all is known.

    A parameter that the kernel does not take becomes its default.
    """
    calls = [call for call in function.decorator_list if isinstance(call, ast.Call)]
    takes = next((call for call in calls if ast.unparse(call.func) == DECORATOR), None)
    if takes is None or known.value(takes.args[0]) is UNKNOWN:
        return
    listed, variant, sizes = takes.args
    assert isinstance(sizes, ast.Call) and ast.unparse(sizes.func) == Sizes.__name__
    names = dict(zip(Sizes._fields, sizes.args, strict=True))

    def field(name: str) -> ast.expr:
        return written(ast.Attribute(variant, name, ast.Load()))

    group = known.value(ast.Attribute(variant, "group", ast.Load()))
    names["heads_kv"] = names["heads"] if group == 1 else ast.BinOp(names["heads"], ast.FloorDiv(), expression(group))

    def typed(parameter: Parameter) -> ast.expr:
        if parameter.kind == "scalar":
            return ast.Attribute(read("T"), parameter.dtype, ast.Load())
        dims = [expression(d) if isinstance(d, int) else names.get(d) or field(d) for d in parameter.dims]
        dtype = expression(parameter.dtype) if parameter.dtype else field("dtype")
        return ast.Call(ast.Attribute(read("T"), "Tensor", ast.Load()), [ast.List(dims, ast.Load()), dtype], [])

    types = {parameter.name: typed(parameter) for parameter in known.value(listed)}
    args, defaults = function.args.args, function.args.defaults
    left_out = {arg.arg: default for arg, default in zip(args[len(args) - len(defaults) :], defaults)}
    function.args = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg.arg, types[arg.arg]) for arg in args if arg.arg in types],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    function.decorator_list.remove(takes)
    replaced = {name: default for name, default in left_out.items() if name not in types}
    for statement in function.body:
        Rename(replaced.get).visit(statement)
