"""Numbers are a simulated cluster's state; operations change them by the rules that mbarrier_simulator.py states."""

from collections.abc import Callable, Iterable

WARP = 32
# A buffer holds NOTHING, or LANDING while a load may be writing to it, or else the number of its load.
NOTHING, LANDING = -1, -2
# A warp's part of a buffer: as it was loaded, written by its threads, and written and fenced.
LOADED, WRITTEN, FENCED = 0, 1, 2
State = list[int]
Do = Callable[[State], None]
# Slots of an mbarrier's pending arrivals, tx-count and phase; its count; its bit.
Barrier = tuple[int, int, int, int, int]
# Slots of what a buffer holds, of how many read it asynchronously, of the parts that warps write; its bit.
Place = tuple[int, int, list[int], int]


class Fault(Exception):
    """Raised where something goes wrong."""


class Operation:
    """An operation happens when `ready` lets it.

    Two operations commute if they touch nothing in common, or only read what they share, or only add to it.
    """

    def __init__(
        self, do: Do, reads: int = 0, changes: int = 0, adds: int = 0, ready: Callable[[State], bool] | None = None
    ):
        self.do, self.ready = do, ready
        self.touches = reads, changes, adds
        # The operations that this one puts in flight.
        self.landings: list[Operation] = []


def nothing(state: State) -> None:
    """Does nothing."""


# This operation stands behind the last one of a run.
ENDED = Operation(nothing, ready=lambda state: False)


def arrive(state: State, barrier: Barrier, arrivals: int) -> None:
    """Arrives at a barrier so many times, one after another. Raises Fault where no arrival is pending."""
    while arrivals:
        left = state[barrier[0]]
        if not left:
            raise Fault("arrives where no arrival is pending")
        now = min(arrivals, left)
        state[barrier[0]] -= now
        arrivals -= now
        end_phase(state, barrier)


def add_bytes(state: State, barrier: Barrier, loads: int) -> None:
    """Adds the bytes of so many loads to a barrier: bytes are expected, or have landed if negative."""
    state[barrier[1]] += loads
    end_phase(state, barrier)


def end_phase(state: State, barrier: Barrier) -> None:
    pending, tx, phase, count, _ = barrier
    if not state[pending] and not state[tx]:
        state[phase] += 1
        state[pending] = count


def overwrite(state: State, place: Place, step: int, unfenced: Iterable[int] = ()) -> None:
    """Loads over a place. Raises Fault where somebody still reads or writes the place.

    `unfenced` are slots of warps, which say whether the warp has read the place itself and not fenced that.
    """
    holds, reading, parts, _ = place
    if any(state[slot] for slot in unfenced):
        raise Fault("loads over what is read and not fenced")
    if state[reading]:
        raise Fault("loads over what is read")
    if state[holds] == LANDING:
        raise Fault("loads over a load in flight")
    for part in parts:
        if state[part] == WRITTEN:
            raise Fault("loads over what is written and not fenced")
        state[part] = LOADED
    state[holds] = step


def use(state: State, uses: list[tuple[int, int, list[int]]]) -> None:
    for holds, step, parts in uses:
        if state[holds] != step:
            raise Fault("reads something else")
        for part in parts:
            if state[part]:
                raise Fault("reads what was written over")
