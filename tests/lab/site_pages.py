"""A run's tests share one site; this module builds it, and reads its pages and their Markdown."""

import fcntl
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote, urlsplit

from conftest import ROOT

# As `make site` has them.
ARGUMENTS = ("-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-c", "docs")
# Attributes that name a file, and elements that a browser fetches it for.
NAMING, FETCHED = ("href", "src"), {"img", "script", "link", "source", "iframe"}


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Makes a site of a folder with docs/conf.py in it."""
    call = [sys.executable, *ARGUMENTS, "-d", str(out / "doctrees"), ".", str(out / "site")]
    return subprocess.run(call, cwd=source, capture_output=True, text=True, timeout=300, check=False)


def build_once(shared: Path) -> Path:
    """Makes the repository's site in a folder that the processes of a run share; the first process to come makes it.

    A site with warnings fails every test that asks for it.
    """
    with open(shared / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "built").exists():
            done = build(ROOT, shared)
            assert not done.returncode, done.stderr
            (shared / "built").touch()
    return shared / "site"


def markdown_of(site: Path) -> dict[Path, Path]:
    """Returns every page that is made from Markdown, with its source."""
    sources = {page: ROOT / page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")}
    return {page: source for page, source in sorted(sources.items()) if source.exists()}


def tables_of(markdown: str) -> list[int]:
    """Counts the rows of each table, with its header."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    runs = groupby(prose.splitlines(), key=lambda line: line.startswith("|"))
    return [len(list(lines)) - 1 for is_table, lines in runs if is_table]


class Page(HTMLParser):
    """A page has the links that it names, what a browser fetches for it, and its anchors."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.anchors.add(value)
            if name in NAMING and value:
                (self.fetched if tag in FETCHED else self.links).append(value)


def dead_links(site: Path) -> Iterator[str]:
    """Yields links of the site's pages that lead to no file, or to no place in a page.

    The page of timelines shows those that the fragment names.
    """
    timelines = (site / "timelines.html").resolve()
    shown = {*re.findall(r'"name":"([^"]+)"', timelines.read_text())}
    pages = {file.resolve(): Page(file) for file in site.rglob("*.html")}
    for file, page in pages.items():
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchors = pages[target].anchors if target in pages else set()
            if target == timelines and {*unquote(parts.fragment).partition("@")[0].split(",")} <= shown:
                anchors = {unquote(parts.fragment)}
            if not target.exists() or (parts.fragment and target in pages and unquote(parts.fragment) not in anchors):
                yield f"{file.relative_to(site.resolve())}: {link}"
