"""A change of generated code finds its place by words, and is refused where these do not say which."""

import re

import pytest
from faults.places import changed

TEXT = """extern "C" __global__ void kernel() {
  int blocks_1 = 4;
  for (int t_2 = 0; t_2 < blocks_1; ++t_2) {
    K_full[(t_2 & 1)].wait(0);
    tl::tma_load(K_desc, K_full[0], (&(K_shared[0])), (t_2 * 64), t_2);
  }
  __syncthreads();
  __syncthreads();
}
"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("K_full wait.parity -> ($ ^ 1)", r"wait\(\(0 \^ 1\)\);"),
        ("load K.row: t -> (blocks - t)", r", \(blocks_1 - t_2\)\);"),
        ("load K.column: X * 64 -> 64", r", \(64\), t_2\);"),
        ("int blocks = -> max($, 1)", r"blocks_1 = max\(4, 1\);"),
        ("load K -> if (t == 0)", r"if \(t_2 == 0\) \{\n    tl::tma_load.*\n\}\n"),
        ("load K -> if (@t == 0)", r"if \(t == 0\) \{\n"),
        ("for t.bound around load K -> t < 1", r"; t_2 < 1; "),
        ("for t around load K ->", r"blocks_1 = 4;\n  __sync"),
        ("the first __syncthreads => before load", r"wait\(0\);\n  __syncthreads\(\);\n    tl::tma_load"),
        ("every __syncthreads ->", r"  \}\n\}\n"),
    ],
)
def test_a_change_is_made_where_its_words_say(change: str, found: str) -> None:
    (text,) = changed(TEXT, change)
    assert text != TEXT and re.search(found, text), text


def test_each_line_has_a_fault_of_its_own() -> None:
    assert [text.count("__sync") for text in changed(TEXT, "each __syncthreads ->")] == [1, 1]


@pytest.mark.parametrize("change", ["__syncthreads ->", "store ->", "load K: 64 * t -> 0", "load K.column: X * Y"])
def test_a_change_of_no_place_or_of_several_is_an_error(change: str) -> None:
    with pytest.raises(AssertionError, match=r"is in \d+ lines|places of the lines|is no change"):
        list(changed(TEXT, change))
