"""Fills the parts of docs/PYTORCH.md that come from data: `python tools/pytorch_page.py`. A test holds the page to it.

A part stands between `<!-- NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tl_attention.files.defaults import defaults
from tl_attention.show.text_table import markdown

PAGE = Path(__file__).parents[1] / "docs/PYTORCH.md"


def rules() -> str:
    """Which schedule serves which case, a line for each rule."""
    lines = []
    for rule in defaults().rules:
        others = [words for words in rule.conditions if not words.startswith("head_dims ")]
        lines.append(
            [", ".join(map(str, rule.head_dims)), "; ".join(others), f"`{rule.schedule}`", rule.why, rule.record]
        )
    return markdown(["head_dim", "only if", "schedule", "why", "record in `results/`"], lines)


PARTS: dict[str, Callable[[], str]] = {"defaults": rules}


def filled(page: str) -> str:
    """The page with its parts made anew. Raises ValueError where one has no place, or several."""
    for name, part in PARTS.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise ValueError(f"{PAGE}: expected one {start.strip()} and one {end}")
        before, _, rest = page.partition(start)
        page = f"{before}{start}\n{part()}\n\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
