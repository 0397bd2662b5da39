"""The rules that `races.py` holds a cluster's roles to, each with a short name that stays.

What no rule refuses runs in every order. Some refuse a little that would run as well. They stay: without an order to
look at, it can be said then what a barrier counts and what a buffer holds.

- early, count: an arrival too many, or one that may count for another phase, where nobody waits for either any more;
- deadlock: the cluster's barrier does not wait for a warp that has exited, so one warp may be there more often;
- threads: a named barrier may serve other numbers of threads at other times, if never two at once;
- one warp: a warp of several could be elected to load, but events do not say which;
- overwrite: who reads a load is known by its number, also where a load of the same number comes twice.
"""

from __future__ import annotations

from enum import StrEnum

from tl_attention.errors import ScheduleRefused


class Rule(StrEnum):
    """What is refused, by the rule that it breaks."""

    # Of barriers.
    DEADLOCK = "deadlock"
    LEFT_OVER = "left over"
    EARLY = "early"  # an arrival, expected bytes or a load for a phase that may not have begun
    COUNT = "count"  # more arrivals than a phase counts
    MISSED = "missed"  # a wait whose barrier may be a phase further by then
    BYTES = "bytes"  # a phase that can end before the bytes of its load are expected
    THREADS = "threads"  # a named barrier of so many threads, and of others
    # Of shared memory.
    NOT_SEEN = "not seen"  # a read before what it reads is there for sure
    OTHER = "other"  # a read of a buffer that holds something else
    OVERWRITE = "overwrite"  # a load, or a write, over what may still be read
    LANDING = "landing"  # a load over one that may still land
    # A write that is stored, multiplied or loaded over, without a fence and a barrier of the warpgroup; a read, too.
    PROXY = "proxy"
    ONE_WARP = "one warp"  # a load, or its expected bytes, by several warps
    # Of the beginning and the end.
    NOT_STARTED = "not started"
    MAY_HAVE_ENDED = "may have ended"
    IN_FLIGHT = "in flight"  # a product, a load or a store at the end


class Unsafe(ScheduleRefused):
    """Roles that could race or deadlock, by the rule that they break."""

    rule: Rule


def unsafe(rule: Rule, reason: str) -> Unsafe:
    error = Unsafe(reason)
    error.rule = rule
    return error
