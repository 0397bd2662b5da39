"""The proof refuses no good kernel of tests/corpus.xz: 310 drawn kernels that `tools/corpus.py draw` lowered.

No `make` target lowers them again. When generated code changes a test here fails, and the corpus is drawn anew:

    python tools/corpus.py draw tests/corpus.xz --cases 310 --pipelined 80 --jobs 16
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import corpus
import pytest
from checkouts import Checkout
from kernel_case import ACCEPTED, NOT_LOWERED, GeneratedCase, judge, lower, rebuilt
from tiers import exhaustive, sampled

ROOT = Path(__file__).parents[1]

FILE = Path(__file__).parent / "corpus.xz"
BYTES, LEAST = 400_000, 300
# As many tests, so that they run beside each other.
PARTS = 150
# Every so many parts are judged in make test-all; `tools/corpus.py compare tests/corpus.xz` judges them all.
EACH = 3
# What the proof refuses, by the words of its verdict: faults of TileLang's pipeline, and loads that the reader does not know.
REFUSED = ("does not wait for", "buffers for load_k from byte", "is nothing that is known")


@cache
def cases() -> tuple[GeneratedCase, ...]:
    """Reads all drawn cases that TileLang lowered."""
    return tuple(case for case in corpus.read(FILE) if case.source)


@pytest.mark.parametrize("part", sampled(range(0, PARTS, EACH), [0]))
def test_verdicts_stand(part: int) -> None:
    for case in cases()[part::PARTS]:
        assert judge(ROOT, case)[0] == case.verdict, str(case)


def test_it_holds_so_many_kernels_in_a_file_of_a_sane_size() -> None:
    every = corpus.read(FILE)
    assert len(cases()) >= LEAST and FILE.stat().st_size <= BYTES
    assert len({case.same_kernel() for case in every}) == len(every)
    assert {rebuilt(case)[0].lowering for case in every} == {"pipelined", "warp_specialized"}
    assert all(case.source or case.verdict.startswith(NOT_LOWERED) for case in every)
    for case in cases():
        assert case.verdict == ACCEPTED or any(words in case.verdict for words in REFUSED), f"{case}: {case.verdict}"
        assert case.verdict == ACCEPTED or rebuilt(case)[0].lowering == "pipelined", str(case)


@exhaustive
@pytest.mark.parametrize("lowering", ["pipelined", "warp_specialized"])
def test_lowering_gives_the_same_text(lowering: str) -> None:
    case = next(case for case in cases() if rebuilt(case)[0].lowering == lowering)
    # It switches TileLang's cache off, so it has a process of its own.
    with Checkout(ROOT).processes(1, "tests") as pool:
        made = pool.schedule(lower, args=[ROOT, case]).result()
    assert (made.source, made.host_source) == (case.source, case.host_source), f"{case}: draw the corpus anew"
