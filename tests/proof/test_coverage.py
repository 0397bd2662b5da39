"""A line that did not run shows nothing: tests check which lines may be left out."""

import pytest
from small_kernels import kernel, line_of, ran

from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.verdict import Unsafe

SIZES = ("batch", "heads", "seq_q", "seq_kv")


def unreached(body: str, *keys: int, fixed: bool = False) -> tuple[int, ...]:
    """Returns the lines that can never run, as runs show, one for each number of keys and one of every other size."""
    coverage = Coverage()
    for seq_kv in keys:
        coverage.note(ran(body, 1, **dict(zip(SIZES, (1, 1, 1, seq_kv)))))
    return coverage.unreached(kernel(body, SIZES), fixed)


def under(condition: str) -> str:
    return f"  if ({condition}) {{\n    __syncthreads();\n  }}\n"


def test_a_line_that_no_size_reaches_is_refused():
    assert unreached(under("seq_kv < 100"), 50, 150) == ()
    with pytest.raises(Unsafe, match="line 3 does not run at any size that is tried"):
        unreached(under("seq_kv < 100"), 150, 250)


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


def test_a_loop_that_no_size_enters_is_unreached():
    body = "  for (int t = 0; t < (seq_kv - 100); ++t) {\n    __syncthreads();\n  }\n"
    assert unreached(body, 50, 100) == (line_of(body, "sync"),)
    assert unreached(body, 50, 101) == ()
