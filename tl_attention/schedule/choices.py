"""The values that a schedule's keys may hold, read off the annotations that check them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Path = tuple[str, ...]
LIMITS = ("ge", "le", "multiple_of", "min_length", "max_length")


def choices(field: FieldInfo) -> tuple[Any, ...]:
    """Every value of a key by itself, the absent one first; none where they cannot be listed, as a text's.

    Of a float the whole numbers between its bounds. Of a mapping of keys one for each choice of those that it must
    have, the others as by default.
    """
    return tuple(_values(field.annotation, limits(field)))


def listed_keys(keys: BaseModel, above: Path = ()) -> Iterator[tuple[Path, tuple[Any, ...]]]:
    """Each key whose choices can be listed, by its path, those of the mappings that are there among them."""
    for name, field in type(keys).model_fields.items():
        value = getattr(keys, name)
        if isinstance(value, BaseModel):
            yield from listed_keys(value, (*above, name))
        # A mapping that has its own default is always there; one that may be absent is a choice as well.
        if (field.default is None or not isinstance(value, BaseModel)) and len(found := choices(field)) > 1:
            yield (*above, name), found


def limits(annotated: FieldInfo | Any) -> dict[str, int]:
    """The bounds that an annotation states, by pydantic's names: ge, le, multiple_of, min_length, max_length."""
    stated = annotated.metadata if isinstance(annotated, FieldInfo) else [annotated]
    return {name: value for one in stated for name in LIMITS if (value := getattr(one, name, None)) is not None}


def _values(annotation: Any, bounds: dict[str, int]) -> Iterator[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [limits(one) for one in arguments[1:]]
        yield from _values(arguments[0], {name: value for found in (*inner, bounds) for name, value in found.items()})
    elif origin in (Union, UnionType):
        found = [value for argument in arguments if argument is not NoneType for value in _values(argument, bounds)]
        yield from [None, *found] if found and NoneType in arguments else found
    elif origin is Literal:
        yield from arguments
    elif annotation is bool:
        yield from (False, True)
    elif annotation in (int, float):
        yield from map(annotation, _numbers(**bounds))
    elif origin is tuple and bounds.get("min_length", 0) == bounds.get("max_length"):
        yield from product(_values(arguments[0], {}), repeat=bounds["max_length"])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        needed = {name: choices(field) for name, field in annotation.model_fields.items() if field.is_required()}
        yield from (annotation(**dict(zip(needed, values))) for values in product(*needed.values()))


def _numbers(ge: int | None = None, le: int | None = None, multiple_of: int = 1) -> range:
    if ge is None or le is None:
        return range(0)
    return range(-(-ge // multiple_of) * multiple_of, le + 1, multiple_of)
