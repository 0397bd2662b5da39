"""What a lowering lets a schedule say, and the registry of lowerings.

Lowerings stand further down: each registers here by name, and a schedule asks for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tl_attention.errors import InputError
from tl_attention.loop.attention import SOURCE
from tl_attention.loop.table import Table

# `synchronous`: every product is issued and waited for at once. `asynchronous`: products and loads stay in flight.
Model = Literal["synchronous", "asynchronous"]
# Takes the phases of a Program (`program.program.Phases`) and, as `schedule`, the Schedule; returns the phases changed.
Pass = Callable[..., Any]
# Raises RuleBroken for the keys of a schedule (`keys.Keys`) that it does not allow: a `rule.Rule`, or a function.
Check = Callable[[Any], None]


@dataclass(frozen=True, eq=False)
class Dialect:
    """A lowering as schedules see it.

    `words` say what it does in the JSON Schema. `model` is how it drives the machine, None where the compiler decides
    the order and there is no Program; `table` has the statements of its loop, `own_statements` those that a schedule
    places beside the source's, `absent` those that the loop of a given schedule lacks. `options` are the optional keys
    that it takes, whole (`softmax`) or one by one (`kernel.k_stages`), `rules` what else it asks of a schedule. `passes`
    make the Program that its kernel runs of the one that is derived; `emitted` says that the kernel runs it operation by
    operation, else the compiler places all but the loads and products.
    """

    name: str
    words: str
    model: Model | None
    table: Table = SOURCE
    own_statements: tuple[str, ...] = ()
    absent: Callable[[Any], tuple[str, ...]] = lambda keys: ()
    options: tuple[str, ...] = ()
    rules: tuple[Check, ...] = ()
    passes: tuple[Pass, ...] = ()
    emitted: bool = False

    def takes(self, path: str) -> bool:
        """Whether a schedule may have this optional key: `split.exp`, or any of those below `split`."""
        return any(f"{path}.".startswith(f"{option}.") or option.startswith(f"{path}.") for option in self.options)


_DIALECTS: dict[str, Dialect] = {}


def register(dialect: Dialect) -> None:
    """Make a lowering known to schedules."""
    _DIALECTS[dialect.name] = dialect


def dialects() -> tuple[Dialect, ...]:
    """All that are known, in the order in which they were registered."""
    return tuple(_DIALECTS.values())


def dialect_of(name: str) -> Dialect:
    """The lowering of this name. Raises InputError that lists the known ones."""
    if name not in _DIALECTS:
        raise InputError(f"lowering: {name[:40]!r} is none, expected one of {', '.join(_DIALECTS)}")
    return _DIALECTS[name]
