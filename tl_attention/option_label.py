"""A schedule's options as parts of its label: `kernel.cluster=1`, `split.exp=48+128`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

from pydantic import BaseModel

from tl_attention.errors import InputError
from tl_attention.options import OPTION_KEYS

if TYPE_CHECKING:
    from tl_attention.schedule import Schedule


def options_label(schedule: Schedule) -> list[str]:
    """One `key=value` for each option that is not the default."""
    return [part for key in OPTION_KEYS for part in _parts(key, getattr(schedule, key))]


def _parts(prefix: str, options: BaseModel) -> Iterator[str]:
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if value == field.default and not isinstance(value, BaseModel):
            continue
        if isinstance(value, BaseModel):
            yield from _parts(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def options_from_label(parts: list[str]) -> dict[str, Any]:
    """The nested fields that these parts give; pydantic checks them. Raises InputError for a part without a value."""
    fields: dict[str, Any] = {}
    for part in parts:
        path, equals, text = part.partition("=")
        *keys, last = path.split(".")
        if not equals or not keys:
            raise InputError(f"label: {part[:40]!r} is not an option, expected such as kernel.cluster=1")
        inner = fields
        for key in keys:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"label: {part[:40]!r} is inside of an option that has a value already")
        inner[last] = _value(last, text)
    return fields


def _value(key: str, text: str) -> Any:
    if text in ("on", "off"):
        return text == "on"
    if "+" in text:
        return [_value(key, item) for item in text.split("+")]
    if text.isascii() and text.isdigit() and len(text) < 7:
        return int(text)
    # The one option that is no whole number.
    if key == "rescale_threshold" and text.replace(".", "", 1).isdigit() and len(text) < 12:
        return float(text)
    return text
