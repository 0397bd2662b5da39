"""This module looks up a model's keys: the field at a path, the keys below it, and the values that a key may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Model = type[BaseModel]
LIMITS = ("ge", "le", "multiple_of", "min_length", "max_length")


def model_of(annotation: Any) -> Model | None:
    """Returns the model that a key's value is, or is a list of; None for other values.

    The keys of that model are nested below the key.
    """
    choices = (choice for choice in (annotation, *get_args(annotation)) if isinstance(choice, type))
    return next((choice for choice in choices if issubclass(choice, BaseModel)), None)


def model_at(model: Model | None, path: Sequence[str | int]) -> Model | None:
    """Returns the model that a path leads to; None where there is no model.

    A place in a list leads to the model of the list's entries.
    """
    for part in path:
        if isinstance(part, str):
            model = model_of(model.model_fields[part].annotation) if model and part in model.model_fields else None
    return model


def field_at(model: Model | None, path: Sequence[str | int]) -> FieldInfo | None:
    """Returns the field of the key at a path; None where there is no such key."""
    inner = model_at(model, path[:-1]) if path else None
    return inner.model_fields.get(str(path[-1])) if inner else None


def choices(field: FieldInfo) -> tuple[Any, ...]:
    """Returns every value that a key may hold, None first; no value where they cannot be listed, as for a text.

    For a float these are the whole numbers between its bounds. For a nested model there is one instance for each
    combination of its required keys, with defaults elsewhere.
    """
    return tuple(_values(field.annotation, _limits(field.metadata)))


def _limits(metadata: Sequence[Any]) -> dict[str, int]:
    """Returns the bounds that an annotation states, by pydantic's names."""
    return {name: value for one in metadata for name in LIMITS if (value := getattr(one, name, None)) is not None}


def _values(annotation: Any, limits: dict[str, int]) -> Iterator[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        stated = [more for one in arguments[1:] for more in getattr(one, "metadata", (one,))]
        yield from _values(arguments[0], _limits(stated) | limits)
    elif origin in (Union, UnionType):
        found = [value for argument in arguments if argument is not NoneType for value in _values(argument, limits)]
        yield from [None, *found] if found and NoneType in arguments else found
    elif origin is Literal:
        yield from arguments
    elif annotation is bool:
        yield from (False, True)
    elif annotation in (int, float):
        yield from map(annotation, _numbers(**limits))
    elif origin is tuple and limits.get("min_length", 0) == limits.get("max_length"):
        yield from product(_values(arguments[0], {}), repeat=limits["max_length"])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        needed = {name: choices(field) for name, field in annotation.model_fields.items() if field.is_required()}
        yield from (annotation(**dict(zip(needed, values))) for values in product(*needed.values()))


def _numbers(ge: int | None = None, le: int | None = None, multiple_of: int = 1) -> range:
    if ge is None or le is None:
        return range(0)
    return range(-(-ge // multiple_of) * multiple_of, le + 1, multiple_of)
