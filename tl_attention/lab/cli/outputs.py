"""A command's outputs are checked before it begins: each is a file of its own, no input, and of the right kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import click

from tl_attention import shipped
from tl_attention.errors import InputError, printable, shown
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import Kind

# Says the kind of a file by its path and the command's options.
KindOf = Callable[[Path, Mapping[str, Any]], Kind]
SHIPPED = "results"


class NamedFile(click.Path):
    """A `NamedFile` is the type of an option or argument that names a file. Its reader or writer says what is wrong."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except ValueError:
            self.fail(f"no file has the name {shown(value)}", param, ctx)


class ReadFile(NamedFile):
    """A `ReadFile` is the type of a file that the command reads: a file results/NAME that ships need not be here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        ships = shipped.folder(SHIPPED).parent / path
        if path.parts[:1] != (SHIPPED,) or os.path.exists(path) or not os.path.isfile(ships):
            return path
        click.echo(printable(f"{path}: not here; it ships, as {ships}"), err=True)
        return ships


class OutputFile(NamedFile):
    """An `OutputFile` is the type of an option whose file the command writes. Name and options may decide its kind."""

    def __init__(self, kind: Kind | KindOf):
        super().__init__()
        self.kind = kind


def check_outputs(context: click.Context) -> None:
    """Raises InputError for a file that cannot be written, or must not be: an input, or one written twice."""
    outputs: list[Path] = []
    for option, path, kind in _outputs(context):
        for text in _inputs(context):
            if not user_file.is_no_file(path) and user_file.is_same(path, Path(text)):
                raise InputError(f"{path}: {option} writes it and the command reads it, expected {kind.instead()}")
        user_file.check_writable(path, kind)
        outputs.append(path)
    for one, other in combinations(outputs, 2):
        if not user_file.is_no_file(one) and user_file.is_same(one, other):
            raise InputError(f"{other}: named twice as an output, expected another file")


def _outputs(context: click.Context) -> Iterator[tuple[str, Path, Kind]]:
    """Yields the command's options that name a file to write, with each file and its kind."""
    for parameter in context.command.params:
        if isinstance(parameter.type, OutputFile):
            value, kind = context.params.get(str(parameter.name)), parameter.type.kind
            for path in value if isinstance(value, tuple) else () if value is None else (value,):
                yield parameter.opts[-1], path, kind if isinstance(kind, Kind) else kind(path, context.params)


def _inputs(context: click.Context) -> Iterator[str]:
    """Yields what the command's other options and arguments name that is there, such as the files of schedules."""
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if not isinstance(parameter.type, OutputFile):
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, (str, Path)) and os.path.exists(one):
                    yield os.fspath(one)
