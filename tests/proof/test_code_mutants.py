"""The proof passes no mutant of `tools/mutate_code.py` but those that a person has judged to do no harm."""

from pathlib import Path

import pytest
from code_mutants import proving
from code_mutants.compiled import errors_of
from code_mutants.judged import reason
from code_mutants.kernels import KERNELS
from code_mutants.operations import DEVICE, mutants, sample
from code_mutants.rows import BROKEN, TO_JUDGE, Rows
from once import lowered, proved
from tiers import exhaustive

# One of each lowering and mask, with multicast, turns, tiles from a counter, an output by TMA, and fragments.
SAMPLED = ("best", "best_causal", "output_tma", "seed_causal", "mma_sync_small")
COUNT = 75
NUMBERS = 9
SEED = "CI"


def passed(name: str, file: Path, count: int = COUNT) -> list[str]:
    """Returns the sample's C++ mutants that are neither refused, equivalent, the numbers' nor judged by a person."""
    code = lowered(KERNELS[name])
    verdict = proved(KERNELS[name])
    found = sample(mutants(code, verdict, NUMBERS, SEED), count, SEED)
    rows = Rows(file)
    rows.begin(name, code, verdict, len(found))
    for mutant in found:
        rows.add(mutant, proving.ask(name, mutant), mutant.shown(code))
    left = {row["key"] for row, kind in rows.classes() if kind == TO_JUDGE and not reason(name, row)}
    device = [mutant for mutant in found if mutant.key in left and mutant.part == DEVICE]
    for mutant, error in zip(device, errors_of([mutant.of(code).source for mutant in device])):
        rows.learn(mutant.key, error=error)
    left = {
        row["key"] for row, kind in rows.classes() if kind == BROKEN or (kind == TO_JUDGE and not reason(name, row))
    }
    return [f"{m.part}: {m.operation}, line {m.line + 1} ({m.kind}): {m.shown(code)}" for m in found if m.key in left]


@pytest.fixture(autouse=True)
def lowered_once(monkeypatch):
    """Makes the proof judge the code that the other tests have."""
    monkeypatch.setattr(proving, "lowered", lowered)


@exhaustive
@pytest.mark.parametrize("name", SAMPLED)
def test_no_mutant_of_the_sample_passes(name, tmp_path):
    assert passed(name, tmp_path / "rows.jsonl") == []


def test_no_mutant_of_a_small_sample_passes(tmp_path):
    assert passed("seed_causal", tmp_path / "rows.jsonl", count=12) == []


FENCE = {"operation": "deleted", "kind": "fence", "shown": "tl::fence_proxy_async();"}


def sign(before: str, after: str) -> dict[str, str]:
    line = "K_full[((3 & (((base + j) % {}) >> 31)) + ((base + j) % {}))].arrive();"
    shown = f"{line.format(*before.split())}  ->  {line.format(*after.split())}"
    return {"operation": "+1", "kind": "mbarrier", "shown": shown}


def test_a_judgement_is_of_its_kernels_and_of_its_change():
    assert reason("dynamic", FENCE) and not reason("output_tma", FENCE)
    assert reason("best", sign("3 3", "4 3")) and not reason("best", sign("3 3", "3 4"))
