"""A simulated search of many workers is limited by what is busiest, and the page has the numbers of the record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import search_fleet
import yaml
from conftest import ROOT

COSTS = search_fleet.Costs(14.0, 1.0, 0.5, 0.1, 0.001, 0.001, 0.01, 0.01, 0.005, 16.0)


@pytest.mark.parametrize(
    "change, workers, limit, hourly",
    [
        ({}, 1, "compilers", 3600),
        ({"race": 2.0}, 1, "GPU", 1800),
        ({"locked": 0.1, "tell": 0.1}, 64, "study's lock", 36_000),
    ],
)
def test_what_is_busiest_limits(change, workers, limit, hourly) -> None:
    found = search_fleet.simulated(replace(COSTS, **change), workers)
    assert found["limit"] == limit and found["raced an hour"] == pytest.approx(hourly, rel=0.15)


def test_the_page_has_the_records_numbers() -> None:
    record = yaml.safe_load((ROOT / "results/search-fleet.yaml").read_text())
    rows = {row["workers"]: row["raced an hour"] for row in record["simulated"]}
    assert [*rows] == [*search_fleet.WORKERS] and record["calls of the storage for a candidate"] <= 30
    page = " ".join((ROOT / "docs/search.md").read_text().split())
    for words, workers in (("races 2,650 ", 1), ("64 workers 170,000", 64), ("512 race 800,000", 512)):
        told = int(words.split()[-1].replace(",", ""))
        assert words in page and told == pytest.approx(rows[workers], rel=0.01)
