"""Tests check where windows cut, and what users may say. GPU: test_op_cases.py. Faults: proof/faults/windows.py."""

from dataclasses import replace

import pytest
import torch
from golden_kernels import KERNELS
from mutations import shipped
from once import lowered, proved, reading
from tiers import exhaustive, sampled

from tl_attention import InputError, attention
from tl_attention.lab.measure.candidate import verified_on
from tl_attention.lab.measure.records import Row, problem_of
from tl_attention.lab.oracle.interpret import verify
from tl_attention.problem.mask import CAUSAL, FULL, Mask, fitted, masked
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import visited_over_visible
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive


@pytest.mark.parametrize(
    "name", sampled(("ws_three_stages, asked", "q_registers, asked", "seed, asked"), ["seed, asked"])
)
def test_a_loop_over_blocks_that_are_seen_whole_may_run_in_every_kernel(name):
    """No line with a product is dead: some of the windows that a kernel may be called with are wider than a tile."""
    lines = lowered(KERNELS[name]).source.splitlines()
    assert not any("wgmma" in lines[line] for line in proved(KERNELS[name]).unreached)


@exhaustive
def test_which_scores_a_masked_block_hides_is_left_to_the_numbers():
    """The list has the condition at the left edge, and the key from which the condition counts."""
    kernel = KERNELS["one_tile, asked"]
    code = lowered(kernel)
    conditions = [line for line in code.source.splitlines() if "if (" in line and "||" in line and "first_row" in line]
    assert len(conditions) == 3
    source = code.source
    for line in conditions:
        source = source.replace(line, line.replace("||", "&&"))
    reading.prove(kernel.schedule, replace(code, source=source))


@pytest.mark.parametrize("mask", [Mask(100, 60), Mask(5, 0), Mask(left=176), Mask(right=40)], ids=str)
@pytest.mark.parametrize("name", ["best", "best_causal", "seed"])
def test_the_interpreter_is_right_where_a_window_cuts(name, mask):
    schedule = shipped()[name]
    for report in verify(derive(schedule), schedule, Variant(64, "bfloat16", mask)).values():
        assert report.ok, str(report)


def test_kernels_are_verified_where_a_window_cuts_both_ends_and_before_the_first_key():
    shape = AttentionShape(1, 1, 4000, 4000, 64, mask=Mask(1000, 500))
    found = [verified.shape for verified in verified_on(shape, fixed=False)]
    assert any(s.seq_q > 500 and s.past_len > 0 and s.seq_kv > 1500 for s in found)
    left = AttentionShape(1, 1, 4000, 4000, 64, mask=Mask(left=1000))
    assert any(v.shape.seq_q > v.shape.seq_kv for v in verified_on(left, fixed=False))


# --- what users may say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [(-2, 0), (0, -7), (1,), (1, 2, 3), 5, (0.5, 1), (True, 1), "ab", None])
def test_what_is_no_window_is_refused_in_one_line(window):
    q = torch.zeros(1, 1, 4, 64, dtype=torch.float16)
    with pytest.raises(InputError, match=r"window_size is .*, expected two integers \(left, right\)") as error:
        attention(q, q, q, window_size=window)
    assert "\n" not in str(error.value)


def test_causal_and_a_window_are_their_intersection():
    assert masked(False) == FULL and masked(True) == CAUSAL and masked(False, [-1, 0]) == CAUSAL
    assert masked(True, (7, 9)) == masked(True, (7, -1)) == masked(True, (7, 0)) == Mask(7, 0)
    assert masked(False, (7, -1)) == Mask(left=7) and masked(False, (-1, 9)) == Mask(right=9)


def test_sides_that_hide_nothing_are_not_compiled_in():
    for seq_q, seq_kv in ((1, 1), (5, 9), (9, 5), (6, 6)):
        for left in (None, *range(11)):
            for right in (None, *range(max(0, seq_q - seq_kv), 11)):
                mask, found = Mask(left, right), fitted(Mask(left, right), seq_q, seq_kv)
                assert mask.pairs(seq_q, seq_kv) == found.pairs(seq_q, seq_kv)
                assert found.left in (None, left) and found.right in (None, right)
                open_left, open_right = Mask(None, found.right), Mask(found.left, None)
                assert found.left is None or open_left.pairs(seq_q, seq_kv) > mask.pairs(seq_q, seq_kv)
                assert not found.right or open_right.pairs(seq_q, seq_kv) > mask.pairs(seq_q, seq_kv)
    assert fitted(CAUSAL, 1, 5) == CAUSAL


def test_every_query_of_a_kernels_problem_sees_a_key():
    AttentionShape(1, 1, 9, 5, 64, mask=Mask(0, 4)).check_every_row()
    with pytest.raises(InputError, match=r"window \(0, 3\) needs seq_kv \+ 3 >= seq_q, got seq_q 9 and seq_kv 5"):
        AttentionShape(1, 1, 9, 5, 64, mask=Mask(0, 3)).check_every_row()


def test_a_row_of_results_says_its_window():
    for mask in (FULL, CAUSAL, Mask(3, 0), Mask(left=3), Mask(right=3)):
        shape = AttentionShape(1, 1, 9, 9, 64, mask=mask)
        assert Row("seed", "", "runtime", problem_of(shape), "ok").shape == shape
    assert "window" not in problem_of(AttentionShape(1, 1, 9, 9, 64, mask=CAUSAL))


def test_commands_take_a_window(cli):
    assert "LEFT,RIGHT" in cli("run", "--help").output
    shape = AttentionShape.parse("1,2,9,64", causal=True, window="3,7")
    assert shape.mask == Mask(3, 0) and AttentionShape.parse("1,2,9,64", window="3,7").mask == Mask(3, 7)


def test_how_much_is_computed_for_what_is_seen():
    square = AttentionShape(1, 1, 256, 256, 64)
    assert visited_over_visible(square, 128, 128) == 1
    assert visited_over_visible(replace(square, mask=CAUSAL), 128, 128) == 3 * 128 * 128 / (256 * 257 / 2)
    window = replace(square, mask=Mask(0, 0))
    assert visited_over_visible(window, 128, 128) == 2 * 128 * 128 / 256
    assert visited_over_visible(window, 128, 128, at_least=2) == 4 * 128 * 128 / 256
    assert AttentionShape.of(Variant(64, "float16", Mask(0, 0)), Sizes(1, 1, 256, 256)) == window
