"""This module prints the loop over KV blocks from the Program: a macro for each phase, a line for each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import getdoc
from typing import Any

from tl_attention.kernels.shared import iterations
from tl_attention.kernels.shared.constants import EmittedConstants
from tl_attention.kernels.shared.iterations import call_of, function_of, parameters
from tl_attention.kernels.shared.loop import EmittedLoop
from tl_attention.program.program import Iteration, Operation


def phases(loop: EmittedLoop) -> dict[str, tuple[str, list[Iteration], Sequence[Iteration], bool]]:
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


def phase_text(phase: str, c: EmittedConstants, name_of: Callable[[Any], str]) -> tuple[str, list[Any]]:
    """Returns the text of one macro of the loop, with a line for each operation, and the macros that the text calls.

    `name_of` gives a macro's name.
    """
    macro = getattr(iterations, phase)
    start, before, repeated, masked = phases(c.loop)[phase]
    lines: list[str] = []
    later, called, flying = "", [], InFlight()
    for t, operations in before:
        for op in operations:
            flying.after(op, t - op.lag)
    for t, operations in repeated:
        # TileLang makes another expression of a sum that is passed, as the package passes it, than of one that is not.
        passed = phase == "epilogue" and t != 0
        number, own = (0, []) if passed else (t, lines)
        if len(repeated) > 1 and not passed:
            own.append(f"# Iteration {_offset(start, t)}.")
        for op in operations:
            callee, keywords = call_of(op, c, masked)
            defaults = {name: parameter.default for name, parameter in parameters(callee).items()}
            by_name = [f"{name}={value!r}" for name, value in keywords.items() if value != defaults[name]]
            block, comment = _offset(start, number - op.lag), flying.after(op, t - op.lag, start, number - t)
            own.append(f"{name_of(callee)}({', '.join([block, 'tile', 's', 'c', *by_name])}){comment}")
            called.append(callee)
        if passed:
            lines.append(f"epilogue_{t}({_offset(start, t)}, tile, s, c)")
            docstring = f"Iteration {_offset(start, t)}, whose number is `blocks` here."
            later += "\n\n" + macro_text(f"epilogue_{t}", parameters(macro), docstring, own)
    return macro_text(phase, parameters(macro), getdoc(function_of(macro)), lines) + later, called


def macro_text(name: str, takes: Iterable[str], docstring: str | None, lines: list[str]) -> str:
    """Returns the text of a macro with this name, these parameters and these lines."""
    head = f'@T.macro\ndef {name}({", ".join(takes)}):\n    """{docstring}"""\n'
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
