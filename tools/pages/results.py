"""Makes docs/results.md from the records in results/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from pages.answers import ANSWERS, speed_on_l
from pages.answers import evaluations as evaluations_of
from pages.cells import CARDS, SHORT, heads_of, read, record, speeds
from pages.made import RESULTS, TEXTS, Make, laid_out
from pages.records import records
from tl_attention.lab.files.ladder_file import load_ladder
from tl_attention.lab.leaderboard.results import table as evaluation_table
from tl_attention.lab.leaderboard.results import title
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import read_rows
from tl_attention.lab.show.report import PEER_NAMES, by_problem, table
from tl_attention.lab.show.table import markdown
from tl_attention.problem.mask import CAUSAL

# A record has a line in the text.
RECORD = re.compile(r"\{of\[([\w.-]+)\]\}")
BASELINE = "best"
LEFT_OUT = "shared kB"
BENCHES = ("bench-h200-L.jsonl", "bench-h200-L-causal.jsonl")
EVALUATIONS = {
    **{record("evaluate", card).name: "Times vs. cuDNN" for card in CARDS},
    "evaluate-cold-h200.jsonl": "With an empty kernel cache, where it is compiled first",
}
# Dtype and peer of the grid's lines: each has a line for each card, without and with a causal mask.
GRID_LINES = (("bfloat16", "fa3"), ("bfloat16", "cudnn"), ("float16", "cudnn"))
# The README has these lines.
README_LINES = (GRID_LINES[0], GRID_LINES[1])
# Problem L's groups in the record of cells.
OF_L = {"bfloat16": "L", "float16": "L_fp16"}

# The text's harness printed these times for its benchmark, and for the ranked one.
WORK_LOG = (
    "A published text has 13.4 to 13.6 ms in the mean for problem L on an H100, with the kernel and the compilers of its "
    "authors, on the server of their class: {source}. [A ladder](ladders/worklog.md) repeats its steps."
)


def page() -> str:
    """Makes the text of the whole page."""
    text = laid_out(
        "results",
        answer={name: answer() for name, answer in ANSWERS.items()},
        **records(RECORD.findall((TEXTS / "results.md").read_text("utf-8"))),
        grids=names_of("grid"),
        cells=names_of("cells"),
        grid=grid_table(GRID_LINES),
        mean=grid_mean(),
        shortest=shortest_causal(),
        benches="\n\n".join(benches()),
        evaluations="\n\n".join(evaluations()),
    )
    return f"{text}\n"


def names_of(stem: str) -> str:
    """Names the records of all cards."""
    return " and ".join(f"`results/{record(stem, card).name}`" for card in CARDS)


def benches() -> Iterator[str]:
    """Makes one table for each problem of the benches."""
    for name in BENCHES:
        for rows in by_problem(read_rows(RESULTS / name)):
            row, shown = next(row for row in rows if row.method), table(rows, BASELINE)
            shown = shown.picked([n for n, heading in enumerate(shown.headings) if heading != LEFT_OUT])
            yield f"### {shown.title}\n\n`results/{name}`, commit {row.commit}.\n\n{shown.markdown()}"


def grid_table(of: Sequence[tuple[str, str]]) -> str:
    """Makes a line for each dtype and peer, mask and card at 16 heads, a column for each length, and a line for L."""
    cells = {card: [row for row in read(record("grid", card)) if row.shape.heads == 16] for card in CARDS}
    lengths = sorted({row.shape.seq_kv for rows in cells.values() for row in rows})
    lines = [
        [
            f"{SHORT[dtype]}{', causal' * causal} / {PEER_NAMES[peer]}",
            card.upper(),
            *(f"{speed:.3f}" for speed in ratios(rows, dtype, peer, causal)),
            f"{speed_on_l(card, OF_L[dtype], peer, causal).ratio:.3f}",
        ]
        for dtype, peer in of
        for causal in (False, True)
        for card, rows in cells.items()
    ]
    return markdown(["dtype / peer", "card", *map(str, lengths), "L"], lines)


def grid_mean() -> str:
    """Compares all problems with FlashAttention-3, on each card, in a sentence."""
    means: list[str] = []
    lowest: dict[str, list[str]] = {}
    for card in CARDS:
        rows = [(speed.ratio, row) for row in read(record("grid", card)) if (speed := row.speed(OURS, "fa3"))]
        low, row = min(rows, key=lambda found: found[0])
        means.append(f"{geometric_mean([speed for speed, _ in rows]):.3f} on the {card.upper()}")
        place = f"{heads_of(row.shape)} heads{', causal' * (row.shape.mask == CAUSAL)}, {row.shape.seq_kv} keys"
        lowest.setdefault(place, []).append(f"{low:.3f} on the {card.upper()}")
        grouped = sum(row.shape.group > 1 for _, row in rows)
    told = [f"{' and '.join(found)} ({place})" for place, found in lowest.items()]
    return (
        f"The record has {len(rows)} problems in bf16, {grouped} of them with 40 heads on 8 KV heads. Against FlashAttention-3 "
        f"their geometric mean is {' and '.join(means)}. The lowest is {' and '.join(told)}."
    )


def shortest_causal() -> str:
    """Gives the times of 1024 causal tokens, where the two cards differ the most."""
    told = []
    for card in CARDS:
        [row] = [
            row
            for row in read(record("grid", card))
            if (row.shape.heads, row.shape.seq_kv, row.shape.mask) == (16, 1024, CAUSAL) and row.speed(OURS, "fa3")
        ]
        theirs = next(entry for entry in row.entries if entry.name == "fa3")
        told.append(f"{row.ours.median_ms:.3f} and {theirs.median_ms:.3f} ms on the {card.upper()}")
    return f"With 1024 causal tokens and 16 heads, we and FlashAttention-3 take {', and '.join(told)}; we have not examined why."


def ratios(rows: Sequence[CellRow], dtype: str, peer: str, causal: bool) -> list[float]:
    """Returns our speed as a part of a peer's in each cell of a dtype and mask, the shortest length first."""
    chosen = [row for row in rows if (row.shape.dtype, row.shape.mask == CAUSAL) == (dtype, causal)]
    return speeds(sorted(chosen, key=lambda row: row.shape.seq_kv), peer)


def evaluations() -> Iterator[str]:
    """Shows what `submit --evaluate` found, a table for each record."""
    for name, about in EVALUATIONS.items():
        found = evaluations_of(name)
        baseline = "cudnn" if "cudnn" in dict(found) else None
        shown = evaluation_table(title(found[0][1]), found, baseline)
        yield f"{about} (`results/{name}`, {shown.title}):\n\n{shown.markdown()}"


def work_log() -> str:
    """Says what the ladder's text reached on problem L, on its own card."""
    return WORK_LOG.format(source=load_ladder("worklog").source)


MADE: dict[str, Make] = {"docs/results.md": page}
