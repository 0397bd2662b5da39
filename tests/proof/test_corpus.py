"""The corpus of generated code is drawn by its seed and judged again; the proof refuses no good kernel of it."""

import lzma
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import corpus
import pytest
from checkouts import HERE, failure
from click.testing import CliRunner, Result
from kernel_case import ACCEPTED, NOT_LOWERED, GeneratedCase, draw_random, generated, judge, lower, rebuilt
from tiers import exhaustive, sampled

from tl_attention.compiler.compile import compile_kernel

LOWERINGS = ("pipelined", "warp_specialized")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(corpus.main, [str(argument) for argument in arguments])


def kept(file: Path, cases: list[GeneratedCase]) -> Path:
    """Writes these cases to the file."""
    file.write_bytes(lzma.compress("".join(map(corpus.line, cases)).encode()))
    return file


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draws three random cases, one of them pipelined."""
    file = tmp_path_factory.mktemp("corpus") / "three.xz"
    result = run("draw", file, "--cases", 3, "--pipelined", 1)
    assert result.exit_code == 0, result.output
    assert "3 random cases were drawn" in result.stdout and "3 cases, " in result.stdout
    return file


@pytest.fixture
def changed(drawn: Path, tmp_path: Path) -> Callable[..., Path]:
    """Gives a function that writes the three cases with the lowering's first case changed."""

    def write(lowering: str, change: Callable[[GeneratedCase], GeneratedCase]) -> Path:
        cases = corpus.read(drawn)
        chosen = next(case for case in cases if case.label.startswith(lowering))
        return kept(tmp_path / "changed.xz", [change(case) if case is chosen else case for case in cases])

    return write


@exhaustive
def test_what_was_drawn_is_judged_the_same_again(drawn: Path) -> None:
    cases = corpus.read(drawn)
    assert sorted(rebuilt(case)[0].lowering for case in cases) == [LOWERINGS[0], *LOWERINGS[1:] * 2]
    assert {case.verdict for case in cases} == {ACCEPTED}
    result = run("compare", drawn)
    assert result.exit_code == 0 and "3 cases, 0 DIFFERENT; 0 were not lowered" in result.stdout, result.output
    assert "     3 accepted\n3 proofs: median " in result.stdout


@exhaustive
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_verdict_that_differs_is_shown(changed: Callable[..., Path], lowering: str) -> None:
    result = run("compare", changed(lowering, lambda case: replace(case, verdict="ScheduleRefused: it hangs")))
    assert result.exit_code == 1 and "3 cases, 1 DIFFERENT" in result.stdout, result.output
    assert f": {lowering}_" in result.stdout and "    - ScheduleRefused: it hangs\n    + accepted\n" in result.stdout


@exhaustive
def test_so_is_code_that_waits_no_more(changed: Callable[..., Path]) -> None:
    def never_waits(case: GeneratedCase) -> GeneratedCase:
        lines = case.source.splitlines()
        others = [line for line in lines if ".wait(" not in line]
        assert len(others) < len(lines)
        return replace(case, source="\n".join(others))

    result = run("compare", changed("warp_specialized", never_waits))
    assert result.exit_code == 1 and "3 cases, 1 DIFFERENT" in result.stdout, result.output
    assert (
        "    - accepted\n    + ScheduleRefused: the kernel that TileLang 0.1.15 generates is not safe" in result.stdout
    )


@exhaustive
def test_only_some_are_judged_and_none_is_an_error(drawn: Path) -> None:
    assert "1 cases, 0 DIFFERENT" in run("compare", drawn, "--only", ": pipelined_").stdout
    assert run("compare", drawn, "--only", "no such name").exit_code == 2


@exhaustive
def test_what_is_kept_is_what_is_compiled(drawn: Path) -> None:
    cases = {rebuilt(case)[0].lowering: case for case in corpus.read(drawn)}
    for case in cases.values():
        compiled = compile_kernel(*rebuilt(case))
        assert (compiled.source, compiled.host_plan) == (case.source, case.host_plan), case
        assert compiled.generated == generated(case)


def test_a_case_is_its_seeds_and_number() -> None:
    for lowering in LOWERINGS:
        first = draw_random(1, 0, lowering)
        assert first == draw_random(1, 0, lowering) and rebuilt(first[0])[0].lowering == lowering
        assert first != draw_random(1, 1, lowering) and first != draw_random(2, 0, lowering)


@exhaustive
def test_a_file_that_is_cut_off_is_said_to_be(drawn: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.xz"
    cut.write_bytes(drawn.read_bytes()[:5000])
    result = run("compare", cut)
    assert result.exit_code == 2 and "expected a whole file of `draw`" in result.stderr, result.output


# Not at once: Pebble takes one that dies before it has told of its work for a pool that is broken.
DIE = "import os, time; time.sleep(0.5); os._exit(3)"


@pytest.mark.parametrize(
    ("work", "argument", "words"),
    [(exec, DIE, "the process died with exit code 3"), (time.sleep, 60, "it took more than 1 s"), (abs, 1, "")],
)
def test_why_there_is_no_result(work: Callable[..., object], argument: object, words: str) -> None:
    with HERE.processes(1) as pool:
        assert failure(pool.schedule(work, args=[argument], timeout=1), 1) == words


FILE = Path(__file__).parent / "corpus.xz"
BYTES, LEAST = 400_000, 300
# As many tests, so that they run beside each other.
PARTS = 150
# Every so many parts are judged in make test-all; `tools/corpus.py compare tests/proof/corpus.xz` judges them all.
EACH = 3
# What the proof refuses, by its verdict's words: faults of TileLang's pipeline.
REFUSED = ("does not wait for", "buffers for load_k from byte")


@cache
def cases() -> tuple[GeneratedCase, ...]:
    """Reads all drawn cases that TileLang lowered."""
    return tuple(case for case in corpus.read(FILE) if case.source)


@pytest.mark.parametrize("part", sampled(range(0, PARTS, EACH), [0]))
def test_verdicts_stand(part: int) -> None:
    for case in cases()[part::PARTS]:
        assert judge(case)[0] == case.verdict, str(case)


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
    made = lower(case)
    assert (made.source, made.host_plan) == (case.source, case.host_plan), f"{case}: draw the corpus anew"
