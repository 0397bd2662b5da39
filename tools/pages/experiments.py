"""Makes docs/experiments.md from schedules/experiments/ and the records in results/."""

from __future__ import annotations

from pages.made import RESULTS, Make, laid_out
from pages.outcomes import EXPERIMENTS, NOISE, Experiments, outcomes, predictions
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.show.table import markdown
from tl_attention.schedule.files.schedule_file import load_file


def page() -> str:
    """Makes the text of the whole page."""
    sections = "\n\n".join(map(section, EXPERIMENTS))
    return f"{laid_out('experiments', noise=100 * NOISE, sections=sections)}\n"


def section(experiments: Experiments) -> str:
    """Makes the section of a base's experiments, the fastest first, and last those that are not measured yet."""
    rows = {row.name: row for row in read_rows(RESULTS / experiments.record)}
    base = rows[experiments.base]
    found = outcomes(experiments)
    true = sum(one.came_true for one in found)
    measured = {
        one.name: (
            f"{one.speed:.3f} ({min(speeds):.3f}-{max(speeds):.3f})",
            "true" if one.came_true else "no",
            f"{rows[one.name].median_ms:.3f}",
            wait(rows[one.name]),
        )
        for one in found
        if (speeds := rows[one.name].speeds(base))
    }
    words = predictions(experiments.folder)
    lines = [
        [f"`{name}`", speed, came_true, load_file(experiments.path(name)).summary, words[name].rstrip("."), ms, waited]
        for name in dict.fromkeys([*measured, *words])
        for speed, came_true, ms, waited in [measured.get(name, ("not measured yet", "", "", ""))]
    ]
    table = markdown(["experiment", "speed (range)", "true?", "change", "prediction", "ms", "wait"], lines)
    return f"## {experiments.base}, {base.shape}\n\n{true} of {len(found)} predictions came true.\n\n{table}"


def wait(row: Row) -> str:
    """Says after how many of the loop's exponentials the loop waits for MMA1."""
    loop = row.loops[0]
    return f"{loop.product_waits[-1]} of {loop.exponentials}"


MADE: dict[str, Make] = {"docs/experiments.md": page}
