"""A schedule is a fixed set of parameters, of a space that a person edits."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT
from mutations import shipped
from tiers import sampled

from tl_attention.errors import InputError
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.lab.search.parameters import Parameters
from tl_attention.lab.search.space import DEFAULT, read
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

EXPERIMENTS = sorted((ROOT / "schedules/experiments").rglob("*.yaml"))
SCHEDULES = [*shipped().values(), *map(load, EXPERIMENTS)]


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    return Parameters(read())


def test_a_schedules_point_gives_a_schedule_with_that_point(parameters: Parameters) -> None:
    of_the_lowering = [schedule for schedule in SCHEDULES if schedule.lowering == "warp_specialized"]
    for schedule in of_the_lowering:
        point = parameters.point(schedule)
        again = parameters.schedule(point)
        assert parameters.point(again) == point
        # Nothing is lost but how statements of one stage that follow each other are grouped.
        assert [*again.table.names] == [*schedule.table.names] and _loop(again) == _loop(schedule)
        assert again.model_dump(exclude={"group", "order", "stage"}) == schedule.model_dump(
            exclude={"group", "order", "stage"}
        )
    assert len(of_the_lowering) > 100


def _loop(schedule: Schedule) -> list[tuple[str, int]]:
    """Returns the statements in the order of the steady state with their stages, without parts of others."""
    table = schedule.dialect.table
    aside = (*table.fused, *table.moved)
    return [(name, stage) for names, stage in schedule.emission for name in names if name not in aside]


@pytest.mark.parametrize("seed", sampled(range(20), range(2)))
def test_what_is_drawn_is_a_schedule_or_is_refused_with_a_reason(parameters: Parameters, seed: int) -> None:
    rng, found = random.Random(seed), Counter[str]()
    for _ in range(150):
        point = parameters.drawn(rng)
        assert point.keys() == parameters.values.keys()
        try:
            schedule = parameters.schedule(point)
        except ValueError as error:
            assert str(error)
            found["ill-formed"] += 1
            continue
        # What was repaired says so: the schedule's own point is another way to say the same.
        assert _loop(parameters.schedule(parameters.point(schedule))) == _loop(schedule)
        try:
            refuse_unless_safe(Planned(schedule), 128)
            found["legal"] += 1
        except InputError as refusal:
            assert str(refusal)
            found["refused"] += 1
    # Of 150 that are drawn some two are legal, of these seeds' 3000 about 50.
    assert {"ill-formed", "refused"} <= set(found) <= {"ill-formed", "legal", "refused"}


def test_there_are_more_points_than_anybody_can_try(parameters: Parameters) -> None:
    assert parameters.size > 10**50 and len(parameters.values) < 100


def test_a_schedule_that_the_space_has_not_is_told_why(parameters: Parameters) -> None:
    with pytest.raises(ValueError, match=r"^softmax.rescale_threshold is 5.0, expected one of 0.0, 8.0$"):
        softmax = shipped()["best"].softmax.model_copy(update={"rescale_threshold": 5.0})
        parameters.point(shipped()["best"].model_copy(update={"softmax": softmax}))
    with pytest.raises(ValueError, match=r"^ahead.load_k is False, expected one of True$"):
        parameters.point(load(ROOT / "schedules/inferred.yaml"))


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("block_M: [64, 128, 192]", "block_M: [64, 100]", r":\d+: block_M: 100 is no value, expected one of 64, 128"),
        ("stages: 3", "stages: 9", r":\d+: stages: expected at most 4, found 9"),
        ("chunks: {exp: 3", "chunks: {expp: 3", r":\d+: chunks: .*expp.* is no value, did you mean .*exp"),
        ("  cluster: [1, 2]", "  clusters: [1, 2]", r":\d+: kernel: .*clusters.* did you mean .*cluster"),
        ("  cluster: [1, 2]", "  cluster: [1, 3]", r":\d+: kernel.cluster: 3 is no value, expected one of 1, 2"),
        ("  cluster: [1, 2]", "  cluster: []", r":\d+: kernel.cluster: expected at least 1 entry"),
        ("wait_before: [mma0, mma1]", "wait_before: [exp]", r":\d+: wait_before: .*exp.* is no value, expected one of"),
        ("stages: 3", "stagess: 3", r":\d+: stagess: unknown key, did you mean stages"),
        ("lowering: [warp_specialized]", "lowering: [ws]", r":\d+: lowering: .*ws.* is no value, expected one of"),
    ],
)
def test_a_space_that_cannot_be_is_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    text = DEFAULT.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        read(file)
    assert re.search(said, str(refused.value)), refused.value
