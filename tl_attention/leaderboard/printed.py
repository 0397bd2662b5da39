"""What a submission prints of a kernel instead of carrying its code: the loop and the constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import getdoc
from typing import Any

from pydantic import BaseModel

from tl_attention.lowering.constants import Constants, EmittedConstants
from tl_attention.lowering.loop import Loop
from tl_attention.program.operation import Iteration, Operation

HEADING = """\
# What the schedule and the problem fix.
#
# The steady state of the loop runs from iteration `start` to the number of KV blocks plus `end`. A block that needs a mask
# is worked on up to `masked_lag` iterations after the one of its number.
"""
# What is printed as the macros of the loop and their arguments.
THE_LOOP = ("prologue", "steady", "unmasked", "epilogue", "named", "chunks", "macro_of")
# What a submission's problem has none of, so that nothing asks for it.
NOT_THERE = ("features",)


# --- the loop ----------------------------------------------------------------------------------------------------


def phases(loop: Loop) -> dict[str, tuple[str, list[Iteration], Sequence[Iteration], bool]]:
    """By macro: what its iterations count from, the one before them, which they are, and whether blocks are masked."""
    steady, unmasked = loop.steady.operations, loop.unmasked
    return {
        "prologue": ("", [], loop.prologue, True),
        "steady": ("t", [Iteration(-1, unmasked)], [Iteration(0, unmasked)], False),
        "steady_masked": ("t", [Iteration(-1, steady)], [Iteration(0, steady)], True),
        "epilogue": ("blocks", [Iteration(loop.end - 1, steady)], loop.epilogue, True),
    }


def phase_text(phase: str, macro: Any, c: EmittedConstants) -> tuple[str, list[Any]]:
    """The text of one macro of the loop, a line for each operation, and the macros that it calls."""
    from tl_attention.lowering.iterations import call_of, function_of, parameters

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


def macro_text(name: str, parameters: Iterable[str], docstring: str | None, lines: list[str]) -> str:
    """The text of a macro of these lines."""
    head = f'\n\n@T.macro\ndef {name}({", ".join(parameters)}):\n    """{docstring}"""\n'
    return head + "".join(f"    {line}\n" for line in lines or ["pass"])


class InFlight(list[tuple[str, int]]):
    """The products that were issued and not waited for, with their blocks."""

    def after(self, op: Operation, block: int, start: str = "", shift: int = 0) -> str:
        """Those that are in flight after an operation that changes that, as a comment; blocks counted from `start`."""
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


def constants_text(c: Constants) -> str:
    """The constants, as one namespace."""
    return f"{HEADING}c = SimpleNamespace({', '.join(f'{name}={_written(value)}' for name, value in vars(c).items() if name not in THE_LOOP + NOT_THERE)})\n"


def _written(value: Any) -> str:
    """The text of a constant. A record is a namespace of its fields and properties, but for those that are the loop."""
    if not isinstance(value, BaseModel) and not hasattr(value, "_fields"):
        return repr(value)
    kind = type(value)
    names = [*kind.model_fields] if isinstance(value, BaseModel) else [*value._fields]
    names += [name for name, member in vars(kind).items() if isinstance(member, property)]
    fields = [f"{name}={_written(getattr(value, name))}" for name in names if name not in THE_LOOP]
    return f"SimpleNamespace({', '.join(fields)})"
