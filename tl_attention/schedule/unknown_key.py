"""What the author of a file meant by a key that is not known where it stands, or by a value of another kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tl_attention.schedule.key_words import KeyPath, dotted, line_of, model_of, shown, suggestion

# A key below each that has keys.
EXAMPLES = {
    "kernel": {"cluster": 1},
    "softmax": {"row_max": "thread"},
    "exp2_polynomial": {"every": 4},
    "split": {"exp": [48, 128]},
    "wait_before": {"mma1": "exp.1"},
    "release_before": {"load_k": "cast"},
}


def unknown(key: KeyPath, value: Any, model: type[BaseModel] | None) -> str:
    """That the key is unknown, and which key, or which place, is the right one."""
    above, name = key[:-1], str(key[-1])
    keys = keys_below(model, above)
    if (found := re.fullmatch(r"(\w+) *([:=]) *(.+)", name)) and found[1] in keys:
        return f"unknown key, expected a colon and a space in `{found[1]}: {found[3]}`, found {shown(name)}"
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


def meant(key: KeyPath, value: Any, model: type[BaseModel] | None) -> str:
    """What would be right in place of a value of another kind, where that is plain; it follows what was found."""
    name = key[-1] if key else ""
    field = _field(model, key)
    if isinstance(name, int) or field is None:
        is_unseparated = isinstance(value, str) and re.fullmatch(r"[\w.-]+( +[\w.-]+)+", value)
        return ": expected a comma between two entries" if is_unseparated else ""
    if value is None:
        return f": null means the default, and {name} has none" if field.is_required() else ""
    if inner := model_of(field.annotation):
        return _meant_below(str(name), value, tuple(inner.model_fields))
    if "tuple" in str(field.annotation) and isinstance(value, (int, str)) and " " not in str(value):
        return f": expected brackets around it, {name}: [{value}]"
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value) and field.annotation is int:
        return f": expected {value} without quotes"
    return ""


def keys_below(model: type[BaseModel] | None, path: KeyPath) -> tuple[str, ...]:
    """The keys of the model that a path leads to; a list's place leads to what it is a list of."""
    for part in path:
        if isinstance(part, int):
            continue
        model = model_of(model.model_fields[part].annotation) if model and part in model.model_fields else None
    return tuple(model.model_fields) if model else ()


def _meant_below(name: str, value: Any, keys: tuple[str, ...]) -> str:
    """A key that has keys below it was given something else."""
    example = line_of((name,), EXAMPLES[name]) if name in EXAMPLES else f"{name}: {{{keys[0]}: ...}}"
    if isinstance(value, (list, tuple)):
        is_dashed = any(isinstance(entry, dict) for entry in value)
        return f": {'remove the dashes before its keys' if is_dashed else f'expected such as `{example}`'}"
    found = re.fullmatch(r"(\w+)(?: +|=|:)(\S.*)", value) if isinstance(value, str) else None
    if found and found[1] in keys:
        return f": expected a colon and a space behind {found[1]}, `{found[1]}: {found[2]}`"
    return f": expected such as `{example}`"


def _field(model: type[BaseModel] | None, key: KeyPath) -> Any:
    """The field of a key, None where there is none."""
    for part in key[:-1]:
        field = model.model_fields.get(part) if model and isinstance(part, str) else None
        model = model_of(field.annotation) if field else None
    return model.model_fields.get(str(key[-1])) if model and key else None


def _dotted(name: str, above: KeyPath, model: type[BaseModel] | None) -> KeyPath | None:
    """The path that a key with dots means, from where it stands or from the top; its last part as far as it is known."""
    parts = tuple(name.split("."))
    for start in (above, ()):
        below = keys_below(model, (*start, *parts[:-1]))
        if below:
            guess = suggestion(parts[-1], below).removeprefix("did you mean ").rstrip("? ")
            last = parts[-1] if parts[-1] in below else guess
            return (*start, *parts[:-1], last) if last else None
    return None


def _elsewhere(name: str, value: Any, homes: list[KeyPath], above: KeyPath) -> str:
    """That the key stands elsewhere; of several places the first that its value fits."""
    if () in homes:
        return f"unknown key here: {name} is no key of {dotted(above).rstrip(': ')}, remove the spaces before it"
    fits = [home for home in homes if isinstance(value, list) == (home[0] == "split")] or homes
    places = " or ".join(dotted(home).rstrip(": ") for home in homes)
    line = line_of((*fits[0], name), value)
    return f"unknown key here: {name} is a key of {places}, indent it below that key or write `{line}`"


def _homes(name: str, model: type[BaseModel] | None, above: KeyPath = ()) -> Iterator[KeyPath]:
    """The places at which a key of this name is known."""
    for key, field in model.model_fields.items() if model else ():
        if key == name:
            yield above
        yield from _homes(name, model_of(field.annotation), (*above, key))
