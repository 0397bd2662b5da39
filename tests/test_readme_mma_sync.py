"""docs/CARDS.md says of mma.sync what the records, `diff` and `explain` say."""

from __future__ import annotations

import re
from math import prod

from mutations import SCHEDULES
from pages.cells import read
from test_readme import README, ROOT

from tl_attention.files.schedule_file import load
from tl_attention.measure.records import read_rows
from tl_attention.problem.mask import CAUSAL
from tl_attention.program.planned import Planned
from tl_attention.show.explain import explain

RECORD = read(ROOT / "results/cells-mma-h200.jsonl")
SECTION = (ROOT / "docs/CARDS.md").read_text()
WORDS = " ".join(SECTION.split())


def speeds(*groups: str, causal: bool | None = None) -> dict[int, float]:
    """Returns the speeds of groups by length; of one mask, if `causal` is given."""
    rows = [row for row in RECORD if row.group in groups and causal in (None, row.shape.mask == CAUSAL)]
    return {row.shape.seq_kv: row.speed("ours", "flash2").ratio for row in rows}


def test_the_speeds_are_those_of_the_record() -> None:
    for group, heading in (("mma", "head_dim 128, 16 heads"), ("mma_d64", "head_dim 64, 32 heads")):
        for causal in (False, True):
            [line] = [text for text in SECTION.splitlines() if text.startswith(f"| {heading}{', causal' * causal} |")]
            found = [float(cell) for cell in line.split("|")[2:-1] if cell.strip()]
            of_record = speeds(group, causal=causal)
            assert found == [round(of_record[seq], 3) for seq in sorted(of_record)]
    whole, causal = (speeds("mma_L", causal=causal)[8192] for causal in (False, True))
    assert f"they have {whole:.2f}x its speed, and {causal:.2f}x with a causal mask." in WORDS
    ratios = [row.speed("ours", "flash2").ratio for row in RECORD if row.group in ("mma", "mma_L")]
    mean = prod(ratios) ** (1 / len(ratios))
    assert f"with L included, is {mean:.3f}, and the lowest is {min(ratios):.3f}." in WORDS and len(ratios) == 12
    assert mean >= 1 and min(ratios) >= 0.95


def test_the_rate_of_each_idea_is_the_records() -> None:
    shown = re.findall(r"^\| (?:`([\w/]+)`|FlashAttention-2) \| [^|]* \| (\d+) \|$", SECTION, re.MULTILINE)
    rates = {row.name: row.tflops for row in read_rows(ROOT / "results/bench-mma-h200-L.jsonl")}
    assert len(shown) == 11
    for name, rate in shown:
        assert round(rates[name.rpartition("/")[2] or "flash2"]) == int(rate), name


def test_the_readme_has_the_range_of_the_speeds() -> None:
    every = [row.speed("ours", "flash2").ratio for row in RECORD if row.group in ("mma", "mma_d64", "mma_L")]
    assert f"{min(every):.2f} to {max(every):.2f}x the speed of FlashAttention-2" in " ".join(README.split())


def test_the_difference_and_the_steady_state_shown_are_true() -> None:
    plain, other = ((SCHEDULES / f"mma_sync/{of}.yaml").read_text().splitlines() for of in ("plain", "eager"))
    for mark, lines, others in (("<", plain, other), (">", other, plain)):
        own = [line for line in lines if line not in others and not line.startswith(("#", "summary"))]
        shown = [line.strip()[2:] for line in SECTION.splitlines() if line.strip().startswith(f"{mark} ")]
        assert shown == own
    steady = explain(Planned(load(SCHEDULES / "mma_sync/eager.yaml"))).partition("Steady state")[2].splitlines()[1:9]
    shown = SECTION.partition("waits and barriers follow from it\n")[2].splitlines()[: len(steady)]
    for line, told in zip(steady, shown):
        assert line.strip().startswith(told.strip().removesuffix(", ...")), told
