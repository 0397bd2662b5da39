"""Makes docs/ladders/ from results/ladder-*.yaml and their records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from pages.ladder_sections import extras
from pages.made import RESULTS, Make
from tl_attention.lab.files.ladder_file import Ladder, Step, load_ladder, record_name
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.show import ladder as shown
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown

# Students climb the ladders in this order.
ORDER = ("rtx5090", "rtx3090", "rtx3090_tuned", "worklog", "fa4")
MADE_BY = "<!-- Made by `python tools/make.py` from results/. -->\n"
NOTHING = "-"

INDEX = """# Ladders

Five published texts teach attention kernels one step at a time, each with its own kernel, card and baseline. A ladder here
repeats one text: each step is a schedule (a YAML file that says in which order the statements of the attention loop run).
All steps of a ladder were compiled, proved, checked against fp64 and timed beside each other, in one process on one card. The
difference between two files is the lesson, and the table says what the difference is worth.

    tl-attention ladder                          # lists the ladders
    tl-attention ladder rtx5090                  # runs one; --recorded shows its record instead
    tl-attention diff ladders/rtx5090/v3 ladders/rtx5090/v4   # shows what a step changes

Climb them in this order.
"""
COLUMNS = (
    "`ms` is the median time of a call, with its 10th and 90th percentile. `TFLOPS` counts the two matrix products of attention, "
    "and `% of product` compares this rate with the plain product. `text` is the text's own figure, in {unit}, from another "
    "card: {method}. `speed / {peer}` is the {ratio}. `speed / step before` is the median of paired ratios, and compares "
    "with the step in brackets where one is named. The last columns are the registers of a thread at launch, the "
    "bytes that a thread spills, the shared memory of a thread block, and the warps that an SM holds. A *peer* is another "
    "implementation that is timed beside the steps."
)


def record_of(name: str) -> Path:
    """Returns the path of a ladder's record."""
    return RESULTS / record_name(name)


@cache
def pages() -> dict[str, str]:
    """Makes the text of each page by its file's name."""
    ladders = [load_ladder(name) for name in ORDER]
    records = {found.name: read_rows(record_of(found.name)) for found in ladders}
    steps = {found.name: shown.by_name(records[found.name], found) for found in ladders}
    made = {f"{found.name}.md": page(found, records[found.name]) for found in ladders}
    return {"index.md": index(ladders, steps), **made}


# --- a ladder --------------------------------------------------------------------------------------------------


def page(ladder: Ladder, record: Sequence[Row]) -> str:
    """Makes the page of one ladder, from the first step to the last."""
    rows = shown.by_name(record, ladder)
    parts = [
        f"# {capital(ladder.title)}\n\n{MADE_BY}",
        ladder.story,
        f"The text is {cited(ladder)}. {where(ladder, rows)}",
        f"![The rate of each step of this ladder, in TFLOPS](../pictures/ladder-{ladder.name}.svg)",
        "## All steps",
        shown.table(ladder, rows).markdown(),
        columns(ladder, rows),
        "## Step by step",
        *("\n\n".join(step_lines(step, ladder, rows)) for step in ladder.steps),
        *extras(ladder, record),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def where(ladder: Ladder, rows: Mapping[str, Row]) -> str:
    """Says what was measured here, on what, and when."""
    row = next(row for row in rows.values() if row.median_ms)
    versions = ", ".join(f"{name} {row.versions[name]}" for name in ("torch", "tilelang") if name in row.versions)
    sizes = "compiled for exactly this problem" if ladder.fixed else "sizes read at run time"
    record = f"[the record](../../results/{record_of(ladder.name).name})"
    return (
        f"The times below are ours: problem {ladder.shape}, {sizes}, on one {row.device} ({row.power_limit_w:.0f} W) on "
        f"{row.run[:10]}, with {versions}, nvcc {row.nvcc}, at commit {row.commit} ({record}). Method: {row.method}. "
        f"{plain(ladder, row)} `tl-attention ladder {ladder.name}` repeats the measurement."
    )


def columns(ladder: Ladder, rows: Mapping[str, Row]) -> str:
    """Says what the columns of the table of all steps have."""
    peer = next(iter(ladder.peers))
    ratio = "median of paired ratios" if rows[peer].rounds_ms else "ratio of two medians"
    return COLUMNS.format(unit=ladder.unit, method=ladder.method, peer=PEER_NAMES[peer], ratio=ratio)


def plain(ladder: Ladder, row: Row) -> str:
    """Says what the plain product is, and how fast it was."""
    what = (
        "a product of two matrices of 8192 x 8192"
        if ladder.product == "matmul"
        else "a loop that does nothing but mma.sync m16n8k16 on registers, on all SMs, for at least 0.2 s"
    )
    return f"The plain product is {what}: it reached {row.matmul_tflops:.0f} TFLOPS in the same run."


def step_lines(step: Step, ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the parts of a step: its lesson, what changed in the file and in the code, and what the step was worth."""
    yield f"### {step.name}: {step.idea}"
    if step.why:
        yield step.why
    if step.schedule:
        yield f"The schedule is [`{step.schedule.name}`](../../schedules/{step.schedule.name}.yaml)."
    changed = [f"- {line}" for line in shown.changes(step, ladder, rows)]
    yield "\n".join([*changed, *(f"- {line}" for line in worth(step, ladder, rows))])


def worth(step: Step, ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """Says what a step gained, with the interval in which the gain lies."""
    row = rows.get(step.name)
    if row is None or row.median_ms is None or row.tflops is None:
        return
    share = f"{row.tflops:.0f} TFLOPS, which is {row.percent_of_matmul:.1f} % of the plain product"
    if row.against is None or step.against is None:
        yield share
        return
    interval = row.against.interval
    between = f" (95 % interval: {1 / interval[1]:.3f} to {1 / interval[0]:.3f})" if interval else ""
    yield f"{share}, and {1 / row.against.ratio:.3f}x the speed of {step.against}{between}"


# --- all of them -----------------------------------------------------------------------------------------------


def index(ladders: list[Ladder], records: Mapping[str, Mapping[str, Row]]) -> str:
    """Makes the index: the way through the ladders, and each text's headline beside what was measured here."""
    listed = "\n".join(
        f"{number}. [{capital(found.title)}]({found.name}.md), after {cited(found)}. {found.story}"
        for number, found in enumerate(ladders, 1)
    )
    headings = (
        "text",
        "what the text reached on its own card",
        "the same step here",
        "speed of that step beside its peers",
        "the fastest step here, if another",
    )
    lines = [headline(found, records[found.name]) for found in ladders]
    toctree = "```{toctree}\n:hidden:\n\n" + "\n".join(found.name for found in ladders) + "\n```"
    table = markdown(headings, lines)
    return "\n".join([INDEX, listed, "\n## What the texts reached, and what we reached\n", table, "", toctree, ""])


def cited(ladder: Ladder) -> str:
    """Cites the text by its authors and title, with its address if known."""
    return f"{ladder.source}, see {ladder.link}" if ladder.link else ladder.source


def headline(ladder: Ladder, rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Makes the line of a text's best known figure and of the same step here."""
    row = rows[ladder.headline.step]
    beside = "; ".join(
        f"{speed:.3f}x {PEER_NAMES[peer]}" for peer in ladder.peers if peer in rows and (speed := row.speed(rows[peer]))
    )
    least = min(rows[step.name].median_ms or math.inf for step in ladder.measured)
    # The first that is as fast as the fastest, but for what the clock does.
    fastest = next(one for step in ladder.measured if (one := rows[step.name]).median_ms < 1.003 * least)  # type: ignore[operator]
    text = (ladder.source.partition(",")[0], ladder.headline.text)
    return *text, reached(row), beside or NOTHING, NOTHING if fastest is row else reached(fastest)


def reached(row: Row) -> str:
    """Says a step's time and rate, and the card."""
    return (
        f"{row.name}: {row.median_ms:.3f} ms, {row.tflops:.0f} TFLOPS, {row.percent_of_matmul:.1f} % of the plain product "
        f"({row.device})"
    )


def capital(text: str) -> str:
    """Returns the text with a capital letter."""
    return text[:1].upper() + text[1:]


MADE: dict[str, Make] = {
    f"docs/ladders/{name}.md": partial(lambda name: pages()[f"{name}.md"], name) for name in ("index", *ORDER)
}
