"""What pydantic or a rule objected to in a schedule, as one line that says what was expected and what was found."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

KeyPath = tuple[str | int, ...]
FOUND_CHARACTERS = 40


class RuleBroken(ValueError):
    """A rule between keys is broken; `key` is the path to blame, such as ("order", 2)."""

    def __init__(self, message: str, *key: str | int):
        super().__init__(message)
        self.key = key


def first_error(error: ValueError, model: type[BaseModel] | None = None) -> tuple[KeyPath, str]:
    """(key path, message) of what to mend first; `model` tells which keys there are."""
    details = getattr(error, "errors", None)
    if details is None:
        return getattr(error, "key", ()), str(error)
    # A mistyped key is also a missing one: the name that the file has is the one to show.
    found = sorted(details(), key=lambda detail: detail["type"] != "extra_forbidden")[0]
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, RuleBroken):
        return cause.key, str(cause)
    if found["type"] == "missing":
        return found["loc"], "the key is missing"
    if found["type"] == "extra_forbidden":
        return found["loc"], f"unknown key, {_one_of(str(found['loc'][-1]), _keys(model, found['loc'][:-1]))}"
    if found["type"] == "statement":
        return found["loc"], found["msg"]
    return found["loc"], f"{_expected(found)}, found {shown(found['input'])}"


def dotted(key: KeyPath) -> str:
    """("order", 2) -> `order[2]: `."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return f"{text.removeprefix('.')}: " if text else ""


def shown(value: Any) -> str:
    """A value as a YAML file would spell it, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping of keys"
    if isinstance(value, (list, tuple)):
        return _short(f"the list [{', '.join(shown(item) for item in value[:FOUND_CHARACTERS])}]")
    return _short(repr(value) if isinstance(value, (str, float)) else str(value))


def _short(text: str) -> str:
    return text if len(text) <= FOUND_CHARACTERS else f"{text[:FOUND_CHARACTERS]}..."


def _expected(detail: dict[str, Any]) -> str:
    context = detail.get("ctx", {})
    words = {
        "int_type": "expected an integer",
        "int_parsing_size": "expected a smaller integer",
        "string_unicode": "expected text",
        "string_type": "expected text",
        "string_too_long": f"expected at most {context.get('max_length')} characters",
        "float_type": "expected a number, such as 8.0 or 1.0e-5",
        "bool_type": "expected true or false",
        "model_type": "expected a mapping of keys",
        "tuple_type": "expected a list, such as [0, 1]",
        "too_short": f"expected at least {context.get('min_length')} entries",
        "too_long": f"expected at most {context.get('max_length')} entries",
        "greater_than": f"expected more than {context.get('gt', 0):g}",
        "greater_than_equal": f"expected at least {context.get('ge')}",
        "less_than_equal": f"expected at most {context.get('le')}",
        "multiple_of": f"expected a multiple of {context.get('multiple_of')}",
        "literal_error": f"expected {context.get('expected')}",
    }
    message = detail["msg"]
    return words.get(detail["type"], f"{message[:1].lower()}{message[1:]}")


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a key's value is, where it is one: its keys are nested below it."""
    choices = (choice for choice in (annotation, *get_args(annotation)) if isinstance(choice, type))
    return next((choice for choice in choices if issubclass(choice, BaseModel)), None)


def _keys(model: type[BaseModel] | None, path: KeyPath) -> tuple[str, ...]:
    """The keys of the model that a path leads to; a list's place leads to what it is a list of."""
    for part in path:
        if isinstance(part, int):
            continue
        model = model_of(model.model_fields[part].annotation) if model else None
    return tuple(model.model_fields) if model else ()


def suggestion(text: str, choices: Sequence[str]) -> str:
    """`did you mean mma1? `, or nothing where no choice is spelled much like the text."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(text.lower(), by_lower, n=1, cutoff=0.7)
    return f"did you mean {by_lower[close[0]]}? " if close else ""


def _one_of(key: str, keys: Sequence[str]) -> str:
    guess = suggestion(key, keys)
    return f"{guess}{'E' if guess else 'e'}xpected one of {', '.join(keys)}"
