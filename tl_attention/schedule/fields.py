"""The keys of a model as its fields have them: the one at a path, those below it, and the values that each may hold."""

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
    """The model that a key's value is, or is a list of, where it is one: its keys are nested below it."""
    choices = (choice for choice in (annotation, *get_args(annotation)) if isinstance(choice, type))
    return next((choice for choice in choices if issubclass(choice, BaseModel)), None)


def model_at(model: Model | None, path: Sequence[str | int]) -> Model | None:
    """The model that a path leads to; a list's place leads to what it is a list of. None where there is no model."""
    for part in path:
        if isinstance(part, str):
            model = model_of(model.model_fields[part].annotation) if model and part in model.model_fields else None
    return model


def field_at(model: Model | None, path: Sequence[str | int]) -> FieldInfo | None:
    """The field of the key at a path; None where there is none."""
    inner = model_at(model, path[:-1]) if path else None
    return inner.model_fields.get(str(path[-1])) if inner else None


def choices(field: FieldInfo) -> tuple[Any, ...]:
    """Every value of a key by itself, the absent one first; none where they cannot be listed, as a text's.

    Of a float these are the whole numbers between its bounds. Of a nested model there is one instance for each
    combination of its required keys, the others as by default.
    """
    return tuple(_values(field.annotation, _limits(field.metadata)))


def _limits(metadata: Sequence[Any]) -> dict[str, int]:
    """The bounds that an annotation states, by pydantic's names."""
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
