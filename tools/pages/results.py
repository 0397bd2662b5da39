"""Makes docs/results.md from the records in results/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from pages.answers import QUESTIONS, answers, of_l
from pages.answers import evaluations as evaluations_of
from pages.cells import CARDS, SHORT, heads_of, read, record, speeds
from pages.made import RESULTS, Make
from pages.records import lines as lines_of
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

BASELINE = "best"
LEFT_OUT = "shared kB"
BENCHES = ("bench-h200-L.jsonl", "bench-h200-L-causal.jsonl")
EVALUATIONS = {
    **{record("evaluate", card).name: "These are its times beside cuDNN" for card in CARDS},
    "evaluate-cold-h200.jsonl": "The submission also passes with an empty kernel cache, where it is compiled first",
}
# Dtype and peer of the grid's lines: each has a line for each card, without and with a causal mask.
GRID_LINES = (("bfloat16", "fa3"), ("bfloat16", "cudnn"), ("float16", "cudnn"))
# The README has these lines.
README_LINES = (GRID_LINES[0], GRID_LINES[1])
# Problem L's groups in the record of cells.
OF_L = {"bfloat16": "L", "float16": "L_fp16"}

HEAD = """# Results

Each question below has an answer, and each answer has its record. A record is a file of JSON lines in `results/`; each line has
the card, driver, date, versions, commit, seed and method of its measurement. A *peer* is another implementation that is timed
beside ours. A speed of 1.1x means that we are 1.1 times as fast: it is the median, over rounds, of the peer's time divided by
ours in the same round. {cards} An answer that names no card is of the H200.

Compare times within one table only. The tables are from different runs, and the card runs at its power limit.

## Which record answers which question

Problem L has batch 4, 64 heads, 8192 queries and keys, and head_dim 128.

{answers}

## How to repeat a measurement

Run the command on the card of the line. FILE is the file of your results.
"""
OF_BENCHES = """## Schedules beside each other, on problem L

Which schedule is the fastest? *speed / best* is the median, over rounds, of `best`'s time divided by the row's time in the
same round. A round of all rows takes seconds, and the clock moves meanwhile. So differences below 2 % say little in these
tables; the tables beside the peers have shorter rounds.

- *fixed* rows are compiled for exactly these sizes, *runtime* rows for all sizes.
- *% of matmul* compares the rate with a plain product of 8192 x 8192 x 8192 in the same run.
- *max error / budget* is the largest error of an element, divided by the allowed error: twice the error of PyTorch's
  attention in the same precision. The worst of the verified shapes counts.
- *stack B* is the bytes of stack per thread, into which registers spill.
- *code* names the generated device code: rows with the same name run the same code.
- *refused* rows are schedules that the proof or the compiler refuses.
"""
OF_EVALUATIONS = """How fast is the submission under [the leaderboard's rules](leaderboard.md)? `leaderboard_submit` holds the program
and TileLang compiles it; `leaderboard_submit_cubin` holds machine code. The last two columns are cuDNN's time divided by the
row's time.
"""
# The text's harness printed these times for its benchmark, and for the ranked one.
WORK_LOG = (
    "A published text has 13.4 to 13.6 ms in the mean for problem L on an H100, with the kernel and the compilers of its "
    "authors, on the server of their class: {source}. [A ladder](ladders/worklog.md) repeats its steps."
)
FOOT = """## Pictures

![Speed over length on the H200](pictures/lengths.svg)

![Speed beside the peers on the H100, cell by cell](pictures/grid-h100.svg)

![Speed beside the peers on the H200, cell by cell](pictures/grid-h200.svg)

![Error against its budget](pictures/errors.svg)
"""


def page() -> str:
    """Makes the text of the whole page."""
    return "\n".join(
        [
            HEAD.format(answers=answers(), cards=cards()),
            *records(),
            *grid(),
            OF_BENCHES,
            *benches(),
            *evaluations(),
            FOOT,
        ]
    )


def cards() -> str:
    """Says from which cards the records are."""
    found = sorted({line["device"] for one in QUESTIONS for record in one.records for line in lines_of(record)})
    return f"The records are from one {' and one '.join(found)}."


def benches() -> Iterator[str]:
    """Makes one table for each problem of the benches."""
    for name in BENCHES:
        for rows in by_problem(read_rows(RESULTS / name)):
            row, shown = next(row for row in rows if row.method), table(rows, BASELINE)
            shown = shown.picked([n for n, heading in enumerate(shown.headings) if heading != LEFT_OUT])
            yield f"### {shown.title}\n\n`results/{name}`, commit {row.commit}.\n\n{shown.markdown()}\n"


def grid() -> Iterator[str]:
    """Makes the section of speed against the peers over lengths, at 32768 tokens each."""
    names = " and ".join(f"`results/{record('grid', card).name}`" for card in CARDS)
    yield "## Over lengths\n"
    cells = " and ".join(f"`results/{record('cells', card).name}`" for card in CARDS)
    yield f"Each number is our speed divided by the peer's, so above 1 we are faster ({names}).\n"
    yield (
        "A column is a length of queries and keys. Its problems have 16 heads, and the batch times the length is 32768. The last "
        f"column is problem L ({cells}). FlashAttention-3's wheel has no fp16.\n"
    )
    yield f"{grid_table(GRID_LINES)}\n\n{grid_mean()} {shortest_causal()}\n"


def grid_table(of: Sequence[tuple[str, str]]) -> str:
    """Makes a line for each dtype and peer, mask and card at 16 heads, a column for each length, and one for problem L."""
    cells = {card: [row for row in read(record("grid", card)) if row.shape.heads == 16] for card in CARDS}
    lengths = sorted({row.shape.seq_kv for rows in cells.values() for row in rows})
    lines = [
        [
            f"{SHORT[dtype]}{', causal' * causal} / {PEER_NAMES[peer]}",
            card.upper(),
            *(f"{speed:.3f}" for speed in ratios(rows, dtype, peer, causal)),
            f"{of_l(card, OF_L[dtype], peer, causal).ratio:.3f}",
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
    yield "## The submission under the leaderboard's contract\n"
    yield OF_EVALUATIONS
    yield f"{work_log()}\n"
    for name, about in EVALUATIONS.items():
        found = evaluations_of(name)
        baseline = "cudnn" if "cudnn" in dict(found) else None
        shown = evaluation_table(title(found[0][1]), found, baseline)
        yield f"{about} (`results/{name}`, {shown.title}):\n"
        yield f"{shown.markdown()}\n"


def work_log() -> str:
    """Says what the ladder's text reached on problem L, on its own card."""
    return WORK_LOG.format(source=load_ladder("worklog").source)


MADE: dict[str, Make] = {"docs/results.md": page}
