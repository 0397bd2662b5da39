"""Only some things that a kernel's loops count may decide something: anything else is refused."""

from __future__ import annotations

import pytest
from small_kernels import kernel, line_of

from tl_attention.proof.code.iterations import Iterations
from tl_attention.proof.code.verdict import Unsafe

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
