"""This module lists the values that a key of a schedule may hold, by the annotation of the key's field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

LIMITS = ("ge", "le", "multiple_of", "min_length", "max_length")


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
