"""This module looks up a model's keys: the field at a path, and the keys below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Model = type[BaseModel]


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
