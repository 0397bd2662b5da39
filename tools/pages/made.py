"""Says where made files lie, and puts made parts into texts and pages that people write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS, SCHEDULES = ROOT / "results", ROOT / "schedules"
# Pages that are made as a whole, and their sections: words in Markdown, with names in braces for what is made.
TEXTS = Path(__file__).parent / "texts"

# Makes the text of a file, or of a part of one.
Make = Callable[[], str]


def laid_out(name: str, **parts: object) -> str:
    """Returns the text texts/NAME.md with these parts in their places."""
    return (TEXTS / f"{name}.md").read_text("utf-8").format(**parts).strip()


def filled(page: str, parts: Mapping[str, Make]) -> str:
    """Returns the text of a page with its parts made anew.

    A part stands between `<!-- NAME -->` and `<!-- end of NAME -->`. Raises ValueError where a part has no place, or
    several.
    """
    for name, make in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise ValueError(f"expected one line {begin.strip()} and, after it, one {end}")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{make().strip()}\n\n{end}{rest.partition(end)[2]}"
    return page


def filling(path: str, parts: Mapping[str, Make]) -> dict[str, Make]:
    """Returns the entry of a page that people write and that takes these parts."""
    return {path: lambda: filled((ROOT / path).read_text(), parts)}
