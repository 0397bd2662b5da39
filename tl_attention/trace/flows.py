"""A Flow is an arrival of one role that ended another role's wait. None is known yet: this is the interface alone."""

from __future__ import annotations

from typing import NamedTuple

from tl_attention.trace.timeline import Span, Timeline


class Flow(NamedTuple):
    """A Flow goes from cycle `start` of the line with index `line` to the Span `wait` of the line with index `to`."""

    line: int
    start: int
    to: int
    wait: Span


def flows(timeline: Timeline) -> tuple[Flow, ...]:
    """Returns the flows of a timeline: none, until it is known which arrivals a wait is for."""
    return ()
