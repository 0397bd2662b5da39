"""Integer expressions of generated CUDA are read as C has them."""

from __future__ import annotations

import numpy as np
import pytest

from tl_attention.codeproof.read.expression import UNREADABLE, arguments, parsed
from tl_attention.codeproof.run.threads import NUMBERS


def value(text: str, **names):
    return parsed(text)(dict(NUMBERS), names)


# Each with its value in C; another precedence, or another direction, gives another.
PRECEDENCE = {
    "2 + 3 * 4": 14,
    "20 - 5 - 3": 12,
    "40 / 4 / 5": 2,
    "7 % 4 * 2": 6,
    "1 + 1 << 2": 8,
    "1 & 2 == 2": 1,
    "1 | 2 ^ 3 & 2": 1,
    "5 ^ 1 & 3": 4,
    "16 >> 1 << 1": 16,
    "3 < 2 == 0": 1,
    "0 || 1 && 0": 0,
    "1 || 0 && 0": 1,
    "-3 + 5": 2,
    "2 - -3": 5,
    "!0 + 1": 2,
    "!(0 + 1)": 0,
}


@pytest.mark.parametrize("text", PRECEDENCE)
def test_operators_bind_as_in_c(text):
    assert int(value(text)) == PRECEDENCE[text]


def test_a_ternary_takes_the_least_and_groups_from_the_right():
    assert [value("a ? 1 : b ? 2 : 3 + 4", a=a, b=b) for a, b in ((1, 0), (0, 1), (0, 0))] == [1, 2, 7]
    assert value("(a < 2 ? 10 : 20) + 1", a=1) == 11
    assert value("a < 2 ? b < 2 ? 1 : 2 : 3", a=1, b=5) == 2


@pytest.mark.parametrize(
    "text",
    [
        "((int)threadIdx.x) + 1",
        "((int64_t)(((int)threadIdx.x) + 1))",
        "((int)threadIdx.x) + (uint)1",
        "((int)threadIdx.x) + (bool)1",
    ],
)
def test_known_casts_change_nothing(text):
    assert value(text, threadIdx_x=4) == 5


@pytest.mark.parametrize(
    "text",
    [
        "(int)(uint16_t)seq_kv",
        "(bool)seq_kv",
        "(int)(seq_kv)",
        "(uint)threadIdx.x",
        "threadIdx.x + 1",
        "(short)4",
        "(bool)2",
    ],
)
def test_a_cast_that_may_change_a_value_is_refused(text):
    with pytest.raises(SyntaxError):
        parsed(text)


def test_what_is_in_parentheses_and_no_type_is_no_cast():
    assert value("(a) - 1", a=5) == 4
    assert value("(a) * (b)", a=5, b=3) == 15


def test_names_are_as_the_run_has_them():
    expression = parsed("((int)blockIdx.x) + tl::block_rank_in_cluster() * min(tile, 3)")
    assert expression.names == {"blockIdx_x", "tl__block_rank_in_cluster", "tile"}
    assert expression(dict(NUMBERS), {"blockIdx_x": 7, "tl__block_rank_in_cluster": 2, "tile": 9}) == 13


def test_a_plain_number_is_constant_and_comparisons_are_found():
    assert (parsed("12").constant, parsed("6 + 6").constant, parsed("n").constant) == (12, None, None)
    found = {(node.tree[0], node.names) for node in parsed("(a < 3) && ((b == 2) || !(c >= d + 1))").comparisons}
    assert found == {("<", frozenset("a")), ("==", frozenset("b")), (">=", frozenset("cd"))}


# C rounds a quotient towards 0, and a remainder has the dividend's sign: Python's does neither.
@pytest.mark.parametrize("a, b, quotient, remainder", [(7, 2, 3, 1), (-7, 2, -3, -1), (7, -2, -3, 1), (-7, -2, 3, -1)])
def test_division_rounds_towards_0(a, b, quotient, remainder):
    assert (value("a / b", a=a, b=b), value("a % b", a=a, b=b)) == (quotient, remainder)
    both = np.array([a, a])
    assert value("a / b", a=both, b=b).tolist() == [quotient] * 2
    assert value("a % b", a=both, b=b).tolist() == [remainder] * 2
    assert value("a / b", a=a, b=np.array([b, b])).tolist() == [quotient] * 2


def test_a_shift_of_a_negative_number_keeps_its_sign():
    assert value("(n % 3) >> 31", n=-4) == -1
    assert value("(n % 3) >> 31", n=np.array([-4, 4])).tolist() == [-1, 0]


def test_arrays_are_chosen_from_and_combined_thread_by_thread():
    lane = np.arange(4)
    assert value("lane < 2 ? lane : 9", lane=lane).tolist() == [0, 1, 9, 9]
    assert value("min(lane, 1) + max(lane, 2)", lane=lane).tolist() == [2, 3, 3, 4]
    assert value("(lane == 1) || !(lane < 3)", lane=lane).tolist() == [False, True, False, True]
    assert value("(0 < lane) && (lane < n)", lane=lane, n=2).tolist() == [False, True, False, False]


NO_EXPRESSION = [
    "",
    "1 +",
    "(1",
    "1)",
    "a b",
    "a[0]",
    "a = 1",
    "a ? 1",
    "1.5f",
    "min(a, b",
    "& a",
    "a ++ b",
    '"a"',
    "{a}",
]


@pytest.mark.parametrize("text", NO_EXPRESSION)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(SyntaxError):
        parsed(text)


@pytest.mark.parametrize("text", ["unknown + 1", "rand()", "unknown(1)", "1 / zero", "1 % zero"])
def test_what_has_no_value_is_unreadable(text):
    with pytest.raises(UNREADABLE):
        value(text, zero=0)


def test_python_of_an_expressions_names_is_out_of_reach():
    """A name is a variable or one of the arithmetic's functions, and nothing of Python's."""
    for text in ("__import__(1)", "len(1)", "open(1)"):
        with pytest.raises(NameError):
            value(text)


def test_arguments_are_cut_at_their_own_commas():
    assert arguments("a, f(b, c), d[1, 2], (e, g)") == ["a", "f(b, c)", "d[1, 2]", "(e, g)"]
    assert arguments("a") == ["a"]


@pytest.mark.parametrize("text", ["a / b", "a % b"])
@pytest.mark.parametrize("divisor", [0, np.array([2, 0, 1])])
def test_a_division_by_zero_is_no_number(text, divisor):
    with pytest.raises(UNREADABLE, match="by zero"):
        value(text, a=np.array([4, 5, 6]), b=divisor)
    with pytest.raises(UNREADABLE, match="by zero"):
        value(text, a=7, b=divisor)


@pytest.mark.parametrize("by", ["-1", "32", "(0 - 1)", "seq_kv", "(int64_t)64"])
def test_a_shift_by_anything_but_a_number_of_bits_is_refused(by):
    assert value("a >> (int64_t)1", a=7) == value("a >> 1", a=7) == 3
    with pytest.raises(SyntaxError, match="of an integer of (32|64) bits"):
        parsed(f"seq_q >> {by}")
