"""Classes of threads part and come together again; tests check how, and what the classes know."""

from __future__ import annotations

import numpy as np

from tl_attention.proof.code.threads import NUMBERS, Class, Threads, settled


def everyone(count: int = 8, **names) -> Class:
    return Class(np.arange(count), names)


def test_threads_are_numbered_block_by_block_and_y_before_x():
    threads = Threads(np.array([4, 7]), 2, (0, 3))
    assert len(threads) == 2 * 2 * 64
    assert threads.block.tolist() == [4] * 128 + [7] * 128 and threads.place.tolist() == [0] * 128 + [1] * 128
    assert threads.y.tolist() == ([0] * 64 + [1] * 64) * 2
    assert threads.x.tolist() == [*range(32), *range(96, 128)] * 4


def test_one_lane_may_stand_for_its_warp():
    threads = Threads(np.array([0]), 3, (0, 1), lanes=1)
    assert (threads.x.tolist(), threads.y.tolist()) == ([0, 32] * 3, [0, 0, 1, 1, 2, 2])


def test_equal_values_are_one_number():
    assert settled(np.array([3, 3, 3])) == 3 and isinstance(settled(np.array([3, 3])), int)
    assert settled(np.array([3, 4])).tolist() == [3, 4]
    assert settled(5) == 5


def test_a_class_whose_threads_agree_is_not_parted():
    threads = everyone(x=1)
    assert list(threads.split(3)) == [(3, threads)]


def test_parts_have_their_own_values():
    lanes = np.arange(8)
    threads = everyone(lane=lanes, half=lanes // 4, size=100)
    (low, first), (high, second) = threads.split(lanes // 4)
    assert (low, first.threads.tolist(), high, second.threads.tolist()) == (0, [0, 1, 2, 3], 1, [4, 5, 6, 7])
    assert (first.names["half"], second.names["half"], first.names["size"]) == (0, 1, 100)
    assert second.names["lane"].tolist() == [4, 5, 6, 7]
    first.names["size"] = 7
    assert (threads.names["size"], second.names["size"]) == (100, 100)


def test_behind_a_condition_parts_are_one_class_again():
    threads = everyone(x=0, y=5)
    parts = [part for _, part in threads.split(np.arange(8) % 2)]
    for value, part in enumerate(parts):
        part.names |= {"x": 10 + value, "y": 6, "lost": 1}
    threads.rejoin(parts, ["x", "y"])
    assert threads.names["x"].tolist() == [10, 11] * 4
    # What both left the same is one number, and what was not assigned is as it was.
    assert threads.names["y"] == 6 and "lost" not in threads.names


def test_values_of_each_thread_find_their_places():
    threads = everyone(x=0)
    (_, even), (_, odd) = threads.split(np.arange(8) % 2)
    even.names["x"], odd.names["x"] = even.threads * 10, 1
    threads.rejoin([odd, even], ["x"])
    assert threads.names["x"].tolist() == [0, 1, 20, 1, 40, 1, 60, 1]


def test_threads_that_no_part_has_keep_what_they_had():
    threads = everyone(x=3)
    part = threads.part(np.arange(8) >= 6)
    part.names["x"] = 4
    threads.rejoin([part], ["x"])
    assert threads.names["x"].tolist() == [3] * 6 + [4] * 2
    every = threads.part(np.ones(8, dtype=bool))
    every.names["x"] = 9
    threads.rejoin([every], ["x"])
    assert threads.names["x"] == 9


def test_what_one_part_does_not_know_nobody_knows():
    threads = everyone(x=3)
    first, second = (part for _, part in threads.split(np.arange(8) // 4))
    first.names["x"] = 4
    del second.names["x"]
    threads.rejoin([first, second], ["x"])
    assert "x" not in threads.names


def test_whole_warps():
    assert everyone(64).whole_warps(32)
    assert Class(np.arange(32, 64), {}).whole_warps(32)
    assert not Class(np.arange(16, 48), {}).whole_warps(32)
    assert not Class(np.arange(31), {}).whole_warps(32)
    assert not Class(np.array([*range(31), 63]), {}).whole_warps(32)
    # Lanes of two warps that together are as many as one has.
    assert not Class(np.array([*range(16), *range(48, 64)]), {}).whole_warps(32)


def test_numbers_and_arrays_have_one_arithmetic():
    values = np.array([-7, -1, 0, 1, 7])
    for name in ("quotient", "remainder", "min", "max"):
        for other in (-3, 2):
            one_by_one = [NUMBERS[name](value, other) for value in values.tolist()]
            assert NUMBERS[name](values, other).tolist() == one_by_one, name
            assert NUMBERS[name](values, np.full(5, other)).tolist() == one_by_one, name
    assert NUMBERS["select"](values > 0, 1, values).tolist() == [-7, -1, 0, 1, 1]
    assert NUMBERS["negation"](values).tolist() == [False, False, True, False, False]
