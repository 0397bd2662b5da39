"""The two errors that this package raises for its callers."""


class InputError(ValueError):
    """Bad input: one line that says what was wrong, what was expected, and where."""


class ScheduleRefused(InputError):
    """A well-formed schedule that cannot run: the dependence or the limit that it breaks."""
