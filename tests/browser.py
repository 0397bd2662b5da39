"""Debian's chromium, headless, and what is wrong with a page that it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Of a computer and of a telephone.
WIDTHS, HEIGHT = (1280, 400), 900
# As root in a container: no sandbox, and little shared memory.
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PATIENCE = 60
LOADED = "return document.URL == arguments[0] && document.readyState == 'complete'"
SEEN = """
return {
    pictures: [...document.images].filter(image => !image.complete || !image.naturalWidth).map(image => image.src),
    tables: [...document.querySelectorAll("table")].map(table => table.rows.length),
    empty: [...document.querySelectorAll("table tr")].filter(row => !row.offsetHeight).length,
    width: document.documentElement.scrollWidth,
    inner: window.innerWidth,
}
"""


@contextmanager
def browser() -> Iterator[Any]:
    """One that runs until the end of the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ARGUMENTS:
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def faults(driver: Any, page: Path, width: int, tables: Sequence[int]) -> Iterator[str]:
    """What is wrong with a page of so many pixels, whose tables should have so many rows, headers included."""
    from selenium.webdriver.support.ui import WebDriverWait

    # A window cannot be as narrow as a telephone.
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    WebDriverWait(driver, PATIENCE).until(lambda driver: driver.execute_script(LOADED, page.as_uri()))
    seen = driver.execute_script(SEEN)
    assert seen["inner"] == width
    for picture in seen["pictures"]:
        yield f"{page.name}: {picture} does not load"
    if seen["tables"] != list(tables) or seen["empty"] or min(seen["tables"], default=2) < 2:
        yield f"{page.name}: tables of {seen['tables']} rows, {seen['empty']} not seen, expected {list(tables)}"
    if seen["width"] > width:
        yield f"{page.name}: {seen['width']} pixels scroll sideways in {width}"
