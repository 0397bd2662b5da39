"""The options that a schedule's lowering takes, in words: what each in force does, those that the file sets marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tl_attention.schedule.options import OPTION_KEYS
from tl_attention.schedule.schedule import Schedule
from tl_attention.schedule.words import words_of

SET = "*"


def option_lines(schedule: Schedule) -> Iterator[str]:
    """`* kernel.cluster 2: words`, a line for each option in force; without the mark it is the default."""
    for key in OPTION_KEYS:
        options = getattr(schedule, key)
        for name, field in type(options).model_fields.items():
            value = getattr(options, name)
            if not schedule.dialect.takes(f"{key}.{name}"):
                continue
            if words := words_of(field, value):
                yield f"{SET if is_set(schedule, key, name) else ' '} {key}.{name}{_shown(value)}: {words}"


def is_set(schedule: Schedule, key: str, name: str) -> bool:
    """Whether the schedule's file sets the option."""
    return key in schedule.model_fields_set and name in getattr(schedule, key).model_fields_set


def _shown(value: Any) -> str:
    """The value as the file has it; chunks, and options of their own, are said in words."""
    if isinstance(value, bool):
        return f" {value}".lower()
    return f" {value}" if isinstance(value, str | int | float) else ""
