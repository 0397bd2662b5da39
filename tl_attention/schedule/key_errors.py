"""This module words what pydantic or a rule objects to in a file's keys: one line with what was expected and found.

The line also says what the author meant by a key that is unknown where it stands, or by a value of the wrong kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tl_attention.errors import InputError
from tl_attention.schedule.key_words import KeyPath, dotted, line_of, shown, suggestion

Model = type[BaseModel]
# For each key that has keys below it, an example of one; of a list of two numbers, one whose second fits every first.
EXAMPLES: dict[str, Any] = {
    "kernel": {"cluster": 1},
    "softmax": {"row_max": "thread"},
    "exp2_polynomial": {"every": 4},
    "split": {"exp": [48, 128]},
    "registers": [240, 24],
    "wait_before": {"mma1": "exp.1"},
    "release_before": {"load_k": "cast"},
}


class RuleBroken(ValueError):
    """RuleBroken is raised for keys that break a rule, such as one between two keys, and holds the key to blame.

    Attributes:
        key: its path, such as ("order", 2).
        others: the other keys of the rule. If a file changes only one of these, the line of that key is blamed.
        advice: what to do about `key`.
    """

    def __init__(self, reason: str, *key: str | int, others: tuple[KeyPath, ...] = (), advice: str = ""):
        super().__init__(f"{reason}, {advice}" if advice else reason)
        self.key, self.others, self.advice = key, others, advice


def first_error(error: ValueError, model: Model | None = None) -> tuple[KeyPath, str]:
    """Returns (key path, message) for one mistake in a pydantic model's ValueError, an unknown key if there is one.

    `model` has the keys that a message may suggest.
    """
    details = getattr(error, "errors", None)
    if details is None:
        return getattr(error, "key", ()), str(error)
    # A mistyped key is also a missing one: the name that the file has is the one to show.
    return key_and_message(sorted(details(), key=lambda detail: detail["type"] != "extra_forbidden")[0], model)


def key_and_message(detail: Any, model: Model | None = None) -> tuple[KeyPath, str]:
    """Returns (key path, message) for one of pydantic's error details. `model` has the keys that may be suggested."""
    key, cause = detail["loc"], detail.get("ctx", {}).get("error")
    if isinstance(cause, RuleBroken):
        return cause.key, str(cause)
    if isinstance(cause, InputError):
        return key, str(cause)
    if detail["type"] == "missing":
        return key, "the key is missing"
    if detail["type"] == "extra_forbidden":
        return key, _unknown(key, detail["input"], model)
    if detail["type"] == "statement":
        return key, detail["msg"]
    return key, f"{_expected(detail)}, found {shown(detail['input'])}{_meant(detail['loc'], detail['input'], model)}"


def _expected(detail: dict[str, Any]) -> str:
    context = detail.get("ctx", {})
    words = {
        "int_type": "expected an integer",
        "int_parsing_size": "expected a smaller integer",
        "string_unicode": "expected text",
        "string_type": "expected text",
        "string_too_long": f"expected at most {context.get('max_length')} characters",
        "finite_number": "expected a finite number",
        "float_type": "expected a number, such as 8.0 or 1.0e-5",
        "bool_type": "expected true or false",
        "unexpected_keyword_argument": "unknown key",
        "model_type": "expected a mapping of keys",
        "tuple_type": "expected a list",
        "too_short": f"expected at least {_entries(context.get('min_length'))}",
        "too_long": f"expected at most {_entries(context.get('max_length'))}",
        "greater_than": f"expected more than {context.get('gt', 0):g}",
        "greater_than_equal": f"expected at least {context.get('ge')}",
        "less_than_equal": f"expected at most {context.get('le')}",
        "multiple_of": f"expected a multiple of {context.get('multiple_of')}",
        "literal_error": f"expected {context.get('expected')}",
    }
    message = detail["msg"]
    return words.get(detail["type"], f"{message[:1].lower()}{message[1:]}")


def _entries(count: int | None) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


# --- what the author meant --------------------------------------------------------------------------------------------


def _unknown(key: KeyPath, value: Any, model: Model | None) -> str:
    """Returns the message that a key is unknown, with the key or the place that its author may have meant."""
    above, name = key[:-1], str(key[-1])
    keys = _keys_at(model, above)
    if (match := re.fullmatch(r"(\w+) *([:=]) *(.+)", name)) and match[1] in keys:
        return f"unknown key, expected a colon and a space in `{match[1]}: {match[3]}`, found {shown(name)}"
    if name.strip() in keys:
        return f"unknown key: a blank that is no space stands beside {name.strip()}, remove it"
    if "." in name and (path := _dotted(name, above, model)):
        return f"unknown key: a key below another has no dot, expected `{line_of(path, value)}`"
    # Statements are keys of several mappings: only the chunks of `split` are lists.
    homes = [home for home in _homes(name, model) if home != above]
    if homes := [home for home in homes if isinstance(value, list) or home != ("split",)]:
        return _elsewhere(name, value, homes, above)
    guess = suggestion(name, keys)
    return f"unknown key, {guess}{'E' if guess else 'e'}xpected one of {', '.join(keys)}"


def _meant(key: KeyPath, value: Any, model: Model | None) -> str:
    """Returns advice on a value of the wrong kind, such as to remove its quotes; "" where there is none."""
    name = key[-1] if key else ""
    field = _field_at(model, key)
    if isinstance(name, int) or field is None:
        is_unseparated = isinstance(value, str) and re.fullmatch(r"[\w.-]+( +[\w.-]+)+", value)
        return ": expected a comma between two entries" if is_unseparated else ""
    if value is None:
        return f": null means the default, and {name} has none" if field.is_required() else ""
    if inner := model_of(field.annotation):
        return _meant_below(str(name), value, tuple(inner.model_fields))
    if "tuple" in str(field.annotation) and isinstance(value, (int, str)) and " " not in str(value):
        return f": expected brackets around it, {line_of((name,), [value, *EXAMPLES.get(name, ())[1:]])}"
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value) and field.annotation is int:
        return f": expected {value} without quotes"
    return ""


def _keys_at(model: Model | None, path: KeyPath) -> tuple[str, ...]:
    below = _model_at(model, path)
    return tuple(below.model_fields) if below else ()


def _meant_below(name: str, value: Any, keys: tuple[str, ...]) -> str:
    """Returns advice, to end a message, for a key that needs keys below it and was given another value."""
    example = line_of((name,), EXAMPLES[name]) if name in EXAMPLES else f"{name}: {{{keys[0]}: ...}}"
    if isinstance(value, (list, tuple)):
        is_dashed = any(isinstance(entry, dict) for entry in value)
        return f": {'remove the dashes before its keys' if is_dashed else f'expected such as `{example}`'}"
    match = re.fullmatch(r"(\w+)(?: +|=|:)(\S.*)", value) if isinstance(value, str) else None
    if match and match[1] in keys:
        return f": expected a colon and a space behind {match[1]}, `{match[1]}: {match[2]}`"
    return f": expected such as `{example}`"


def _dotted(name: str, above: KeyPath, model: Model | None) -> KeyPath | None:
    """Returns the path of the known key that a dotted name means, below `above` or the top; None if it means none."""
    parts = tuple(name.split("."))
    for start in (above, ()):
        below = _keys_at(model, (*start, *parts[:-1]))
        if below:
            guess = suggestion(parts[-1], below).removeprefix("did you mean ").rstrip("? ")
            last = parts[-1] if parts[-1] in below else guess
            return (*start, *parts[:-1], last) if last else None
    return None


def _elsewhere(name: str, value: Any, homes: list[KeyPath], above: KeyPath) -> str:
    """Returns the message that a key stands at the wrong place, with its right places, `homes`, and a line to write."""
    if () in homes:
        return f"unknown key here: {name} is no key of {dotted(above).rstrip(': ')}, remove the spaces before it"
    fits = [home for home in homes if isinstance(value, list) == (home[0] == "split")] or homes
    places = " or ".join(dotted(home).rstrip(": ") for home in homes)
    line = line_of((*fits[0], name), value)
    return f"unknown key here: {name} is a key of {places}, indent it below that key or write `{line}`"


def _homes(name: str, model: Model | None, above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the path of each mapping, in the model or below it, that may have a key of this name; () is the top."""
    for key, field in model.model_fields.items() if model else ():
        if key == name:
            yield above
        yield from _homes(name, model_of(field.annotation), (*above, key))


# --- which keys there are ---------------------------------------------------------------------------------------------


def model_of(annotation: Any) -> Model | None:
    """Returns the pydantic model in a key's type, such as M in `M`, `M | None` or `tuple[M, ...]`; None if none is.

    The keys of that model are nested below the key.
    """
    choices = (choice for choice in (annotation, *get_args(annotation)) if isinstance(choice, type))
    return next((choice for choice in choices if issubclass(choice, BaseModel)), None)


def _model_at(model: Model | None, path: Sequence[str | int]) -> Model | None:
    """Returns the pydantic model of the keys below a path in `model`, through entries of lists; None if none are."""
    for part in path:
        if isinstance(part, str):
            model = model_of(model.model_fields[part].annotation) if model and part in model.model_fields else None
    return model


def _field_at(model: Model | None, path: Sequence[str | int]) -> FieldInfo | None:
    """Returns pydantic's FieldInfo of the key at a path in `model`; None where there is no such key."""
    inner = _model_at(model, path[:-1]) if path else None
    return inner.model_fields.get(str(path[-1])) if inner else None
