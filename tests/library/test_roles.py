"""The roles of the warp-specialised kernel fit together in every form and order, and no fault of theirs may pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from mutations import shipped
from overlap import FORMS, overlap
from tiers import sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.warp_specialized.roles import Roles, tile_lists
from tl_attention.program.derivation import derive
from tl_attention.program.events import Event, Process
from tl_attention.program.planned import Planned
from tl_attention.program.races import prove
from tl_attention.schedule.schedule import Schedule

ORDERS = [{"reverse": reverse, "late": late} for reverse, late in product((False, True), repeat=2)]
OPTIONS = {
    "as shipped": {},
    "no cluster": {"cluster": 1},
    "dynamic": {"cluster": 1, "tile_scheduler": "dynamic"},
    "dynamic ping-pong": {"cluster": 1, "tile_scheduler": "dynamic", "ping_pong": True},
    "ping-pong": {"ping_pong": True},
    "one K buffer": {"k_stages": 1},
    "one buffer each": {"k_stages": 1, "v_stages": 1},
    "rings of three and four": {"k_stages": 3, "v_stages": 4},
    "Q in registers": {"q_operand": "registers"},
    "P in shared memory": {"p_operand": "shared"},
    "output through Q": {"output": "tma"},
    "both": {"q_operand": "registers", "output": "tma"},
    "all of them": {"q_operand": "registers", "p_operand": "shared", "output": "tma", "ping_pong": True},
}


def roles_of(schedule: Schedule) -> Roles:
    return Roles.of(schedule, derive(schedule))


def events_of(roles: Roles, tiles: Sequence[int]) -> dict[Process, list[Event]]:
    return {process: list(roles.events(process, tiles)) for process in roles.processes}


COMBINED = [
    # Only two warpgroups take turns.
    (form, options)
    for form in FORMS
    for options in OPTIONS
    if not OPTIONS[options].get("ping_pong") or overlap(form).block_M == 128
]


# Half of them, with each form and each option.
@pytest.mark.parametrize("form,options", sampled(COMBINED, COMBINED[::2]))
def test_the_roles_go_together(form, options):
    schedule = overlap(form, **OPTIONS[options])
    roles = roles_of(schedule)
    for tiles in tile_lists(roles.program):
        for order in ORDERS:
            prove(events_of(roles, tiles), roles.counts, **order)


@pytest.mark.parametrize("name", shipped())
def test_the_roles_of_every_shipped_schedule_go_together(name):
    schedule = shipped()[name]
    if schedule.lowering == "warp_specialized":
        assert list(lowering_of(schedule).prove(schedule, derive(schedule)))


@pytest.mark.parametrize("options", [{}, {"ping_pong": True}, {"cluster": 1, "tile_scheduler": "dynamic"}])
def test_warps_that_drift_apart_go_together_too(options):
    """A warpgroup is proved as one process; here each of its warps is a process."""
    roles = roles_of(overlap(**options))
    for tiles in tile_lists(roles.program):
        warps = {
            Process(process.block, 10 * process.warpgroup + warp, 1): events
            for process, events in events_of(roles, tiles).items()
            for warp in range(process.warps)
        }
        prove(warps, roles.counts)


@pytest.mark.parametrize("form", ["source order", "three stages"])
def test_turns_that_one_buffer_cannot_take_are_refused(form):
    """The warpgroup that has the turn waits for V; the other must release V's buffer, in an iteration of its own."""
    with pytest.raises(ScheduleRefused, match=r"^deadlock: the producer of block 0 waits for V_empty\[0\]") as error:
        refuse_unless_safe(Planned(overlap(form, ping_pong=True, v_stages=1)), 64)
    assert "warpgroup 1 of block 0 waits for named barrier[2]" in str(error.value)
    refuse_unless_safe(Planned(overlap(form, ping_pong=True)), 64)


# --- faults ----------------------------------------------------------------------------------------------------------


# KV blocks of the tiles; with the dynamic scheduler tiles are so short that the producer runs two ahead.
TILES, SHORT_TILES = [3, 4, 3, 3, 3], [1, 1, 1, 1, 1]
Events = dict[Process, list[Event]]


def place(events: list[Event], kind: str, name: str = "", nth: int = 0) -> int:
    found = [index for index, event in enumerate(events) if event.kind == kind and event.name.startswith(name)]
    return found[nth]


def removed(process: Process, kind: str, name: str = "", nth: int = 0):
    def change(events: Events) -> None:
        del events[process][place(events[process], kind, name, nth)]

    return change


def changed(process: Process, kind: str, name: str = "", nth: int = 0, **fields):
    def change(events: Events) -> None:
        index = place(events[process], kind, name, nth)
        events[process][index] = replace(events[process][index], **fields)

    return change


def moved(process: Process, event: tuple, before: tuple):
    """Makes a change that moves an event before another one, both as for `place`."""

    def change(events: Events) -> None:
        run = events[process]
        to = place(run, *before)
        run.insert(to, run.pop(place(run, *event)))

    return change


def ids_swapped(process: Process):
    def change(events: Events) -> None:
        events[process][:] = [
            replace(event, index=3 - event.index) if event.name == "named barrier" else event
            for event in events[process]
        ]

    return change


def a_block_more(events: Events) -> None:
    """Makes one warpgroup take the first tile for a block longer than it is."""
    events[FIRST] = list(roles_of(overlap()).events(FIRST, [TILES[0] + 1, *TILES[1:]]))


PRODUCER, FIRST, SECOND = Process(0, -1, 1), Process(0, 0, 4), Process(0, 1, 4)
PRODUCER_1, FIRST_1 = Process(1, -1, 1), Process(1, 0, 4)
PING_PONG, DYNAMIC = {"ping_pong": True}, {"cluster": 1, "tile_scheduler": "dynamic", "k_stages": 4, "v_stages": 4}
# Options, the fault, the reason.
FAULTS = {
    "a release lost": (
        {},
        removed(FIRST, "arrive", "K_empty"),
        r"^deadlock: .*the producer of block 0 waits for K_empty\[0\]",
    ),
    "the last release lost": (
        {},
        removed(SECOND, "arrive", "V_empty", -1),
        r"^left over: V_empty\[\d\] of block \d waits for 4 of 16 arrivals",
    ),
    "a release of V lost": (
        {},
        removed(FIRST_1, "arrive", "V_empty"),
        r"deadlock: .* waits for V_empty\[0\] of block 0",
    ),
    "the release of Q lost": (
        {},
        removed(SECOND, "arrive", "Q_empty"),
        r"deadlock: .* waits for Q_empty\[1\] of block 0",
    ),
    "a release that one block does not get": (
        {},
        changed(FIRST_1, "arrive", "K_empty", blocks=(1,)),
        r"deadlock: .*producer of block 0 waits for K_empty\[0\]",
    ),
    "a release that the other block does not get": (
        {},
        changed(FIRST, "arrive", "K_empty", blocks=(0,)),
        r"warpgroup 1 of block 0 arrives for phase 1 of K_empty\[0\] of block 1, which may still be in phase 0",
    ),
    "a release too many": (
        {},
        lambda events: events[FIRST].insert(0, Event("arrive", "Q_empty", 0, 1, (0,))),
        r"phase 0 of Q_empty\[0\] of block 0 can end before the producer of block 0 has seen the end of phase -1",
    ),
    "K released before it is read": (
        {},
        moved(FIRST, ("arrive", "K_empty"), ("products wait",)),
        r"producer of block 0 loads K\(2\) over K\(0\), which warpgroup 0 of block 0 may still have to read",
    ),
    "Q released with the first product": (
        {"v_stages": 4},
        moved(FIRST, ("arrive", "Q_empty"), ("arrive", "K_empty")),
        r"warpgroup 0 of block 0 reads Q\(0\) in a buffer that holds Q\(1\)",
    ),
    "Q released before the output went through it": (
        {"output": "tma"},
        moved(FIRST, ("arrive", "Q_empty"), ("fence",)),
        r"loads Q\(1\) over Q\(0\), which warpgroup 0 of block 0 may still have to read",
    ),
    "Q released twice": (
        {"output": "tma", "q_operand": "registers"},
        lambda events: events[FIRST].insert(
            place(events[FIRST], "wait", "K_full"), Event("arrive", "Q_empty", 0, 1, (0,))
        ),
        r"Q_empty\[0\] of block 0, which may still be in phase 0|Q\(1\) over Q\(0\), which .* read without a fence",
    ),
    "a wait for K on the other parity": (
        {},
        changed(FIRST, "wait", "K_full", value=1),
        r"phase 0 of K_full\[0\] of block 0 can end before warpgroup 0 of block 0 has seen the end of phase -1",
    ),
    "a wait for Q on the other parity": (
        {},
        changed(FIRST, "wait", "Q_full", 1, value=0),
        r"warpgroup 0 of block 0 reads Q\(1\) in a buffer that holds Q\(0\)",
    ),
    "an acquire on the other parity": (
        {},
        changed(PRODUCER, "wait", "V_empty", value=0),
        r"deadlock: the producer of block 0 waits for V_empty\[0\]",
    ),
    "an acquire on the other parity, later": (
        {},
        changed(PRODUCER, "wait", "V_empty", 2, value=1),
        r"phase 0 of V_empty\[0\] of block 0 can end before the producer of block 0 has seen the end of phase -1",
    ),
    "a load not waited for": ({}, removed(FIRST, "wait", "V_full"), r"reads V\(0\) and has not waited for it"),
    "a buffer not acquired": (
        {},
        removed(PRODUCER, "wait", "K_empty", 2),
        r"producer of block 0 expects bytes for phase 1 of K_full\[0\] of block 0, which may still be in phase 0",
    ),
    "bytes not expected": ({}, removed(PRODUCER, "expect"), r"deadlock: .* waits for K_full\[0\] of block 0"),
    "bytes expected too late": (
        {},
        moved(PRODUCER_1, ("expect", "K_full"), ("wait", "V_empty")),
        r"deadlock: .*block 1 waits for K_full\[0\]",
    ),
    "bytes that the second block does not expect": (
        {},
        removed(PRODUCER_1, "expect", "V_full"),
        r"deadlock: .* waits for V_full\[0\] of block 1",
    ),
    "a load that only one block gets": (
        {},
        changed(PRODUCER, "load", "K", blocks=(0,)),
        r"deadlock: .* waits for K_full\[0\] of block 1",
    ),
    "a load by both blocks": (
        {},
        lambda events: events[PRODUCER_1].insert(
            place(events[PRODUCER_1], "arrive", "K_full"), Event("load", "K", 0, blocks=(0, 1), step=0)
        ),
        r"producer of block 1 loads K\(0\) over K\(0\), which warpgroup 0 of block 0",
    ),
    "a tile that is a block longer for one warpgroup": (
        {},
        a_block_more,
        r"^deadlock: .*warpgroup 0 of block 0 waits for K_full",
    ),
    "a block that starts alone": (
        {},
        lambda events: [run.pop(0) for run in events.values()],
        r"reaches block \d, which may not have started",
    ),
    "a block that ends alone": (
        {},
        lambda events: [run.pop() for run in events.values()],
        r"reaches another block, which may have ended",
    ),
    "a turn not passed on": (
        PING_PONG,
        removed(FIRST, "signal"),
        r"deadlock: .*warpgroup 1 of block 0 waits for named barrier\[2\]",
    ),
    "no first turn": (
        PING_PONG,
        removed(SECOND, "signal"),
        r"deadlock: .*warpgroup 0 of block 0 waits for named barrier\[1\]",
    ),
    "a turn not waited for": (
        PING_PONG,
        removed(FIRST, "sync", "named"),
        r"warpgroup 1 of block 0 arrives for phase 1 of named barrier\[1\] of block 0, which may still be in phase 0",
    ),
    "the last turn not taken": (
        PING_PONG,
        removed(FIRST, "sync", "named", -1),
        r"left over: named barrier\[1\] of block 0 waits for 128 of 256 arrivals",
    ),
    "turns of the other warpgroup": (
        PING_PONG,
        ids_swapped(FIRST),
        r"arrives for phase 1 of named barrier\[1\] of block 0",
    ),
    "a tile's number not waited for": (
        DYNAMIC,
        removed(SECOND, "wait", "tile_full"),
        r"warpgroup 1 of block 0 reads tile\(0\) and has not waited for it",
    ),
    "a tile's number not released": (
        DYNAMIC,
        removed(SECOND, "arrive", "tile_empty"),
        r"deadlock: the producer of block 0 waits for tile_empty\[0\]",
    ),
    "a tile's number not acquired": (
        DYNAMIC,
        removed(PRODUCER, "wait", "tile_empty", 2),
        r"arrives for phase 1 of tile_empty\[0\] of block 0, which may still be in phase 0",
    ),
}
COUNTS = {
    "K_empty one too few": (
        "K_empty",
        -1,
        r"K_empty\[0\] of block 0 counts 15 arrivals: warpgroup \d of block \d makes 4",
    ),
    "K_empty one too many": ("K_empty", 1, r"deadlock: the producer of block 0 waits for K_empty\[0\] of block 0"),
    "K_empty without the other block": (
        "K_empty",
        -8,
        r"phase 0 of K_empty\[0\] of block 1 can end before the producer",
    ),
    "V_empty without a warpgroup": (
        "V_empty",
        -4,
        r"warpgroup 1 of block 1 arrives for phase 1 of V_empty\[0\] of block 0, which may still be in phase 0",
    ),
    "Q_empty without a warp": ("Q_empty", -1, r"Q_empty\[0\] of block 0 counts 3 arrivals"),
    "K_full without a lane": ("K_full", -1, r"K_full\[0\] of block 0 counts 31 arrivals"),
    "Q_full with a lane more": ("Q_full", 1, r"deadlock: .*warpgroup 0 of block 0 waits for Q_full\[0\]"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_whatever_the_order(name):
    options, change, words = FAULTS[name]
    roles = roles_of(overlap(**options))
    events = events_of(roles, SHORT_TILES if roles.dynamic else TILES)
    prove(events, roles.counts)
    change(events)
    with pytest.raises(ScheduleRefused, match=words) as error:
        prove(events, roles.counts)
    assert "\n" not in str(error.value)
    for order in ORDERS:
        with pytest.raises(ScheduleRefused):
            prove(events, roles.counts, **order)


@pytest.mark.parametrize("name", COUNTS)
def test_a_barrier_that_counts_wrongly_is_refused(name):
    barrier, change, words = COUNTS[name]
    roles = roles_of(overlap())
    for order in ORDERS:
        with pytest.raises(ScheduleRefused, match=words if order == ORDERS[0] else None):
            prove(events_of(roles, TILES), {**roles.counts, barrier: roles.counts[barrier] + change}, **order)
