"""In the space of schedules, the keys say what may vary, and one step changes what it says."""

from __future__ import annotations

import random
from itertools import islice
from typing import Annotated, Literal

import pytest
from mutations import shipped
from pydantic import BaseModel, Field

from tl_attention.lab.search.choices import choices
from tl_attention.lab.search.neighbours import moves, neighbours, random_neighbour
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.options import Exp2Polynomial, KernelOptions, Releases, SoftmaxOptions, Split, Waits
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


def test_every_key_varies_but_the_lowering() -> None:
    every, changed = set(), set()
    for name in ("best", "best_causal", "seed", "seed_stages4", "mma_sync", "experiments/exp2_polynomial"):
        schedule = resolve(name).schedule
        before = leaves(schedule)
        every |= set(before)
        for neighbour in neighbours(schedule):
            assert neighbour.lowering == schedule.lowering
            after = leaves(neighbour)
            changed |= {key for key in before if after.get(key, "gone") != before[key]}
    assert every - changed == {"lowering"}


def test_neighbours_are_others_each_once_in_one_order() -> None:
    found = list(neighbours(BEST))
    assert BEST not in found and len(set(found)) == len(found) > 300
    assert list(islice(neighbours(BEST), 20)) == found[:20]
    assert all(Schedule.from_label(schedule.label) == schedule for schedule in found[::20])


def test_how_the_groups_are_listed_is_no_other_schedule() -> None:
    fields = BEST.model_dump()
    turned = Schedule(**fields | {key: fields[key][::-1] for key in ("order", "stage")} | {"group": BEST.group[::-1]})
    # Turned, V would be loaded first: that is another one.
    loads = [turned.group.index((load,)) for load in ("load_k", "load_v")]
    group = list(turned.group)
    group[loads[0]], group[loads[1]] = group[loads[1]], group[loads[0]]
    turned = Schedule(**turned.model_dump() | {"group": group})
    assert turned != BEST and list(neighbours(turned)) == list(neighbours(BEST))


def one_step(schedule: Schedule, move: str) -> list[Schedule]:
    return list(neighbours(schedule, lambda name: name == move))


def test_moves_of_groups() -> None:
    seed = shipped()["seed"]
    emission = [("+".join(names), stage) for names, stage in seed.emission]
    assert [name for name, _ in emission][:3] == ["mask+mma0", "rescale", "mma1"]

    def emissions(move: str) -> list[list[tuple[str, int]]]:
        return [[("+".join(names), stage) for names, stage in s.emission] for s in one_step(seed, move)]

    a, b, *others = emission
    assert [b, a, *others] in emissions("swap") and len(emissions("swap")) == 6
    assert [b, *others, a] in emissions("move") and [*emission[:1], *others, b] in emissions("move")
    assert [(a[0], 1), b, *others] in emissions("restage")
    assert [("mask", 0), ("mma0", 0), b, *others] in emissions("split")
    assert [("mask", 0), b, *others, ("mma0", 0)] in emissions("split")
    assert emissions("join") == [[a, ("rescale+mma1", 1), others[-1]]]
    assert [("mma0+mask", 0), b, *others] in emissions("shuffle")
    assert [("load_k", 0), *emission] in emissions("toggle_load") and seed.depth == 2


def test_a_producer_comes_back_at_any_turn() -> None:
    without = next(s for s in one_step(shipped()["seed"], "toggle_load") if s.producers == ("load_v",))
    back = {s.producers for s in one_step(without, "toggle_load")}
    assert {("load_k", "load_v"), ("load_v", "load_k"), ()} <= back


def test_chunks_are_cut_and_merged_where_they_stand_and_what_names_them_follows() -> None:
    softmax = BEST.emission[2][0]
    assert BEST.split.exp == (48, 128) and BEST.wait_before.mma1 == "exp.1" and softmax[5:7] == ("exp.0", "exp.1")
    [whole] = one_step(BEST, "merge")
    assert whole.split == Split() and whole.wait_before.mma1 == "exp"
    assert whole.emission[2][0] == (*softmax[:5], "exp", *softmax[7:])
    assert BEST.model_copy(update={"wait_before": Waits(mma1="exp.0")}) in one_step(whole, "cut")
    finer = {s.split.exp: s for s in one_step(BEST, "cut")}
    assert finer[16, 32, 128].wait_before.mma1 == "exp.2" and finer[48, 64, 64].wait_before.mma1 == "exp.1"
    assert finer[16, 32, 128].emission[2][0][5:8] == ("exp.0", "exp.1", "exp.2")
    assert {s.split.exp for s in one_step(BEST, "shift")} == {(32, 144), (64, 112)}
    # The columns of rescale are head_dim's, which is not the schedule's.
    assert {sum(s.split.rescale) for s in one_step(BEST, "cut") if s.split.rescale} == {64, 128}


def test_keys_that_go_together_change_together() -> None:
    assert {(s.block_M, s.threads) for s in one_step(shipped()["seed"], "block_M")} == {
        (64, 128),
        (192, 384),
        (256, 512),
    }
    assert {(s.block_N, s.split.exp) for s in one_step(BEST, "block_N")} >= {(128, (48, 80)), (192, (48, 144))}


def test_only_what_the_lowering_takes_varies() -> None:
    assert {name.partition(".")[0] for name in moves(BEST)} >= {
        "kernel",
        "softmax",
        "wait_before",
        "release_before",
        "cut",
    }
    assert not {"kernel.cluster", "cut", "wait_before.mma1"} & set(moves(shipped()["seed"]))
    assert set(moves(resolve("inferred").schedule)) == {"block_M", "block_N", "num_stages", "kv_order"}


def test_a_place_is_any_statement_or_none() -> None:
    found = {s.release_before.load_v for s in one_step(BEST, "release_before.load_v")}
    assert {"exp.0", "exp.1", "cast", "mma0"} <= found and "mask" not in found
    placed = BEST.model_copy(update={"release_before": Releases(load_v="cast")})
    assert BEST in one_step(placed, "release_before.load_v")


def test_where_nothing_can_change_that_is_said() -> None:
    with pytest.raises(ValueError, match="has no neighbour by the moves that are wanted"):
        random_neighbour(BEST, random.Random(0), lambda name: name == "kv_order")
