"""A rule between keys, stated once: it checks a schedule, and the JSON Schema of schedule files is made of it.

What keys hold is said in words of JSON Schema, by their paths: `{"kernel.output": {"const": "tma"}}`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys

Words = Mapping[str, Any]
Where = Mapping[str, Words]


@dataclass(frozen=True, eq=False)
class Rule:
    """Where the keys are as `given`, they must be as `needs` says; `told` is what else is told of the key `blamed`."""

    blamed: str
    told: Callable[[Keys], str]
    needs: Where
    given: Where = field(default_factory=dict)

    def __call__(self, s: Keys) -> None:
        if holds(s, self.given) and not holds(s, self.needs):
            raise RuleBroken(self.told(s), *self.blamed.split("."))


@dataclass(frozen=True, eq=False)
class Implying:
    """A rule that takes a function to check; what follows from it, as of a `Rule`, is for JSON Schema alone."""

    check: Callable[[Keys], None]
    needs: Where
    given: Where = field(default_factory=dict)

    def __call__(self, s: Keys) -> None:
        self.check(s)


def implies(needs: Where, given: Where | None = None) -> Callable[[Callable[[Keys], None]], Implying]:
    """Decorates such a function."""
    return lambda check: Implying(check, needs, given or {})


def holds(s: Keys, where: Where) -> bool:
    """Whether the keys of a schedule are so."""
    return all(is_so(operator.attrgetter(path)(s), words) for path, words in where.items())


def is_so(value: Any, words: Words) -> bool:
    """Whether the value of a key is so."""
    return all(HOLDS[word](value, bound) for word, bound in words.items())


def _given_keys(keys: BaseModel) -> int:
    """Those that are not as by default: one that is says nothing."""
    return sum(getattr(keys, name) != field.default for name, field in type(keys).model_fields.items())


# What JSON Schema's words ask of a value. What is no list has no items, there as here.
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "const": operator.eq,
    "enum": lambda value, choices: value in choices,
    "type": lambda value, name: isinstance(value, {"array": tuple}[name]),
    "maximum": operator.le,
    "minItems": lambda values, least: len(values) >= least,
    "maxItems": lambda values, most: len(values) <= most,
    "uniqueItems": lambda values, unique: not unique or len(set(values)) == len(values),
    "items": lambda values, words: all(is_so(value, words) for value in values),
    "maxProperties": lambda keys, most: _given_keys(keys) <= most,
}
