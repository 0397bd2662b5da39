"""A rule between keys, stated once: it checks a schedule, and the JSON Schema of schedule files is made of it.

What keys hold is said in keywords of JSON Schema, by their paths: `{"kernel.output": {"const": "tma"}}`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys

Keywords = Mapping[str, Any]
Where = Mapping[str, Keywords]


@dataclass(frozen=True, eq=False)
class Rule:
    """Where the keys are as `given`, they must be as in `needs`; `told` says of one that breaks it what is wrong.

    `blamed` is the key at which that is told, and `advice` is what to do about that key. `why` is what is wrong where
    another key of the rule is changed.
    """

    blamed: str
    told: Callable[[Keys], str]
    needs: Where
    given: Where = field(default_factory=dict)
    advice: Callable[[Keys], str] = lambda s: ""
    why: Callable[[Keys], str] = lambda s: ""

    def __call__(self, s: Keys) -> None:
        if holds(s, self.given) and not holds(s, self.needs):
            others = tuple(tuple(path.split(".")) for path in (*self.needs, *self.given) if path != self.blamed)
            raise RuleBroken(
                self.told(s), *self.blamed.split("."), others=others, advice=self.advice(s), why=self.why(s)
            )


@dataclass(frozen=True, eq=False)
class Implying:
    """A rule that takes a function to check, and what follows from it: that is for JSON Schema alone."""

    check: Callable[[Keys], None]
    needs: Where
    given: Where = field(default_factory=dict)

    def __call__(self, s: Keys) -> None:
        self.check(s)


def implies(needs: Where, given: Where | None = None) -> Callable[[Callable[[Keys], None]], Implying]:
    """Makes a rule of the function that checks it: where the keys are as `given`, they can only be as in `needs`."""
    return lambda check: Implying(check, needs, given or {})


def holds(s: Keys, where: Where) -> bool:
    """Whether the keys of a schedule are so."""
    return all(is_so(operator.attrgetter(path)(s), keywords) for path, keywords in where.items())


def is_so(value: Any, keywords: Keywords) -> bool:
    """Whether the value of a key is so."""
    return all(HOLDS[keyword](value, bound) for keyword, bound in keywords.items())


def _given_keys(keys: BaseModel) -> int:
    """Those that are not as by default: one that is says nothing."""
    return sum(getattr(keys, name) != field.default for name, field in type(keys).model_fields.items())


# What JSON Schema's keywords ask of a value; those that rules use.
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "const": operator.eq,
    "enum": lambda value, choices: value in choices,
    "type": lambda value, name: isinstance(value, {"array": tuple}[name]),
    "maximum": operator.le,
    "minItems": lambda values, least: len(values) >= least,
    "maxItems": lambda values, most: len(values) <= most,
    "uniqueItems": lambda values, unique: not unique or len(set(values)) == len(values),
    "items": lambda values, keywords: all(is_so(value, keywords) for value in values),
    "maxProperties": lambda keys, most: _given_keys(keys) <= most,
}
