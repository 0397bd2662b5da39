"""In the space of schedules, the keys say what may vary, and a change gives one parameter another value."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Annotated, Literal

import pytest
from mutations import shipped
from pydantic import BaseModel, Field

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.lab.search.changes import changed, parameters_of, walk
from tl_attention.lab.search.choices import choices
from tl_attention.lab.search.groups import as_keys
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.options import OPTIONS, Exp2Polynomial, KernelOptions, Releases, SoftmaxOptions, Split, Waits
from tl_attention.schedule.schedule import Schedule

BEST = shipped()["best"]


@pytest.mark.parametrize(
    "model, key, expected",
    [
        (KernelOptions, "tile_scheduler", ("one_tile", "static", "dynamic")),
        (KernelOptions, "ping_pong", (False, True)),
        (KernelOptions, "cluster", (1, 2)),
        (KernelOptions, "v_stages", (None, *range(1, 9))),
        (SoftmaxOptions, "rescale_threshold", tuple(map(float, range(16)))),
        (SoftmaxOptions, "exp2_polynomial", (None, *(Exp2Polynomial(every=every) for every in range(1, 65)))),
        (Schedule, "block_N", tuple(range(16, 257, 16))),
        (Schedule, "kv_order", ("ascending", "descending")),
        # Text, lists of any length, a name that is known only later.
        (Waits, "mma1", ()),
        (Split, "exp", ()),
        (Schedule, "group", ()),
        (Schedule, "lowering", ()),
    ],
)
def test_choices_are_those_of_the_annotation(model, key, expected) -> None:
    found = choices(model.model_fields[key])
    assert found == expected and [*map(type, found)] == [*map(type, expected)]


def test_lists_of_one_length_and_bounds_that_are_no_multiples_are_listed_too() -> None:
    class Made(BaseModel):
        pair: Annotated[tuple[Literal["a", "b"], ...], Field(min_length=2, max_length=2)]
        number: Annotated[int, Field(ge=5, le=20, multiple_of=8)]
        endless: Annotated[int, Field(ge=5)]

    found = [choices(field) for field in Made.model_fields.values()]
    assert found == [(("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")), (8, 16), ()]
    registers = choices(KernelOptions.model_fields["registers"])
    assert registers[0] is None and len(registers) == 1 + 28**2 and (240, 24) in registers and (232, 40) in registers


def leaves(keys: BaseModel, above: str = "") -> dict[str, object]:
    """Returns every key's value by the key's path."""
    found: dict[str, object] = {}
    for name in type(keys).model_fields:
        value = getattr(keys, name)
        found |= leaves(value, f"{above}{name}.") if isinstance(value, BaseModel) else {f"{above}{name}": value}
    return found


def said(schedule: Schedule) -> dict[str, object]:
    """Returns a schedule's keys with its groups as they are listed, without what is part of another statement."""
    table = schedule.dialect.table
    aside = (*table.fused, *table.moved)
    placed = tuple((tuple(n for n in names if n not in aside), stage) for names, stage in schedule.emission)
    return schedule.model_dump() | as_keys(placed, schedule.producers)


def test_every_schedule_that_ships_is_a_point_of_the_space_of_its_lowering() -> None:
    for schedule in shipped().values():
        parameters = parameters_of(schedule)
        assert said(parameters.schedule(parameters.point(schedule), ordered=False)) == said(schedule), schedule.label


def test_every_key_varies_but_the_lowering() -> None:
    every, varied, rng = set(), set(), random.Random(1)
    for name in ("best", "best_causal", "seed", "seed_stages4", "mma_sync", "experiments/exp2_polynomial"):
        schedule = resolve(name).schedule
        before = leaves(schedule)
        every |= {key for key in before if key.partition(".")[0] not in OPTIONS or schedule.dialect.takes(key)}
        for parameter in parameters_of(schedule).values:
            try:
                other = changed(schedule, rng, parameter.__eq__)
            except ValueError:
                continue
            after = leaves(other)
            assert other.lowering == schedule.lowering
            varied |= {key for key in before if after.get(key, "gone") != before[key]}
    # A polynomial has another one in its place.
    assert every - varied <= {"lowering", "loop", *(f"softmax.exp2_polynomial.{name}" for name in ("first", "degree"))}


def test_a_walk_is_drawn_by_its_seed_and_goes_where_dependences_break_too() -> None:
    ends = [walk(BEST, random.Random(seed), 2) for seed in range(60)]
    assert ends == [walk(BEST, random.Random(seed), 2) for seed in range(60)] and len({*ends}) > 40
    legal = 0
    for end in ends:
        with suppress(ScheduleRefused):
            refuse_unless_safe(Planned(end), 128)
            legal += 1
    assert 5 < legal < 50
    assert all(Schedule.from_label(end.label) == end for end in ends)


def one_step(schedule: Schedule, parameter: str) -> set[Schedule]:
    """Returns all other schedules that one parameter's values give."""
    parameters, found = parameters_of(schedule), set()
    point = parameters.point(schedule)
    for value in parameters.values[parameter]:
        with suppress(ValueError):
            found.add(parameters.schedule(point | {parameter: value}, ordered=False))
    return found - {parameters.schedule(point, ordered=False)}


def test_groups_begin_where_stages_change_or_where_a_statement_says_so() -> None:
    seed = shipped()["seed"]
    emission = [("+".join(names), stage) for names, stage in seed.emission]
    assert [name for name, _ in emission][:3] == ["mask+mma0", "rescale", "mma1"]
    [joined] = one_step(seed, "begins.mma1")
    assert ("rescale+mma1", 1) in [("+".join(names), stage) for names, stage in joined.emission]
    assert {s.depth for s in one_step(seed, "stage.mma0")} >= {2, 3}
    assert any(names[0] == "mma1" for s in one_step(seed, "rank.mma1") for names, _ in s.emission[:1])
    assert {s.producers for s in one_step(seed, "ahead.load_k")} == {("load_v",)}


def test_chunks_are_cut_and_merged_where_they_stand_and_what_names_them_follows() -> None:
    softmax = BEST.emission[2][0]
    assert BEST.split.exp == (48, 128) and BEST.wait_before.mma1 == "exp.1" and softmax[5:7] == ("exp.0", "exp.1")
    whole = next(s for s in one_step(BEST, "chunks.exp") if s.split == Split())
    assert whole.wait_before.mma1 == "exp" and whole.emission[2][0] == (*softmax[:5], "exp", *softmax[7:])
    finer = next(s for s in one_step(BEST, "chunks.exp") if len(s.split.exp or ()) == 3)
    assert finer.split.exp == (48, 16, 112) and finer.emission[2][0][5:8] == ("exp.0", "exp.1", "exp.2")
    assert {s.split.exp for s in one_step(BEST, "width.exp.0")} == {(n, 176 - n) for n in range(16, 176, 16)} - {
        (48, 128)
    }


def test_keys_that_go_together_change_together() -> None:
    assert {(s.block_N, s.split.exp) for s in one_step(BEST, "block_N")} >= {(128, (48, 80)), (192, (48, 144))}
    assert {(s.block_M, s.threads) for s in one_step(shipped()["seed"], "block_M")} == {
        (64, 128),
        (192, 384),
        (256, 512),
    }


def test_only_what_the_lowering_takes_varies() -> None:
    kinds = {name.partition(".")[0] for name in parameters_of(BEST).values}
    assert kinds >= {"kernel", "softmax", "wait_before", "release_before", "chunks"}
    assert not {"kernel.cluster", "chunks.exp", "wait_before.mma1"} & {*parameters_of(shipped()["seed"]).values}


def test_a_place_is_any_statement_or_none() -> None:
    found = {s.release_before.load_v for s in one_step(BEST, "release_before.load_v")}
    assert {"exp.0", "exp.1", "cast", "mma0"} <= found and "mask" not in found
    placed = BEST.model_copy(update={"release_before": Releases(load_v="cast")})
    assert said(BEST) in [said(s) for s in one_step(placed, "release_before.load_v")]


def test_where_nothing_can_change_that_is_said() -> None:
    with pytest.raises(ValueError, match="has no neighbour by the parameters that are wanted"):
        changed(BEST, random.Random(0), lambda name: name == "lowering")
