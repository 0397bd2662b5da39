"""Only some things that loops count may decide something; lines that did not run are refused unless they never can."""

from __future__ import annotations

import pytest
from small_kernels import kernel, line_of, ran

from tl_attention.codeproof.run.coverage import Coverage
from tl_attention.codeproof.run.iterations import Iterations
from tl_attention.codeproof.run.run import Extent
from tl_attention.codeproof.verdict import Unsafe

TILES = """
  int tile = 0;
  int base = 0;
  int turn = 0;
  int blocks = 0;
  int row = 0;
  while (1) {
    if (!((tile < n))) { break; }
    blocks = ((m + 127) >> 7);
    row = (tile * 128);
    int base_1 = base;
    int blocks_1 = blocks;
    for (int t = 0; t < (blocks_1 - 1); ++t) {
      tl::__sync_thread_partial(SLOT, 128);
    }
    base = (base + blocks);
    turn = (turn + 1);
    tile = (tile + 132);
  }
"""


def tiles(slot: str, **changes: str) -> str:
    body = TILES.replace("SLOT", slot)
    for before, after in changes.items():
        assert body.count(f"    {before} = ") == 1
        line = next(line for line in body.splitlines() if line.startswith(f"    {before} = "))
        body = body.replace(line, f"    {before} = {after};")
    return body


def of(body: str) -> Iterations:
    return Iterations.of(kernel(body).body)


def test_what_is_carried_from_tile_to_tile_is_found():
    body = tiles("((base_1 + t) & 1)")
    found = of(body)
    line = line_of(body, "while")
    # `tile` is what the loop ends by, `row` and `blocks` are assigned anew, `turn` is only counted.
    assert found.carried == {line: {"base", "turn"}}


def test_a_slot_is_periodic_in_all_that_is_counted():
    body = tiles("((base_1 + t) & 1)")
    found = of(body)
    assert found.period == 2
    assert found.cores == {line_of(body, "sync_thread"): {(("base", 1), ("t", 1)): 2}}


@pytest.mark.parametrize(
    "slot, period", [("(t % 3)", 3), ("(((base + t) >> 1) & 1)", 4), ("(((t % 3) * 2) + (turn & 1))", None)]
)
def test_the_period_is_that_of_all_lines(slot, period):
    body = tiles(slot).replace("  while", "  tl::__sync_thread_partial(1, 128);\n  while")
    if period is None:
        # Modulo two of different counters: no one core says in which state a line runs.
        with pytest.raises(Unsafe, match="neither affinely nor with a period"):
            of(body)
    else:
        assert of(body).period == period
        two = body.replace("    turn = ", "    tl::__sync_thread_partial((turn & 1), 128);\n    turn = ")
        assert of(two).period == {3: 6, 4: 4}[period]


@pytest.mark.parametrize(
    "slot, words",
    [
        ("(row & 1)", None),
        ("(((base_1 + t) & 1) + (row >> 20))", "row decides what happens in an iteration"),
        ("(((base_1 + t) + row) & 1)", "row decides what happens in an iteration"),
        ("((base_1 + t) & (n & 1))", "neither affinely nor with a period"),
        ("((t & 1) + t)", "neither affinely nor with a period"),
        ("(t / 4)", "neither affinely nor with a period"),
        ("(((t < 40) ? 0 : 1) + (t & 1))", "neither affinely nor with a period"),
        ("((base_1 * t) & 1)", "neither affinely nor with a period"),
        ("(t << 1)", "cannot be read"),
    ],
)
def test_what_else_decides_in_an_iteration_is_refused(slot, words):
    """A tile's own place may stand only where nothing is counted."""
    if words is None:
        assert of(tiles(slot)).period == 1
        return
    with pytest.raises(Unsafe, match=words):
        of(tiles(slot))


def test_what_a_tile_s_place_was_added_to_counts_an_address_and_no_slot():
    """`row + t` may be read of a tensor, and a variable of it decides no more than the place itself."""
    place = "    for (int t = 0; t < (blocks_1 - 1); ++t) {\n      int first = (row + t);\n      int second = (first + 1);\n"
    loop = "    for (int t = 0; t < (blocks_1 - 1); ++t) {\n"
    assert of(tiles("first").replace(loop, place)).period == 1
    with pytest.raises(Unsafe, match="second decides what happens in an iteration"):
        of(tiles("(second & 1)").replace(loop, place))
    with pytest.raises(Unsafe, match="base is carried from tile to tile, and grows by what is no length"):
        of(tiles("1", base="(base + row)"))


def test_lengths_and_threads_may_be_added_to_what_is_counted():
    for plain, name in (
        ("blocks_1", "blocks_1"),
        ("blocks", "blocks"),
        ("((int)threadIdx.y)", "threadIdx_y"),
        ("warp", "warp"),
    ):
        body = tiles(f"(((base_1 + t) + {plain}) & 1)")
        found = of(body.replace("  while", "  int warp = (((int)threadIdx.x) >> 5);\n  while"))
        assert name in found.plain
        assert found.period == 2


def test_a_bound_by_min_with_what_is_counted_is_refused():
    """Such a loop is as long as the others up to some iteration, and a few iterations do not show that."""
    for trips in ("min((blocks_1 - 1), base)", "max((blocks_1 - base), 0)", "base_1", "(blocks_1 - (turn & 1))"):
        with pytest.raises(Unsafe, match="neither affinely nor with a period"):
            of(tiles("1").replace("(blocks_1 - 1); ++t", f"{trips}; ++t"))


@pytest.mark.parametrize(
    "name, value",
    [("base", "(base * 2)"), ("base", "(base & 3)"), ("turn", "(turn + base)"), ("base", "min((base + blocks), 40)")],
)
def test_what_is_carried_grows_by_what_is_not_counted(name, value):
    with pytest.raises(Unsafe, match=f"{name} is carried from tile to tile, and does not grow"):
        of(tiles("1", **{name: value}))


def test_what_two_branches_leave_differently_is_refused():
    branches = (
        "  int slot = 0;\n  for (int t = 0; t < m; ++t) {\n    if (BRANCH) {\n      slot = A;\n"
        "    } else {\n      slot = B;\n    }\n  }\n"
    )

    def with_(a: str, b: str, condition: str = "((int)threadIdx.x) < 32") -> Iterations:
        return of(branches.replace("BRANCH", condition).replace("= A;", f"= {a};").replace("= B;", f"= {b};"))

    assert with_("(t & 1)", "(t & 1)").period == 1
    with pytest.raises(Unsafe, match="slot depends on an iteration in one branch in another way than in the other"):
        with_("(t & 1)", "0")
    with pytest.raises(Unsafe, match="slot depends on an iteration in one branch"):
        with_("t", "(t * 2)")


def test_a_loop_that_is_written_out_counts_nothing():
    """All iterations of such a loop run: an expression of its counter need not have one of a few periods."""
    body = (
        "  #pragma unroll\n  for (int i = 0; i < 4; ++i) {\n    tl::__sync_thread_partial((1 + (i / 3)), 128);\n  }\n"
    )
    assert of(body).period == 1
    with pytest.raises(Unsafe, match="neither affinely nor with a period"):
        of(body.replace("  #pragma unroll\n", ""))


def test_a_comparison_is_of_counters_that_all_grow_or_all_fall():
    body = "  for (int t = 0; t < m; ++t) {\n    tl::__sync_thread_partial(((CONDITION) ? 1 : 0), 128);\n  }\n"
    line = 2
    for condition, sign in (("0 < t", -1), ("t < n", 1), ("(m - t) < n", -1)):
        found = of(body.replace("CONDITION", condition))
        assert [(c.sign, c.counted) for c in found.comparisons[line]] == [(sign, ("t",))]
    for condition in ("(t * n) < 3", "(t - u) < 3"):
        with pytest.raises(Unsafe, match="compares what is counted in a way that is not known"):
            two = (
                body.replace("CONDITION", condition)
                .replace("    tl", "    for (int u = 0; u < n; ++u) {\n    tl")
                .replace(");\n", ");\n    }\n")
            )
            of(two)


# --- lines that did not run ------------------------------------------------------------------------------------------


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


def test_a_loop_that_no_size_enters_is_unreached_unless_a_sample_enters_it():
    body = "  for (int t = 0; t < (seq_kv - 100); ++t) {\n    __syncthreads();\n  }\n"
    assert unreached(body, 50, 100) == (line_of(body, "sync"),)
    assert unreached(body, 50, 101) == ()
    coverage, code = covered(body, 50, 100), kernel(body, SIZES)
    coverage.note_trips(ran(body, Extent(1, ends=True), **dict(zip(SIZES, (1, 1, 1, 101)))))
    with pytest.raises(Unsafe, match="line 3 does not run"):
        coverage.unreached(code, Iterations.of(code.body), False)


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


SHORT = "  for (int t = 0; t < min(seq_kv, 2); ++t) {\n    tl::__sync_thread_partial((t % 3), 64);\n  }\n"


def test_a_loop_shorter_than_the_period_has_no_other_states():
    assert unreached(SHORT, 1, 2, 9) == ()
    longer = SHORT.replace("2", "seq_q")
    assert unreached(longer, 2, 9) == ()
    # Samples, of which the ends of loops alone are run, show that the loop has more iterations than were looked at.
    coverage, code = covered(longer, 9), kernel(longer, SIZES)
    coverage.note_trips(ran(longer, Extent(1, ends=True), **dict(zip(SIZES, (1, 1, 3, 9)))))
    with pytest.raises(Unsafe, match=r"line 3 did not run in every one of the 3 states of t"):
        coverage.unreached(code, Iterations.of(code.body), False)


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
