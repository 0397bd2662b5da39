"""Small kernels are read and run by all threads: tests check who does what and when, and the kinds of lines."""

from __future__ import annotations

import pytest
from small_kernels import barriers, kernel, line_of, ran, synced

from tl_attention.codeproof.verdict import Unsafe

CONDITION = """
  int slot = 5;
  if (((int)threadIdx.x) < n) {
    slot = (((int)threadIdx.x) >> 4);
    tl::__sync_thread_partial(1, 64);
  } else {
    tl::__sync_thread_partial(2, 64);
  }
  tl::__sync_thread_partial((slot + 8), 64);
"""


def test_a_condition_parts_the_threads():
    (first, low), (second, high), *_ = synced(ran(CONDITION, n=20))
    assert (first, low, second, high) == (1, list(range(20)), 2, list(range(20, 64)))


def test_behind_it_each_thread_has_its_own_value():
    run = ran(CONDITION, n=20)
    assert [barriers(run, thread)[-1] for thread in (0, 15, 16, 19, 20, 63)] == [8, 8, 9, 9, 13, 13]


def test_a_condition_that_all_agree_on_has_one_outcome():
    line = line_of(CONDITION, "if (")
    for n, outcome, barrier in ((64, True, 1), (0, False, 2)):
        run = ran(CONDITION, n=n)
        assert run.outcomes[line] == {outcome}
        assert synced(run)[0] == (barrier, list(range(64)))
    assert line_of(CONDITION, "partial(2") not in ran(CONDITION, n=64).ran


def test_loops_of_different_lengths_part_the_threads():
    body = "  for (int t = 0; t < (((int)threadIdx.x) >> 5); ++t) {\n    tl::__sync_thread_partial(1, 64);\n  }\n"
    run = ran(body, warps=3)
    assert [len(barriers(run, thread)) for thread in (0, 31, 32, 64, 95)] == [0, 0, 1, 2, 2]


LOOP = """
  int tile = ((int)blockIdx.x);
  int turn = 0;
  while (1) {
    if (!((tile < n))) { break; }
    tl::__sync_thread_partial((turn & 7), 64);
    turn = (turn + 1);
    tile = (tile + 2);
  }
  tl::__sync_thread_partial((8 + turn), 64);
"""


def test_blocks_leave_a_loop_each_at_its_own_time():
    run = ran(LOOP, blocks=2, n=5)
    assert (barriers(run, 0), barriers(run, 64)) == ([0, 1, 2, 11], [0, 1, 10])


def test_so_many_tiles_run():
    assert barriers(ran(LOOP, 2, n=100), 0) == [0, 1, 10]


def elected(lanes: int, **more) -> list[int]:
    body = f"  if (tl::tl_shuffle_elect<{lanes}>()) {{\n    tl::__sync_thread_partial(1, 64);\n  }}\n"
    return [thread for _, threads in synced(ran(body, **more)) for thread in threads]


def test_one_lane_is_elected_of_each_warp_of_so_many_threads_or_of_each_y():
    assert elected(32, warps=4) == [0, 32, 64, 96]
    assert elected(64, warps=4) == [0, 64]
    assert elected(128, warps=8) == [0, 128]
    assert elected(0, warps=4, ys=2) == [0, 128]
    assert elected(32, warps=2, blocks=2) == [0, 32, 64, 96]


# Of the last, as many lanes as a warp has, but of two warps.
@pytest.mark.parametrize(
    "condition",
    [
        "((int)threadIdx.x) < 16",
        "(((int)threadIdx.x) & 1) == 0",
        "((int)threadIdx.x) != 5",
        "(16 <= ((int)threadIdx.x)) && (((int)threadIdx.x) < 48)",
    ],
)
def test_a_part_of_a_warp_elects_nobody(condition):
    body = f"  if ({condition}) {{\n    if (tl::tl_shuffle_elect<32>()) {{\n      __syncthreads();\n    }}\n  }}\n"
    with pytest.raises(Unsafe, match="line 3 elects a lane of a part of a warp"):
        ran(body)
    assert ran(body.replace(condition, "((int)threadIdx.x) < 32")).seen


def test_a_shuffle_gives_what_one_lane_has():
    body = "  int wg = __shfl_sync(4294967295, (((int)threadIdx.x) >> 4), 0);\n  tl::__sync_thread_partial(wg, 64);\n"
    run = ran(body)
    assert [barriers(run, thread) for thread in (0, 16, 31, 32, 63)] == [[0], [0], [0], [2], [2]]
    for lanes, lane in ((65535, 0), (4294967295, 32)):
        with pytest.raises(Unsafe, match="expected all lanes of whole warps"):
            ran(body.replace("4294967295", str(lanes)).replace(", 0);", f", {lane});"))


def test_a_variable_that_has_no_value_cannot_be_read():
    body = "  int slot;\n  if (((int)threadIdx.x) < 32) {\n    slot = 1;\n  }\n  tl::__sync_thread_partial(slot, 64);\n"
    with pytest.raises(Unsafe, match="line 6 cannot be read"):
        ran(body)
    assert ran(body.replace("int slot;", "int slot = 0;")).seen


# --- kinds of lines --------------------------------------------------------------------------------------------------

HIDDEN = """
  float acc_s[8];
  float condval;
  for (int i = 0; i < 8; ++i) {
    if (i < n) {
      condval = -CUDART_INF_F;
    } else {
      condval = acc_s[i];
    }
    acc_s[i] = condval;
  }
"""
SUMMED = """
  float scores_max[2];
  for (int i = 0; i < 2; ++i) {
    scores_max[i] = (scores_max[i] + scores_max[i]);
    scores_max[i] = tl::AllReduce<tl::MaxOp, 4, 1, 0, tl::NamedBarrier<128>>::run(scores_max[i]);
  }
"""


def kinds(body: str) -> list[str]:
    found = kernel(body).kinds
    return [found[number] for number in range(1, len(body.strip("\n").splitlines()) + 1)]


def test_an_else_and_the_braces_of_arithmetic_are_arithmetic():
    assert kinds(HIDDEN)[2:] == ["numbers: mask"] * 8


def test_how_often_rows_are_summed_is_left_to_the_numbers():
    loop, _, exchange, brace = kinds(SUMMED)[1:]
    assert loop == brace == "control, numbers: arithmetic"
    assert exchange == "exchange, numbers: arithmetic"


def test_how_often_threads_meet_is_read():
    loop = SUMMED.replace("  }\n", "    __syncthreads();\n  }\n")
    assert kinds(loop)[1] == kinds(loop)[-1] == "control"
