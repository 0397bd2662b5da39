"""Makes docs/results.md from the records in results/: `python tools/results_page.py`. A test holds the page to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

import cells_page

from tl_attention.leaderboard import table as evaluation_table
from tl_attention.leaderboard.results import read_evaluation
from tl_attention.measure.cell import OURS
from tl_attention.measure.cell_records import CellRow
from tl_attention.measure.records import parse_object, read_lines, read_rows
from tl_attention.problem.mask import CAUSAL
from tl_attention.show.report import PEER_NAMES, by_problem, markdown_table, title
from tl_attention.show.text_table import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs/results.md"
BASELINE = "best"
COLUMNS = ("schedule", "sizes", "status", "ms", "tflops", "matmul", "ratio", "error", "registers", "stack", "code")
BENCHES = ("bench-h200-L.jsonl", "bench-h200-L-causal.jsonl")
EVALUATIONS = ("evaluate-h200.jsonl", "evaluate-cold-h200.jsonl")
# Of the grid: dtype and peer of each pair of lines, without and with a causal mask.
GRID_LINES = (("bfloat16", "fa3"), ("bfloat16", "cudnn"), ("float16", "cudnn"))
SHORT = {"bfloat16": "bf16", "float16": "fp16"}

HEAD = """# Results

Each question has one record in `results/`, with the card, date, versions, commit, seed and method of every row. All of them
are from one H200 each; nothing was measured on an H100 yet. Times of different tables were taken in different runs: compare
times within a table only, because the card runs at its power limit.

| question | where | record |
| --- | --- | --- |
| How fast is it beside FlashAttention-3 and cuDNN, over lengths? | [below](#over-lengths) | `grid-h200.jsonl` |
| And over head sizes, masks, softcap and problem L? | [PyTorch measurements](pytorch-measurements.md#speed) | `cells-h200.jsonl` |
| Which schedule is the fastest? | [below](#schedules-beside-each-other-on-problem-l) | `bench-h200-L.jsonl`, `bench-h200-L-causal.jsonl` |
| What is each choice in `best` worth? | [experiments](experiments.md) | `experiments-h200.jsonl`, `experiments-causal-h200.jsonl` |
| What is each step of five tutorials worth? | [ladders](ladders/index.md) | `ladder-*-h200.jsonl` |
| How fast is the submission under the leaderboard's rules? | [below](#the-submission-under-the-leaderboards-contract) | `evaluate-h200.jsonl` |
| What does a call cost, does a model train, and how fast is the backward pass? | [PyTorch measurements](pytorch-measurements.md) | `host-`, `operator-`, `training-`, `backward-h200.jsonl` |
| What does the hardware do meanwhile? | [counters](../results/counters-h200.md) | `counters-h200.csv`, `profile-h200.jsonl` |
| And on other cards? | [other cards](CARDS.md) | `cells-mma-h200.jsonl`, `bench-mma-h200-L.jsonl`, `cards.jsonl` |

`python tools/results_page.py` makes this page.
"""
OF_BENCHES = """## Schedules beside each other, on problem L

Problem L has batch 4, 64 heads, 8192 queries and keys, and head_dim 128. *speed / best* is the median, over rounds, of
`best`'s time divided by the row's time in the same round. A round of all rows takes seconds, in which the clock moves, so
differences below 2 % say little here; the tables beside the peers have shorter rounds.

- *fixed* rows are compiled for exactly these sizes, *runtime* rows for all sizes.
- *% of matmul* compares the rate with a plain product of 8192 x 8192 x 8192 in the same run.
- *max error / budget* is the largest error of an element as a share of the allowed error, which is twice the error of
  PyTorch's attention in the same precision, at the worst of the shapes that were verified.
- *stack B* is bytes of stack per thread, into which registers spill. *code* names the generated device code.
"""
FOOT = """## Pictures

![Speed over length](pictures/lengths.svg)

![Speed beside the peers, cell by cell](pictures/grid.svg)

![Error against its budget](pictures/errors.svg)
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *grid(), OF_BENCHES, *benches(), *evaluations(), FOOT])


def benches() -> Iterator[str]:
    """One table for each problem of the benches."""
    for name in BENCHES:
        for rows in by_problem(read_rows(RESULTS / name)):
            row = next(row for row in rows if row.method)
            versions = ", ".join(f"{what} {version}" for what, version in row.versions.items())
            yield f"### {title(rows)}\n\n`results/{name}`, commit {row.commit}; {versions}, nvcc {row.nvcc}.\n"
            yield f"{row.method}.\n\n{markdown_table(rows, COLUMNS, BASELINE)}\n"


def grid() -> Iterator[str]:
    """Speed against the peers over lengths, 32768 tokens each."""
    rows = cells_page.read(cells_page.GRID)
    yield "## Over lengths\n"
    yield f"{grid_table(rows)}\n"
    yield (
        "Each number is the median, over rounds, of the peer's time divided by ours in the same round: above 1 we are faster. "
        f"`results/{cells_page.GRID.name}`, commit {rows[0].commit}: {rows[0].method}. {grid_mean(rows)}\n"
    )


def grid_table(rows: Sequence[CellRow]) -> str:
    """A line for each peer, dtype and mask at 16 heads, a column for each length."""
    of_16 = [row for row in rows if row.shape.heads == 16]
    lengths = sorted({row.shape.seq_kv for row in of_16})
    lines = [
        [
            f"{SHORT[dtype]}{', causal' * causal} / {PEER_NAMES[peer]}",
            *(f"{speed:.3f}" for speed in ratios(of_16, dtype, peer, causal)),
        ]
        for dtype, peer in GRID_LINES
        for causal in (False, True)
    ]
    return markdown(["16 heads, batch 32768 / length", *map(str, lengths)], lines)


def grid_mean(rows: Sequence[CellRow]) -> str:
    """Against FlashAttention-3, in a sentence."""
    found = [speed for causal in (False, True) for speed in ratios(rows, "bfloat16", "fa3", causal)]
    return (
        f"Over all {len(found)} problems in bf16, those of 40 heads on 8 KV heads included, the geometric mean against "
        f"FlashAttention-3 is {geometric_mean(found):.3f} and the lowest is {min(found):.3f}."
    )


def ratios(rows: Sequence[CellRow], dtype: str, peer: str, causal: bool) -> list[float]:
    """Our speed as a part of a peer's in each cell of a dtype and mask, the shortest first."""
    chosen = [row for row in rows if (row.shape.dtype, row.shape.mask == CAUSAL) == (dtype, causal)]
    speeds = (row.speed(OURS, peer) for row in sorted(chosen, key=lambda row: row.shape.seq_kv))
    return [speed.ratio for speed in speeds if speed]


def evaluations() -> Iterator[str]:
    """What `submit --evaluate` found, a table for each record."""
    yield "## The submission under the leaderboard's contract\n"
    for name in EVALUATIONS:
        found = [read_evaluation(line, parse_object(line, where), where) for where, line in read_lines(RESULTS / name)]
        baseline = "cudnn" if "cudnn" in dict(found) else None
        lines = evaluation_table.lines(found, baseline)
        yield f"`results/{name}`: {evaluation_table.title(found[0][1])}\n"
        yield f"{markdown(evaluation_table.headings(baseline), lines)}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
