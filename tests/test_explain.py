"""What `explain` says of a schedule's options and chunks."""

from __future__ import annotations

import pytest
from mutations import shipped
from specialized import CHUNKED, RANDOM, REST, TWO, fa3

from tl_attention.errors import ScheduleRefused
from tl_attention.explain import explain
from tl_attention.option_label import changed_options


def options(text: str) -> list[str]:
    return [line.removeprefix("option: ") for line in text.splitlines() if line.startswith("option: ")]


def test_the_header_shows_the_options_that_differ_from_the_default() -> None:
    text = explain(fa3(
        *CHUNKED, split=TWO, wait_before={"mma1": "exp.1"}, release_before={"load_k": "exp.1"},
        kernel={
            "cluster": 1, "tile_scheduler": "dynamic", "tile_order": "tapered", "registers": (240, 24), "k_stages": 3,
            "ping_pong": True,
        },
        softmax={
            "rescale_threshold": 8, "exp2_polynomial": {"every": 4, "first": 2}, "row_sum": "row", "row_max": "thread",
        },
    ))
    assert options(text) == [
        "persistent, the next row tile comes from a counter in global memory",
        "row tiles of the last heads from the longest to the shortest, to end with these",
        "no cluster, every thread block loads its own K and V",
        "ping-pong, the two warpgroups take turns to issue their products",
        "setmaxnreg 240 for threads that compute, 24 for the producer's",
        "row_max goes on from the row's maximum so far in every thread",
        "row_sum reduces over the row in every block, not once after the loop",
        "a row keeps its maximum, and its acc_o, until it would grow by more than 2^8",
        "1 in 4 exponentials of a thread, from its exponential 2 on, by a polynomial of degree 3 on the FMA units, the "
        "others by MUFU.EX2",
        "exp in chunks of 48 + 128 columns",
        "mma1 is waited for before exp.1, no later",
        "K_shared is released before exp.1, no earlier",
    ]
    assert "buffers: K_shared 3, V_shared 2" in text


def test_every_option_but_the_depths_of_the_rings_has_words_of_its_own() -> None:
    for schedule in RANDOM:
        try:
            words = options(explain(schedule))
        except ScheduleRefused:
            continue
        paths = [path for path, _ in changed_options(schedule) if path not in ("kernel.k_stages", "kernel.v_stages")]
        assert len(words) == len(paths)
        assert not [line for line in words if line.startswith(("kernel.", "softmax."))], "the words that it lacks"


@pytest.mark.parametrize("name", shipped())
def test_defaults_are_not_shown(name) -> None:
    assert bool(options(explain(shipped()[name]))) == bool(list(changed_options(shipped()[name])))


def test_chunks_waits_and_releases_are_shown_where_they_stand() -> None:
    text = explain(fa3(*CHUNKED, split=TWO, wait_before={"mma1": "exp.1"}, release_before={"load_k": "exp.1"}))
    assert """
  run      mask(t), row_max(t), scale(t), exp.0(t)
  wait     mma1(t-1), 0 later in flight
  release  load_v(t-1)
  release  load_k(t)
  run      exp.1(t), row_sum(t), cast(t), rescale(t)
""" in text


def test_the_model_is_the_lowerings_own_unless_another_is_asked_for() -> None:
    assert "asynchronous model" in explain(fa3(*REST)) and "synchronous model" in explain(shipped()["seed"])
    assert "\nsynchronous model" in explain(fa3(*REST), "synchronous")
    assert "asynchronous model" in explain(shipped()["seed"], "asynchronous")
