"""Schedules of mma_sync differ in one idea: one to three lines of their files, and another kernel."""

from __future__ import annotations

import difflib
from itertools import combinations

import pytest
from mma_sync_schedules import FAMILY, FILES, OF_OTHER_CODE, SHIPPED, head_dim
from mutations import SCHEDULES
from once import Given, lowered
from tiers import exhaustive

from tl_attention.compiler.compile import fingerprint
from tl_attention.lowering.mma_sync.resources import of_schedule
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned

# Each with what it is one idea away from.
IDEAS = {
    "mma_sync/eager": "mma_sync/plain",
    **{name: "mma_sync/eager" for name in FAMILY if name not in ("mma_sync/plain", "mma_sync/eager")},
    "mma_sync/double_both": "mma_sync/double_k",
}
# What these change is no operation of the Program.
SAME_PROGRAM = ("mma_sync/x2", "mma_sync/rows", "mma_sync/threshold", "mma_sync/unfused")


def lines(name: str) -> list[str]:
    """Returns the lines of a schedule's file that say something: no comments, no summary."""
    text = (SCHEDULES / f"{name}.yaml").read_text().splitlines()
    return [line for line in text if not line.startswith(("#", "summary:"))]


def changed_lines(before: str, after: str) -> int:
    """Counts the lines that a diff shows as removed or as added, whichever are more."""
    shown = [line[0] for line in difflib.ndiff(lines(before), lines(after))]
    return max(shown.count("-"), shown.count("+"))


def test_every_one_of_the_family_is_one_idea_away_from_another():
    assert {*IDEAS} | {"mma_sync/plain"} == {*FAMILY} and len(FAMILY) >= 11


@pytest.mark.parametrize("name", IDEAS)
def test_one_idea_is_one_to_three_lines(name):
    allowed = 6 if name == "mma_sync/interleaved" else 3
    assert 1 <= changed_lines(IDEAS[name], name) <= allowed
    assert 1 <= changed_lines(name, IDEAS[name]) <= allowed


@pytest.mark.parametrize("name", IDEAS)
def test_one_idea_is_another_kernel(name):
    before, after = SHIPPED[IDEAS[name]], SHIPPED[name]
    assert of_schedule(Planned(before)) != of_schedule(Planned(after))
    assert (derive(before).phases == derive(after).phases) == (name in SAME_PROGRAM)


def test_no_two_are_the_same():
    for a, b in combinations(SHIPPED, 2):
        assert SHIPPED[a] != SHIPPED[b] and FILES[a].summary != FILES[b].summary
        assert head_dim(a) != head_dim(b) or of_schedule(Planned(SHIPPED[a])) != of_schedule(Planned(SHIPPED[b]))


@exhaustive
def test_the_generated_code_of_each_is_its_own():
    sources = {lowered(Given(SHIPPED[name], Variant(128, "float16", CAUSAL))).source for name in OF_OTHER_CODE}
    assert len(sources) == len({fingerprint(source) for source in sources}) == len(OF_OTHER_CODE)
