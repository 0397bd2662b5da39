"""Commands show their help with examples. Bad input ends in one line a mistake on stderr, and exit code 2."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import FrameType
from typing import Any, NoReturn

import click

from tl_attention.errors import InputError, ScheduleRefused, printable
from tl_attention.lab.cli.outputs import check_outputs
from tl_attention.schedule.files.named import Named
from tl_attention.schedule.key_words import meant

# Errors of stdout: the reader has gone, or the disk is full.
CANNOT_PRINT = {errno.EPIPE, errno.ENOSPC}
# A shell adds the signal's number to this for the exit code of a command that a signal ended.
BY_SIGNAL = 128
# These signals end a job from outside; each closes files and ends processes first.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)
# The start of the file name that frames of an import have.
IMPORTING = "<frozen importlib"
AGAIN_S = 0.1
# The exit code where a command fails, but not for bad input.
FAILED = 1


class Ended(SystemExit):
    """Ended is raised when a signal ends the command; its `code` is 128 plus the signal's number, as in a shell."""


class OneLineErrors(click.Group):
    """This group of commands answers bad input with one line on stderr for each mistake, and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with _ended_by_signals():
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except InputError as error:
            fail(*error.lines)
        except click.ClickException as error:
            fail(f"{error.format_message()} (see --help)")
        except (click.Abort, KeyboardInterrupt):
            _say_interrupted(BY_SIGNAL + signal.SIGINT)
        except Ended as ended:
            _say_interrupted(ended.code)
        except OSError as error:
            if error.errno not in CANNOT_PRINT:
                raise
            # Python flushes stdout once more at exit, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if error.errno == errno.ENOSPC:
                fail(f"stdout: cannot be written: {error.strerror}")
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    # What stands for each command that has gone.
    gone: Mapping[str, str] = {}

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name in self.gone:
            raise InputError(f"{name} {self.gone[name]}")
        if not name.startswith("-") and name not in self.commands:
            names = ", ".join(sorted(self.commands))
            raise click.UsageError(
                f"no command {name[:40]!r}{meant(name, self.commands) or f', expected one of {names}'}", ctx
            )
        return super().resolve_command(ctx, args)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes the first signal of each kind, SIGINT, SIGTERM or SIGHUP, raise `Ended` inside the block."""
    before = {number: signal.getsignal(number) for number in ENDING}

    def end(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            # A package swallows what is raised inside of its import, or cannot be imported twice.
            threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)).start()
            return
        # The next one ends the process at once, whatever is still to be closed.
        signal.signal(number, signal.SIG_DFL)
        raise Ended(BY_SIGNAL + number)

    # Elsewhere than in the main thread no handler can be set. A signal that is ignored, as under nohup, or that has a
    # handler of its own, is left alone.
    is_main = threading.current_thread() is threading.main_thread()
    caught = {number: handler for number, handler in before.items() if is_main and handler in BY_DEFAULT}
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame and not frame.f_code.co_filename.startswith(IMPORTING):
        frame = frame.f_back
    return frame is not None


def _say_interrupted(code: str | int | None) -> NoReturn:
    with suppress(OSError):  # The terminal may have gone.
        click.echo("interrupted; rows already recorded are kept", err=True)
    sys.exit(code)


def say(*messages: str) -> None:
    """Prints each message on stderr as one error line, with escapes for characters that are not printable."""
    for message in messages:
        click.echo(f"error: {printable(' '.join(message.split()))}", err=True)


def fail(*messages: str) -> NoReturn:
    """Prints each message on stderr as one error line, then exits with code 2."""
    say(*messages)
    sys.exit(2)


class ErrorCount:
    """An `ErrorCount` prints and counts the errors of several schedules, so that a wrong one does not hide the next.

    `finish` exits if there were any.
    """

    def __init__(self) -> None:
        self.schedules = 0
        self.found = 0

    @contextmanager
    def each(self) -> Iterator[None]:
        """Counts a schedule, and prints and counts an InputError from inside the block instead of raising it."""
        self.schedules += 1
        try:
            yield
        except InputError as error:
            self.tell(error)

    def tell(self, error: InputError) -> None:
        """Prints and counts an error of a schedule that was counted before."""
        self.found += 1
        say(*error.lines)

    def finish(self) -> None:
        """Exits with code 2 if a schedule had an error. Of several schedules it prints first how many had one."""
        if self.found and self.schedules > 1:
            click.echo(f"{self.found} of {self.schedules} schedules have errors", err=True)
        if self.found:
            sys.exit(2)


@contextmanager
def naming(named: Named) -> Iterator[None]:
    """Turns a ScheduleRefused from inside the block into an InputError with the file and line of `named`.

    An error of loading a file has these already.
    """
    try:
        yield
    except ScheduleRefused as refusal:
        raise named.refused(refusal) from None


# Words that do not stand behind an option that is on or off.
SWITCHES = ("true", "false", "yes", "no", "on", "off", "1", "0")
# The indent of what an example does, which stands below the example.
INDENT = 2


class Command(click.Command):
    """A `Command` checks what it may write before it begins, and ends its help with examples."""

    def __init__(
        self, *args: Any, examples: Mapping[str, str], gone: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        # What each example does, and what stands for each option that the command had.
        self.examples = {f"tl-attention {text}": words for text, words in examples.items()}
        self.gone = gone or {}

    @property
    def summary(self) -> str:
        """Returns the first paragraph of the help, on one line."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = [option for option in self.params if isinstance(option, click.Option) and option.is_flag]
        flags = {name for option in switches for name in (*option.opts, *option.secondary_opts)}
        for option, value in pairwise(args):
            if option in flags and value.lower() in SWITCHES:
                raise click.UsageError(f"{option} takes no value, found {value!r}", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if words := self.gone.get(error.option_name):
                raise InputError(f"{self.name}: {error.option_name} {words}") from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        check_outputs(ctx)
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl([*self.examples.items()], col_max=INDENT)


def command(
    name: str | None = None, *, examples: Mapping[str, str], **options: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Returns a decorator that turns a function into a `Command` with these examples; its docstring is the help."""
    return click.command(name, cls=Command, examples=examples, **options)


class Groups(OneLineErrors):
    """A `Groups` is a group of commands whose help lists them below headings, each with its first example."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups: dict[str, tuple[Command, ...]] = {}

    def add_group(self, heading: str, *commands: Command) -> None:
        """Adds commands to this group, whose help lists them below the heading."""
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
