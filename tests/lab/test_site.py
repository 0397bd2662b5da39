"""The site is built without a warning, its links lead somewhere, and a browser shows it as it should be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from browser import SCHEMES, WIDTHS, browser, faults
from picture_text import Box
from site_pages import ARGUMENTS, ROOT, Page, build, build_once, dead_links, markdown_of, tables_of
from tiers import exhaustive

pytestmark = exhaustive
# Every page that a reader can be sent to from the outside.
KNOWN = {"README", "CONTRIBUTING", "CHANGELOG", "docs/index", "docs/pytorch", "docs/DESIGN", "docs/results"}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Builds the site once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    return build_once(folder if worker_id == "master" else folder.parent)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as driver:
        yield driver


def test_every_page_of_the_repository_is_one_of_the_site(site) -> None:
    sources = {source.relative_to(ROOT).with_suffix("").as_posix() for source in markdown_of(site).values()}
    written = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]
    assert sources == {path.relative_to(ROOT).with_suffix("").as_posix() for path in written} >= KNOWN


def test_it_is_built_as_the_makefile_does() -> None:
    assert f"python {' '.join(ARGUMENTS)} -d build/doctrees . build/site\n" in (ROOT / "Makefile").read_text()


def test_every_link_leads_to_a_file_and_a_place_in_it(site) -> None:
    assert list(dead_links(site)) == []


def test_nothing_is_fetched_from_another_host(site) -> None:
    pages = [*site.rglob("*.html")]
    assert not [name for page in pages for name in Page(page).fetched if "//" in name]
    sheets = [*site.rglob("*.css")]
    assert len(pages) > 10 and sheets
    assert not [sheet for sheet in sheets if "url(http" in sheet.read_text() or "@import" in sheet.read_text()]


def small_site(folder: Path, text: str) -> Path:
    """Makes a folder with our settings and one page."""
    for name in ("_static", "_extra"):
        shutil.copytree(ROOT / "docs" / name, folder / "docs" / name)
    shutil.copy(ROOT / "docs/conf.py", folder / "docs")
    (folder / "schedules").mkdir()
    (folder / "schedules/best.yaml").write_text("base: seed\n")
    (folder / "docs/index.md").write_text(text)
    return folder


def test_a_file_is_a_download_and_a_folder_its_name(tmp_path) -> None:
    page = "# Page\n\n[a file](../schedules/best.yaml), [a folder](../schedules), [a place](#page)\n"
    done = build(small_site(tmp_path, page), tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    made = tmp_path / "out/site"
    links = Page(made / "docs/index.html").links
    assert any(link.endswith("/best.yaml") for link in links) and not any("schedules" in link for link in links)
    assert list(dead_links(made)) == []
    next(made.rglob("best.yaml")).unlink()
    assert [link.split("/")[-1] for link in dead_links(made)] == ["best.yaml"]


@pytest.mark.parametrize("link", ["missing.md", "../schedules/worst.yaml", "#none", "index.md#none", "../nowhere"])
def test_a_link_that_leads_nowhere_is_an_error(link, tmp_path) -> None:
    done = build(small_site(tmp_path, f"# Page\n\n[a link]({link})\n"), tmp_path / "out")
    assert done.returncode and done.stderr.count("WARNING") == 1 and "docs/index.md:3" in done.stderr


@pytest.mark.browser
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_every_page(site, driver, width, scheme) -> None:
    pages = markdown_of(site)
    assert sum(len(tables_of(source.read_text())) for source in pages.values()) > 20
    assert sum(source.read_text().count("](pictures/") for source in pages.values()) > 1
    found = [
        fault
        for page, source in pages.items()
        for fault in faults(driver, page, width, tables_of(source.read_text()), scheme)
    ]
    assert found == []


WORDS = """
return [...document.querySelectorAll("text")].map(text => [text.textContent, text.getBBox()])
    .map(([words, box]) => [words, box.x, box.y, box.x + box.width, box.y + box.height])
    .concat([...document.querySelectorAll("rect")].map(rect => ["", rect.getBBox()])
        .map(([words, box]) => [words, box.x, box.y, box.x + box.width, box.y + box.height]))
"""


@pytest.mark.browser
def test_words_of_the_picture_drawn_by_hand_stay_in_their_boxes(driver) -> None:
    driver.get((ROOT / "docs/life-of-a-block.svg").as_uri())
    found = [(words, Box(words, 0, *box)) for words, *box in driver.execute_script(WORDS)]
    texts, rects = [box for words, box in found if words], [box for words, box in found if not words]
    assert len(texts) > 60 and len(rects) > 20
    # Lines below each other share the room of what hangs down.
    assert not [(a.text, b.text) for a, b in combinations(texts, 2) if a.overlaps(replace(b, top=b.top + 4))]
    assert not [text.text for text in texts for rect in rects if text.overlaps(rect) and not inside(text, rect)]


def inside(text: Box, rect: Box) -> bool:
    return rect.left <= text.left and text.right <= rect.right and rect.top <= text.top and text.bottom <= rect.bottom
