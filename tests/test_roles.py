"""The roles of the warp-specialised kernel fit together, over every form, option and order of running them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from mutations import shipped
from overlap import FORMS, overlap
from tiers import sampled

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.lowering.registry import lowering_of
from tl_attention.lowering.warp_specialized.roles import Roles, tile_lists
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.proof.events import Event, Process
from tl_attention.proof.races import prove
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
