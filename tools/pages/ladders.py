"""Makes docs/ladders/ from results/ladder-*.yaml and their records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from pages.ladder_sections import more
from pages.made import RESULTS, SCHEDULES, Make, laid_out
from tl_attention.lab.files.ladder_file import Ladder, LadderStep, load_ladder, record_name
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.show import ladder as shown
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown

# Students climb the ladders in this order.
ORDER = ("rtx5090", "rtx3090", "rtx3090_tuned", "worklog", "fa4")
NOTHING = "-"


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
    row = next(row for row in rows.values() if row.median_ms)
    text = laid_out(
        "ladder",
        ladder=ladder,
        row=row,
        title=capital(ladder.title),
        cited=cited(ladder),
        sizes="compiled for exactly this problem" if ladder.fixed else "sizes read at run time",
        table=shown.table(ladder, rows).markdown(),
        steps="\n\n".join(part.strip() for step in ladder.steps for part in step_parts(step, ladder, rows)),
        more=more(ladder, record),
    )
    return f"{text}\n"


def step_parts(step: LadderStep, ladder: Ladder, rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the parts of a step: its lesson, and a table of what changed in the file, in the code and in speed."""
    yield f"### {step.name}: {step.idea}"
    yield from filter(None, (step.why, step.note))
    if step.schedule:
        name, file = step.schedule.name, step.schedule.sources[0].path.relative_to(SCHEDULES)
        found = [line.partition(": ")[::2] for line in shown.changes(step, ladder, rows) if line != step.note]
        if step.name in rows and (against := rows[step.name].against):
            ends = [1 / end for end in reversed(against.interval or ())]
            between = ", 95 % interval {:.3f} to {:.3f}".format(*ends) if ends else ""
            found.append((f"speed / {step.against}", f"{1 / against.ratio:.3f}{between}"))
        yield markdown(("schedule", f"[`{name}`](../../schedules/{file})"), found)


# --- all of them -----------------------------------------------------------------------------------------------


def index(ladders: list[Ladder], records: Mapping[str, Mapping[str, Row]]) -> str:
    """Makes the index: how to read a ladder, and each text's headline beside what was measured here."""
    headings = (
        "ladder",
        "text",
        "what the text reached on its own card",
        "the same step here",
        "speed of that step vs. its peers",
        "the fastest step here, if another",
    )
    lines = [headline(found, records[found.name]) for found in ladders]
    names = "\n".join(found.name for found in ladders)
    return f"{laid_out('ladders', table=markdown(headings, lines), names=names)}\n"


def cited(ladder: Ladder) -> str:
    """Cites the text by its authors and title, with its address if known."""
    return f"{ladder.source}: {ladder.link}" if ladder.link else ladder.source


def headline(ladder: Ladder, rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Makes the line of a text's best known figure and of the same step here."""
    row = rows[ladder.headline.step]
    beside = "; ".join(
        f"{speed:.3f}x {PEER_NAMES[peer]}" for peer in ladder.peers if peer in rows and (speed := row.speed(rows[peer]))
    )
    least = min(rows[step.name].median_ms or math.inf for step in ladder.measured)
    # The first that is as fast as the fastest, but for what the clock does.
    fastest = next(one for step in ladder.measured if (one := rows[step.name]).median_ms < 1.003 * least)  # type: ignore[operator]
    text = f"[{capital(ladder.title)}]({ladder.name}.md)", cited(ladder), ladder.headline.text
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
