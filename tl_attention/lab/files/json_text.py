"""JSON that a user names is checked as a whole before it is used: numbers first, then types and ranges by a model."""

from __future__ import annotations

import functools
import json
import math
from typing import Any, TypeVar, cast

from tl_attention.errors import InputError, printable

Parsed = TypeVar("Parsed")


def parse_object(text: bytes, where: str, what: str) -> dict[str, Any]:
    """Parses UTF-8 JSON and returns its object as a dict.

    `what` is what the object should be, in words. Raises InputError that begins with `where`, as FILE:LINE, for
    anything else.
    """
    try:
        decoded = text.decode("utf-8")
        values = json.loads(decoded, parse_int=_number, parse_float=_number, parse_constant=_number)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not text: byte {error.start} is not UTF-8") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not JSON, expected {what}") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: not {what}: expected a JSON object, found {decoded.strip()[:40]!r}")
    return values


def _number(text: str) -> float:
    # Python reads integers of any size, and 1e999 as infinity; neither can be shown as a time or a count.
    if not math.isfinite(float(text)):
        short = text if len(text) <= 20 else f"{text[:20]}..."
        raise InputError(f"the number {short} is not finite, or too large for a float")
    return float(text)


def checked(kind: type[Parsed], text: bytes, where: str) -> Parsed:
    """Makes an object of the class `kind`, a dataclass or a pydantic model, of JSON that `parse_object` takes.

    Raises InputError that begins with `where` and has the path of the key.
    """
    from pydantic import ValidationError

    from tl_attention.schedule.key_errors import first_error
    from tl_attention.schedule.key_words import dotted

    try:
        found: Parsed = _validator(cast(Any, kind)).validate_json(text, strict=True)
    except ValidationError as error:
        key, message = first_error(error)
        raise InputError(printable(f"{where}: {dotted(key)}{message}")) from None
    return found


@functools.cache
def _validator(kind: Any) -> Any:
    # Late: writing rows does not need it.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
