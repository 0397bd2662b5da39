"""This package raises two errors for its callers. They are defined here, as is how an error shows a caller's value."""

from __future__ import annotations


class InputError(ValueError):
    """An InputError is raised for a bad argument or file, or for a machine that cannot do what was asked.

    It is a ValueError. Each line of the message says what was wrong, what was expected, and where. A file can have
    several mistakes: then the message has a line for each, and each is an argument of the error.
    """

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """Returns the lines of the error's message, a tuple of strings."""
        return self.args


class ScheduleRefused(InputError):
    """A ScheduleRefused is raised for a well-formed schedule that cannot run.

    The message names the dependence or the limit that the schedule breaks.

    Attributes:
        key: the path of the schedule's key to blame, such as ("split", "exp"); empty if no single key is to blame.
        others: the paths of other keys that may be at fault, the likeliest first.
    """

    def __init__(self, reason: str, *key: str | int, others: tuple[tuple[str | int, ...], ...] = ()):
        super().__init__(reason)
        self.key = key
        self.others = others


def shown(value: object, most: int = 60) -> str:
    """Returns a value's repr on one line, cut to `most` characters, or the name of its type if the repr fails."""
    try:
        text = printable(repr(value))
    except Exception:  # Any class has a repr of its own, and an int of 5000 digits has none.
        return type(value).__name__
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(text: str) -> str:
    """Returns the text with an escape in place of each character that is not printable. A name may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
