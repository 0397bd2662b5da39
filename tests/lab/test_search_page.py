"""The page of a search holds what the search told, and a browser shows all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import SCHEMES, WIDTHS, browser, faults
from tiers import exhaustive

from tl_attention.errors import InputError
from tl_attention.lab.files.kinds import PAGE, SEARCH_PAGE
from tl_attention.lab.show import search

SOURCES = ("queued", "drawn", "changed", "sampled")
LISTS = ("funnel", "refused", "left_out", "raced", "best", "workers", "mattered", "final", "lines")
# Of those that were raced, the drawn ones are far below.
TOLD: dict[str, Any] = {
    "study": "best-L-seed1",
    "problem": "(4, 64, 8192, 128) bf16",
    "card": "NVIDIA H200",
    "measured": True,
    "seconds": 1080.0,
    "baseline": "trial 0",
    "funnel": [["proposed", 21000], ["legal", 640], ["compiled", 510], ["raced", 40], ["faster than the incumbent", 2]],
    "refused": [["needs more shared memory </script><b>", 9000], ["the ring has fewer slots than chunks in flight", 3]],
    "left_out": [["spills", 40], ["machine code already seen", 31], ["wrong", 0]],
    "raced": [[25.0 * n, (0.98, 0.3, 1.0, 0.99)[n % 4] + n / 5000, SOURCES[n % 4], n] for n in range(40)],
    "best": [[0.0, 1.0, 0], [400.0, 1.004, 18], [900.0, 1.012, 38]],
    "workers": [["0: a-host, GPU 0", "lost", 1, 600.0, 20, 1], ["1: b-host </script><b>", "left", 0, 1080.0, 20, 1]],
    "mattered": [["kernel.cluster", 0.21], ["consumer.softmax.exponentials.polynomial_share", 0.1]],
    "prediction": {"n": 50, "rank": 0.71},
    "sketch": {"n": 50, "rank": 0.66},
    "final": [
        {"name": "trial 38", "ms": 11.7, "speed": 1.012, "low": 1.008, "high": 1.016, "status": "ok"},
        {"name": "trial 0", "ms": 11.84, "speed": 1.0, "low": 0.998, "high": 1.002, "status": "ok"},
        {"name": "trial 18", "ms": None, "speed": None, "low": None, "high": None, "status": "wrong"},
    ],
    "repeatability": 0.003,
    "winner": {
        "name": "trial 38",
        "file": "best L.yaml",
        "nearest": "best",
        "diff": ["kernel.cluster: 1 -> 2", "kernel.block_N: 128 -> " + "a-long-value" * 20],
        "timelines": "best-L.timelines.html",
    },
    "lines": ["The search ended because its time was over."],
}
PREDICTED = {**TOLD, "measured": False, "card": "no GPU: predicted for an H200", "repeatability": None}
NOTHING: dict[str, Any] = {key: [] if key in LISTS else value for key, value in TOLD.items()}
NOTHING |= {"prediction": None, "sketch": None, "repeatability": None, "winner": None}
# Rows of the tables: each new best, the funnel, refusals, what was left out, workers, the keys, and the final.
TABLES = [4, 6, 3, 4, 3, 3, 4]
MARKS = {
    **{f"#chart path.point.s{n}": 10 for n in range(4)},
    "#chart path.below": 10,
    "#chart path.best": 1,
    "#chart circle.new": 3,
    "#funnel rect.bar": 5,
    "#refused rect.bar": 2,
    "#left-out rect.bar": 3,
    "#mattered rect.bar": 2,
    "#final line.span": 2,
    "#final circle.middle": 2,
    "#final rect.band": 3,
    "#winner a": 2,
    "#lines li": 1,
    "svg[role=img]:not(:has(> title))": 0,
}
COUNTS = "return arguments[0].map(which => document.querySelectorAll(which).length)"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as driver:
        yield driver


def shown(driver: Any, folder: Path, told: dict[str, Any]) -> str:
    """Returns the text that a browser shows of a page."""
    search.write(told, folder / "search.html")
    driver.get((folder / "search.html").as_uri())
    return str(driver.execute_script("return document.body.innerText")).replace("\u00a0", " ")


@pytest.mark.parametrize("told", [TOLD, NOTHING])
def test_a_page_holds_what_was_told(told) -> None:
    text = search.text(told)
    data = re.search(r'<script type="application/json" id="search">(.*?)</script>', text)
    assert data and json.loads(data[1]) == told and search.DATA not in text
    assert text.count("</script>") == 2 and not re.search(r"https?://(?!www\.w3\.org/)", text)


def test_a_number_that_json_has_no_word_for_is_not_known() -> None:
    text = search.text({**NOTHING, "prediction": {"n": 2, "rank": float("nan")}})
    assert '"prediction":{"n":2,"rank":null}' in text and "NaN" not in text


def test_a_page_gives_way_to_another_search_only(tmp_path) -> None:
    file, timelines = tmp_path / "search.html", tmp_path / "timelines.html"
    for told in (TOLD, NOTHING):
        search.write(told, file)
        assert file.read_text() == search.text(told)
    assert SEARCH_PAGE.begins.match(file.read_bytes()) and not PAGE.begins.match(file.read_bytes())
    timelines.write_text('<!doctype html>\n<html lang="en">\n<title>Timelines of attention kernels</title>')
    with pytest.raises(InputError, match="is not a page of a search"):
        search.write(TOLD, timelines)


@exhaustive
@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_shows_each_row_and_nothing_scrolls_sideways(driver, tmp_path, width, scheme) -> None:
    search.write(TOLD, tmp_path / "search.html")
    assert [*faults(driver, tmp_path / "search.html", width, TABLES, scheme)] == []
    assert dict(zip(MARKS, driver.execute_script(COUNTS, [*MARKS]))) == MARKS
    assert driver.get_log("browser") == []


@exhaustive
@pytest.mark.browser
def test_a_browser_says_what_came_of_a_search(driver, tmp_path) -> None:
    text = shown(driver, tmp_path, TOLD)
    for words in (
        "The winner, trial 38, has 1.012x the speed of trial 0 (interval 1.008x to 1.016x).",
        "Less that, the gain is 0.90 %.",
        "2 workers took part. 1 of them was lost: others took over what it held.",
        "The slowest raced 56\u00a0% of what the fastest did in the same time.".replace("\u00a0", " "),
        "10 of 40 raced schedules lie below",
        "a rank correlation of 0.66 before they were compiled (50 schedules), and of 0.71 afterwards (50 schedules)",
        "</script><b>",
    ):
        assert words in text, words
    assert "predict" not in text.lower().replace("the predicted and the measured times", "")
    links = driver.execute_script("return [...document.links].map(link => link.getAttribute('href'))")
    assert links == ["best%20L.yaml", "best-L.timelines.html"]
    assert driver.get_log("browser") == []


@exhaustive
@pytest.mark.browser
def test_a_page_of_predictions_says_so(driver, tmp_path) -> None:
    text = shown(driver, tmp_path, PREDICTED)
    for words in (
        "All times and speeds on this page are predictions",
        "the predicted speed of trial 0",
        "predicted speed relative",
        "predicted ms",
    ):
        assert words in text, words
    assert driver.get_log("browser") == []


@exhaustive
@pytest.mark.browser
def test_a_browser_says_what_a_search_that_ended_at_once_did_not_do(driver, tmp_path) -> None:
    text = shown(driver, tmp_path, NOTHING)
    for words in (
        "No schedule was proposed",
        "no schedule was found faster than trial 0",
        "No schedule was raced.",
        "No schedule became the incumbent.",
        "Nothing was proposed.",
        "No proposal was refused.",
        "No legal schedule was left out.",
        "does not know which keys mattered",
        "No final was run.",
        "There is no winner.",
    ):
        assert words in text, words
    assert driver.execute_script(COUNTS, ["svg", "table"]) == [0, 0]
    assert driver.get_log("browser") == []
