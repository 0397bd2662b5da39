"""Makes docs/results.md from the records in results/: `python tools/results_page.py`. A test holds the page to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

from tl_attention.leaderboard import table as evaluation_table
from tl_attention.leaderboard.results import read_evaluation
from tl_attention.measure.records import Row, parse_object, read_lines, read_rows
from tl_attention.show.report import by_problem, markdown_table, title
from tl_attention.show.text_table import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs/results.md"
COLUMNS = ("schedule", "sizes", "status", "ms", "tflops", "matmul", "ratio", "error", "registers", "stack", "code")
BENCHES = ("bench-h200-L.jsonl", "bench-h200-L-causal.jsonl")
EVALUATIONS = ("evaluate-h200.jsonl", "evaluate-cold-h200.jsonl")
# Of the grid: dtype and peer of each pair of lines, without and with a causal mask.
GRID = (("bfloat16", "fa3", "FlashAttention-3"), ("bfloat16", "cudnn", "cuDNN"), ("float16", "cudnn", "cuDNN"))
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
OURS = ("best", "best_causal")

HEAD = """# Results

Made by `python tools/results_page.py` from the records in `results/`, which have every row's versions, driver, power
limit, commit, seed and method. Nothing here was measured on an H100.

Columns: "% of matmul" is against an 8192^3 product timed in the same run. "max error / budget" is the largest error of
an element as a share of its budget, twice that of PyTorch's attention in the same precision, at the worst of the shapes
that were verified. "stack B" is bytes of stack per thread, where registers spill to. `code` names the generated device
code. The card is power-limited: times are compared within a table only.
"""
FOOT = """## Pictures, ladders, experiments and counters

![Speed over length](pictures/lengths.svg)

![Speed beside the peers, cell by cell](pictures/grid.svg)

![Prediction and outcome of the experiments](pictures/predictions.svg)

![Error against its budget](pictures/errors.svg)

- [Ladders](ladders/index.md): what each optimisation of five texts is worth here, step by step.
- [experiments-h200.md](../results/experiments-h200.md), [causal](../results/experiments-causal-h200.md): one thing
  changed at a time, each prediction beside its outcome.
- [counters-h200.md](../results/counters-h200.md): what ncu counts in `best`, `best_causal` and FlashAttention-3.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *benches(), *grid(), *evaluations(), FOOT])


def benches() -> Iterator[str]:
    """One table for each problem of the benches."""
    yield "## Problem L\n"
    for name in BENCHES:
        for rows in by_problem(read_rows(RESULTS / name)):
            row = next(row for row in rows if row.method)
            versions = ", ".join(f"{what} {version}" for what, version in row.versions.items())
            yield f"### {title(rows)}\n\n`results/{name}`, commit {row.commit}; {versions}, nvcc {row.nvcc}.\n"
            yield f"{row.method}.\n\n{markdown_table(rows, COLUMNS, 'cudnn')}\n"


def grid() -> Iterator[str]:
    """Speed against the peers over lengths, 32768 tokens each."""
    rows = read_rows(RESULTS / "grid-h200.jsonl")
    yield "## Over lengths\n"
    yield f"{grid_table(rows)}\n"
    yield (
        "Medians of a peer over ours, above 1 is faster; head_dim 128, one process for each length and mask\n"
        f"(`results/grid-h200.jsonl`). {grid_mean(rows)}\n"
    )


def grid_table(rows: list[Row]) -> str:
    """A line for each peer, dtype and mask, a column for each length."""
    lengths = sorted({row.problem["seq_kv"] for row in rows})
    lines = [
        [
            f"{SHORT[dtype]}{', causal' * causal} / {name}",
            *(f"{ratio(rows, dtype, peer, causal, n):.3f}" for n in lengths),
        ]
        for dtype, peer, name in GRID
        for causal in (False, True)
    ]
    return markdown(["16 heads, batch 32768 / seq", *map(str, lengths)], lines)


def grid_mean(rows: list[Row]) -> str:
    """Against FlashAttention-3, in a sentence."""
    lengths = {row.problem["seq_kv"] for row in rows}
    ratios = [ratio(rows, "bfloat16", "fa3", causal, n) for causal in (False, True) for n in lengths]
    return (
        f"The geometric mean against FlashAttention-3 is {geometric_mean(ratios):.3f}, the lowest cell "
        f"{min(ratios):.3f}."
    )


def ratio(rows: list[Row], dtype: str, peer: str, causal: bool, seq: int) -> float:
    """A peer's median over ours in one cell."""
    cell = {
        "ours" if row.name in OURS else row.name: row.median_ms
        for row in rows
        if (row.problem["dtype"], row.problem["causal"], row.problem["seq_kv"]) == (dtype, causal, seq)
    }
    theirs, ours = cell[peer], cell["ours"]
    assert theirs is not None and ours is not None, "the grid's rows are timed"
    return theirs / ours


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
