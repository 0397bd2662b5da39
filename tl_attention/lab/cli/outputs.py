"""A command's outputs are checked before it begins: each is a file of its own, no input, and of the kind that is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import click

from tl_attention.errors import InputError, shown
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import Kind

KindOf = Callable[[Mapping[str, Any]], Kind]


class NamedFile(click.Path):
    """A `NamedFile` is the type of an option or argument that names a file. Who reads or writes it says what is wrong there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except ValueError:
            self.fail(f"no file has the name {shown(value)}", param, ctx)


class OutputFile(NamedFile):
    """An `OutputFile` is the type of an option whose file the command writes. The kind may depend on other options."""

    def __init__(self, kind: Kind | KindOf):
        super().__init__()
        self.kind = kind


def check_outputs(context: click.Context) -> None:
    """Raises InputError for an option whose file cannot be written, or must not be: an input, or one written twice."""
    outputs: dict[str, Path] = {}
    for option, path, kind in _outputs(context):
        for text in _inputs(context):
            if not user_file.is_no_file(path) and user_file.is_same(path, Path(text)):
                raise InputError(f"{path}: {option} writes it and the command reads it, expected {kind.instead()}")
        user_file.check_writable(path, kind)
        outputs[option] = path
    for (option, path), (other, same) in combinations(outputs.items(), 2):
        if not user_file.is_no_file(path) and user_file.is_same(path, same):
            raise InputError(f"{same}: {option} and {other} both write it, expected a file for each")


def _outputs(context: click.Context) -> Iterator[tuple[str, Path, Kind]]:
    """Yields the command's options that name a file to write, with the file and its kind."""
    for parameter in context.command.params:
        path = context.params.get(str(parameter.name))
        if isinstance(parameter.type, OutputFile) and path is not None:
            kind = parameter.type.kind
            yield parameter.opts[-1], path, kind if isinstance(kind, Kind) else kind(context.params)


def _inputs(context: click.Context) -> Iterator[str]:
    """Yields what the command's other options and arguments name that is there, such as the files of schedules."""
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if not isinstance(parameter.type, OutputFile):
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, (str, Path)) and os.path.exists(one):
                    yield os.fspath(one)
