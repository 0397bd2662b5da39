"""A Dialect says which keys and statements a lowering gives to schedules. This module keeps the registry of dialects.

Lowerings come later in the import order: each registers its dialect here by name, and a schedule looks up its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tl_attention.errors import InputError
from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.loop.loops import FORWARD, LOOPS
from tl_attention.schedule.loop.table import Table

# `synchronous`: every product is issued and waited for at once. `asynchronous`: products and loads stay in flight.
Model = Literal["synchronous", "asynchronous"]
# Takes the phases of a Program (`program.program.Phases`) and, as `schedule`, the Schedule; returns the phases changed.
Pass = Callable[..., Any]
# Raises RuleBroken for the keys of a schedule (`keys.Keys`) that it does not allow.
Check = Callable[[Any], None]


@dataclass(frozen=True, eq=False)
class Dialect:
    """A Dialect describes a lowering to schedules by its words, keys, statements, rules and passes."""

    name: str
    words: str  # what the lowering does, for the JSON Schema
    model: Model | None  # how it drives the machine; None if the compiler decides the order and there is no Program
    loop: str = FORWARD  # the loop that it emits
    table: Table = SOURCE  # the statements of its kernel's loop
    own_statements: tuple[str, ...] = ()  # those that a schedule places in addition to the source's
    absent: Callable[[Any], tuple[str, ...]] = lambda keys: ()  # those that the loop of a given schedule lacks
    options: tuple[str, ...] = ()  # optional keys that it takes, whole (`softmax`) or one by one (`kernel.k_stages`)
    rules: tuple[Check, ...] = ()  # what else it asks of a schedule
    passes: tuple[Pass, ...] = ()  # they turn the derived Program into the one that the kernel runs
    # Whether the kernel runs that Program operation by operation; otherwise the compiler places everything but the
    # loads and products.
    emitted: bool = False

    @property
    def source(self) -> Table:
        """Returns the Table of the loop, whose statements a schedule places."""
        return LOOPS[self.loop]

    def takes(self, path: str) -> bool:
        """Says whether a schedule of this lowering may have an optional key, such as `split.exp`, or a key below it."""
        return any(f"{path}.".startswith(f"{option}.") or option.startswith(f"{path}.") for option in self.options)


_DIALECTS: dict[tuple[str, str], Dialect] = {}


def register(dialect: Dialect) -> None:
    """Adds a dialect to the registry by its loop and its lowering's name, so that schedules may ask for these."""
    _DIALECTS[dialect.loop, dialect.name] = dialect


def dialects(loop: str = FORWARD) -> tuple[Dialect, ...]:
    """Returns the dialects of all lowerings of a loop, in the order in which they were registered."""
    return tuple(dialect for (of, _), dialect in _DIALECTS.items() if of == loop)


def dialect_of(name: str, loop: str = FORWARD) -> Dialect:
    """Returns the Dialect of the lowering of this name, which says what keys and statements a schedule may have.

    Raises InputError that lists the known lowerings of the loop.
    """
    if (loop, name) not in _DIALECTS:
        known = ", ".join(dialect.name for dialect in dialects(loop))
        of_loop = "" if loop == FORWARD else f" of loop {loop}"
        raise InputError(f"lowering: {name[:40]!r} is none{of_loop}, expected one of {known}")
    return _DIALECTS[loop, name]
