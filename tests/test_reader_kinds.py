"""The reader gives each line of a kernel a kind, which may say more than the line's own text."""

from __future__ import annotations

from small_kernels import kernel

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
