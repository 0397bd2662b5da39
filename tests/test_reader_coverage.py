"""Lines that did not run are refused, unless they never can run."""

from __future__ import annotations

import pytest
from small_kernels import kernel, line_of, ran

from tl_attention.proof.code.coverage import Coverage
from tl_attention.proof.code.iterations import Iterations
from tl_attention.proof.code.run import Extent
from tl_attention.proof.code.verdict import Unsafe

SIZES = ("batch", "heads", "seq_q", "seq_kv")


def covered(body: str, *keys: int, lengths: Extent = Extent(1), starts: tuple[int, ...] = (0,)) -> Coverage:
    """Returns what runs showed, one for each number of keys and start, with one of every other size."""
    coverage = Coverage()
    for seq_kv in keys:
        for start in starts:
            coverage.note(ran(body, lengths, start=start, **dict(zip(SIZES, (1, 1, 1, seq_kv)))))
    return coverage


def unreached(body: str, *keys: int, fixed: bool = False, **more) -> tuple[int, ...]:
    small = kernel(body, SIZES)
    return covered(body, *keys, **more).unreached(small, Iterations.of(small.body), fixed)


def under(condition: str) -> str:
    return f"  if ({condition}) {{\n    __syncthreads();\n  }}\n"


def test_a_line_that_no_size_reaches_is_refused():
    assert unreached(under("seq_kv < 100"), 50, 150) == ()
    with pytest.raises(Unsafe, match="line 3 does not run at any size that is tried"):
        unreached(under("seq_kv < 100"), 150, 250)


def test_a_call_that_only_a_run_for_places_reached_is_refused():
    body = under("seq_kv < 100")
    coverage, small = covered(body, 150), kernel(body, SIZES)
    coverage.note_places(ran(body, Extent(1), **dict(zip(SIZES, (1, 1, 1, 50)))), {line_of(body, "sync")})
    with pytest.raises(Unsafe, match="line 3 does not run at any size that is tried"):
        coverage.unreached(small, Iterations.of(small.body), False)


def test_of_fixed_sizes_it_is_unreached():
    body = under("seq_kv < 100")
    assert unreached(body, 150, fixed=True) == (line_of(body, "sync"),)


def test_a_line_under_a_condition_of_the_thread_that_is_never_true_is_unreached():
    for condition in ("256 <= ((int)threadIdx.x)", "((int)threadIdx.y) == 3"):
        body = under(condition)
        assert unreached(body, 150) == (line_of(body, "sync"),)


def test_a_condition_that_sizes_are_in_too_excuses_nothing():
    with pytest.raises(Unsafe, match="line 3 does not run"):
        unreached(under("(256 <= ((int)threadIdx.x)) && (seq_kv < 100)"), 150)
    with pytest.raises(Unsafe, match="line 4 does not run"):
        # The outer one is true for some size, so the inner line is not excused by it.
        unreached(f"  if (seq_kv < 100) {{\n{under('seq_q < 0')}  }}\n", 50, 150)


def test_all_below_such_a_condition_is_unreached_and_the_else_is_not():
    body = (
        "  if (((int)threadIdx.y) == 3) {\n    for (int t = 0; t < seq_kv; ++t) {\n      __syncthreads();\n    }\n"
        "  } else {\n    tl::__sync_thread_partial(1, 64);\n  }\n"
    )
    assert unreached(body, 2) == (line_of(body, "for ("), line_of(body, "__syncthreads"))


def test_what_is_below_a_line_that_never_runs_needs_no_size_of_its_own():
    body = f"  if (((int)threadIdx.y) == 3) {{\n{under('seq_kv < 100')}  }}\n"
    assert unreached(body, 150) == (line_of(body, "seq_kv"), line_of(body, "sync"))


def test_a_loop_that_no_size_enters_is_refused():
    body = "  for (int t = 0; t < (seq_kv - 100); ++t) {\n    __syncthreads();\n  }\n"
    with pytest.raises(Unsafe, match="line 3 does not run"):
        unreached(body, 50, 100)
    assert unreached(body, 50, 101) == ()


SLOTS = """
  int tile = 0;
  int base = 0;
  while (1) {
    if (!((tile < heads))) { break; }
    for (int t = 0; t < seq_kv; ++t) {
      tl::__sync_thread_partial(((base + t) % 3), 64);
    }
    base = (base + seq_kv);
    tile = (tile + 1);
  }
"""


def test_a_line_must_have_run_in_every_state_of_its_period():
    with pytest.raises(Unsafe, match=r"line \d+ did not run in every one of the 3 states of base \+ t"):
        unreached(SLOTS, 2)
    assert unreached(SLOTS, 3) == ()
    assert unreached(SLOTS, 1, starts=(0, 1, 2)) == ()
    with pytest.raises(Unsafe, match="did not run in every one of the 3 states"):
        unreached(SLOTS, 1, starts=(0, 1, 3))


@pytest.mark.parametrize("cycles,states", [((), 3), ((6,), 6), ((3, 4), 3), ((4, 10), 60)])
def test_a_line_has_the_states_of_the_ring_that_its_period_fits(cycles, states):
    """A slot's period is half of its ring's; a period that fits no ring must have run in the states of all rings together."""
    iterations = Iterations.of(kernel(SLOTS, SIZES).body, cycles)
    ((line, cores),) = iterations.cores.items()
    assert [iterations.states(line, core) for core in cores] == [states]


def test_a_comparison_with_what_no_run_gets_to_is_refused():
    """The comparison holds in all iterations that were run, and may not hold in another."""
    body = "  for (int t = 0; t < seq_kv; ++t) {\n    tl::__sync_thread_partial(((t < LIMIT) ? 1 : 0), 64);\n  }\n"
    with pytest.raises(Unsafe, match="line 3 compares what is counted with what no run gets to"):
        unreached(body.replace("LIMIT", "40"), 5, 9)
    assert unreached(body.replace("LIMIT", "4"), 5, 9) == ()
    assert unreached(body.replace("LIMIT", "40"), 5, fixed=True) == ()
