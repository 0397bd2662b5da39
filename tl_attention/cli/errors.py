"""Bad input in one line: `error: what was wrong, what was expected, where` on stderr, and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from tl_attention.errors import InputError, ScheduleRefused, printable
from tl_attention.files.named import Named

# Of stdout: the reader has gone, or its disk is full.
CANNOT_PRINT = {errno.EPIPE, errno.ENOSPC}
INTERRUPTED = 130


class OneLineErrors(click.Group):
    """A group of commands whose every kind of bad input ends in one line on stderr and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except InputError as error:
            fail(str(error))
        except click.ClickException as error:
            fail(f"{error.format_message()} (see --help)")
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted; rows already recorded are kept", err=True)
            sys.exit(INTERRUPTED)
        except OSError as error:
            if error.errno not in CANNOT_PRINT:
                raise
            # Python flushes stdout once more at exit, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if error.errno == errno.ENOSPC:
                fail(f"stdout: cannot be written: {error.strerror}")
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if not args[0].startswith("-") and args[0] not in self.commands:
            names = ", ".join(sorted(self.commands))
            raise click.UsageError(f"no command {args[0][:40]!r}, expected one of {names}", ctx)
        return super().resolve_command(ctx, args)


def say(message: str) -> None:
    """One error line on stderr, whatever the message or a file's name holds."""
    click.echo(f"error: {printable(' '.join(message.split()))}", err=True)


def fail(message: str) -> NoReturn:
    """One error line, then exit code 2."""
    say(message)
    sys.exit(2)


class Problems:
    """Of several schedules, one error line for each that has one; those after it are still looked at."""

    def __init__(self) -> None:
        self.schedules = 0
        self.found = 0

    @contextmanager
    def each(self) -> Iterator[None]:
        """What goes wrong inside concerns one of them."""
        self.schedules += 1
        try:
            yield
        except InputError as error:
            self.found += 1
            say(str(error))

    def finish(self) -> None:
        """Exit with code 2 if there was a problem, and with a count if there were several schedules."""
        if self.found and self.schedules > 1:
            click.echo(f"{self.found} of {self.schedules} schedules have errors", err=True)
        if self.found:
            sys.exit(2)


@contextmanager
def naming(named: Named) -> Iterator[None]:
    """A refusal inside says of which file and line it is; a loading error says so already."""
    try:
        yield
    except ScheduleRefused as refusal:
        raise named.refused(refusal) from None
