"""A schedule's options as parts of its label: `kernel.cluster=1`, `split.exp=48+128`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tl_attention.errors import InputError
from tl_attention.schedule.options import OPTION_KEYS


def changed_options(schedule: BaseModel) -> Iterator[tuple[str, Any]]:
    """(path such as kernel.cluster, value) of each option that is not the default."""
    for key in OPTION_KEYS:
        yield from _changed(key, getattr(schedule, key))


def options_label(schedule: BaseModel) -> list[str]:
    """One `path=value` for each of them, and for each such key of an option that has its own."""
    return [part for path, value in changed_options(schedule) for part in _parts(path, value)]


def _changed(prefix: str, options: BaseModel) -> Iterator[tuple[str, Any]]:
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if value != field.default:
            yield f"{prefix}.{name}", value


def _parts(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for inner, inner_value in _changed(path, value):
            yield from _parts(inner, inner_value)
    else:
        yield f"{path}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def options_from_label(parts: list[str]) -> dict[str, Any]:
    """The nested fields that these parts give; pydantic checks them. Raises InputError for a part that is no option."""
    fields: dict[str, Any] = {}
    for part in parts:
        path, equals, text = part.partition("=")
        if not equals or not PATH.fullmatch(path):
            raise InputError(f"label: {part[:40]!r} is not an option, expected such as kernel.cluster=1")
        *keys, last = path.split(".")
        inner = fields
        for key in keys:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"label: {part[:40]!r} is inside of an option that has a value already")
        inner[last] = _value(text)
    return fields


PATH = re.compile(rf"({'|'.join(OPTION_KEYS)})(\.[a-z0-9_]{{1,30}}){{1,2}}")
# What `_text` makes of a float that a schedule may have; a longer number fits no key.
FLOAT = re.compile(r"(?=.{3,24}$)[0-9]+(\.[0-9]+|(\.[0-9]+)?e-[0-9]+)", re.ASCII)
INTEGER = re.compile(r"[0-9]{1,6}", re.ASCII)


def _value(text: str) -> Any:
    if text in ("on", "off"):
        return text == "on"
    if "+" in text:
        return [_value(item) for item in text.split("+")]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text
