"""The iterations of a loop that is emitted from the Program: a call of a macro for each operation.

Every macro takes `(t, tile, s, c)`: the KV block, counted from the first to be worked on; where the tile is; the memory of
the thread block; and the constants. What it needs besides, it takes by name. A submission has the same calls written out.
"""

from inspect import signature
from typing import Any, NamedTuple

import tilelang.language as T


class Call(NamedTuple):
    """The macro of an operation, and what it takes by name."""

    macro: Any
    keywords: dict[str, Any]

    @classmethod
    def of(cls, macro, **known):
        """The call of a macro that takes what it names of what is known."""
        return cls(macro, {name: known[name] for name in parameters(macro) if name in known})


def function_of(macro):
    """The function that a macro was made of, or the function itself that gives an expression."""
    return getattr(macro, "orig_func", macro)


def parameters(macro):
    """The parameters of a macro by name."""
    return signature(function_of(macro)).parameters


def iterations(call_of):
    """The four macros of a loop, whose operations `call_of(op, c, masked)` turns into calls.

    A block is `masked` if it may hold keys that are hidden from some of the queries.
    """

    def emit(op, t, tile, s, c, masked):
        call = call_of(op, c, masked)
        return call.macro(t - op.lag, tile, s, c, **call.keywords)

    @T.macro
    def prologue(tile, s, c):
        """The iterations before the steady state, of which some operations have no block yet."""
        for t, operations in c.loop.prologue:
            for op in operations:
                emit(op, t, tile, s, c, masked=True)

    @T.macro
    def steady(t, tile, s, c):
        """Iteration t of the steady state, whose block needs no mask."""
        for op in c.loop.unmasked:
            emit(op, t, tile, s, c, masked=False)

    @T.macro
    def steady_masked(t, tile, s, c):
        """Iteration t of the steady state, whose block is masked."""
        for op in c.loop.steady.operations:
            emit(op, t, tile, s, c, masked=True)

    @T.macro
    def finish(operations, blocks, tile, s, c):
        for op in operations:
            emit(op, blocks, tile, s, c, masked=True)

    @T.macro
    def epilogue(blocks, tile, s, c):
        """The iterations after the last block, which finish what was started."""
        for t, operations in c.loop.epilogue:
            finish(operations, blocks + t, tile, s, c)

    return prologue, steady, steady_masked, epilogue
