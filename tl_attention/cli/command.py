"""How commands show their help: the list of all in groups, no description cut short, and examples of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from tl_attention.cli.errors import OneLineErrors

# Of what an example does, which stands below it.
INDENT = 2


class Command(click.Command):
    """A command whose help ends with examples. `examples` maps each, without `tl-attention`, to what it does."""

    def __init__(self, *args: Any, examples: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = {f"tl-attention {text}": words for text, words in examples.items()}

    @property
    def summary(self) -> str:
        """The first paragraph of the help, on one line."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl([*self.examples.items()], col_max=INDENT)


def command(
    name: str | None = None, *, examples: Mapping[str, str], **options: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Makes a `Command` of a function; its docstring is the help."""
    return click.command(name, cls=Command, examples=examples, **options)


class Groups(OneLineErrors):
    """Commands whose list has headings, and below each command its first example."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups: dict[str, tuple[Command, ...]] = {}

    def add_group(self, heading: str, *commands: Command) -> None:
        """Commands that are listed below this heading."""
        self.groups[heading] = commands
        for of_group in commands:
            self.add_command(of_group)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.groups.items():
            rows: list[tuple[str, str]] = []
            for of_group in commands:
                rows += [(str(of_group.name), of_group.summary), ("", f"$ {next(iter(of_group.examples))}")]
            with formatter.section(heading):
                formatter.write_dl(rows)
