"""This module holds the message of a submission's process, and the rules that the times of an honest one meet."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, FiniteFloat

from tl_attention.lab.leaderboard.timed import MAX_REPEATS, MIN_REPEATS


class Limits(NamedTuple):
    """Limits say how long after a timed call's end its output may be read, and the device become idle."""

    read_ms: float  # an honest submission's output is read after two launches
    # An honest device time is shorter than the host's by what is left of clearing L2, and by a few launches.
    idle_ms: float


# On the CPU other programs may take the time.
LIMITS = {"cuda": Limits(0.05, 1.0), "cpu": Limits(10.0, 20.0)}
# One call in so many may be late, as the host has other things to do.
LATE_ONE_IN = 10


class Message(BaseModel):
    """A message is the report of a submission's process about itself. The submission can forge it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    error: str
    samples_ms: tuple[FiniteFloat, ...] = ()  # each timed call's time
    read_ms: tuple[FiniteFloat, ...] = ()  # the time that reading rows of its output took
    wall_ms: tuple[FiniteFloat, ...] = ()  # the host's time from the call to an idle device
    elapsed_s: FiniteFloat = 0.0
    changes: tuple[tuple[int, int, int, int], ...] = ()  # of inputs before each timed call (inputs.py)
    kept: int = -1  # the number of the call whose whole output was written to a file

    def check(self) -> None:
        """Raises ValueError unless each of a possible number of timed calls has everything."""
        n = len(self.samples_ms)
        if not MIN_REPEATS <= n <= MAX_REPEATS:
            raise ValueError(f"{n} timed calls, expected {MIN_REPEATS} to {MAX_REPEATS}")
        for name in ("read_ms", "wall_ms", "changes"):
            if len(found := getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(found)} values, expected one for each of {n} timed calls")
        if not 0 <= self.kept < n:
            raise ValueError(f"kept is {self.kept}, expected the number of one of {n} timed calls")

    def late(self, device: str) -> str:
        """Says how timed calls went on after their end, "" for those of an honest submission.

        What a call leaves to another thread, to another queue of the device, or to whoever reads its output, is late.
        """
        limits, n = LIMITS[device], len(self.samples_ms)
        idle_ms = [wall - sample for wall, sample in zip(self.wall_ms, self.samples_ms)]
        for what, found, limit in (
            ("their outputs were read", self.read_ms, limits.read_ms),
            ("the device was idle", idle_ms, limits.idle_ms),
        ):
            late = [time for time in found if time > limit]
            if len(late) > max(1, n // LATE_ONE_IN):
                most, at_most = (
                    f"{len(late)} of {n} timed calls went on after their end",
                    f"expected {limit:g} ms at most",
                )
                return f"{most}: {what} up to {max(late):.3g} ms later, {at_most}"
        return ""
