"""Runs Debian's chromium, headless, and says what is wrong with a page that it shows."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# The widths of a computer's and of a telephone's screen.
WIDTHS, HEIGHT = (1280, 400), 900
SCHEMES = ("light", "dark")
# Pixels of the smallest letters of a picture on a computer's screen.
LETTERS = 9
# How far the colours of a shadow and of the paper below it are apart, of 255.
SEEN_SHADOW = 50
# chromium runs as root in a container: it has no sandbox, and little shared memory.
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
    shown: [...document.images].map(image => [image.src, image.clientWidth / image.naturalWidth]),
    wide: [...document.querySelectorAll("body *")].filter(box => box.clientWidth > 1 && box.scrollWidth > box.clientWidth + 1)
        .map(box => [box, getComputedStyle(box)])
        .map(([box, style]) => [box.outerHTML.slice(0, 60), style.overflowX, style.backgroundAttachment, style.backgroundImage]),
}
"""


@contextmanager
def browser() -> Iterator[Any]:
    """Yields a browser that runs until the end of the block."""
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


def faults(driver: Any, page: Path, width: int, tables: Sequence[int], scheme: str = "light") -> Iterator[str]:
    """Says what is wrong with a page of this width in pixels; its tables should have so many rows, headers included."""
    from selenium.webdriver.support.ui import WebDriverWait

    # A window cannot be as narrow as a telephone.
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)
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
    for box, overflow, attachment, image in seen["wide"]:
        if overflow not in ("auto", "scroll") or not has_shadow(attachment, image):
            yield f"{page.name}: {box} is wider than its box, and nothing says so"
    for address, scale in seen["shown"] if width == max(WIDTHS) else []:
        if scale and address.endswith(".svg") and (least := scale * letters(address)) < LETTERS:
            yield f"{page.name}: {address} has letters of {least:.1f} pixels, expected at least {LETTERS}"


def has_shadow(attachment: str, image: str) -> bool:
    """Says whether a box has covers that move with its content, above shadows that stay and are seen on the paper."""
    colours = [tuple(map(int, found)) for found in re.findall(r"rgb\((\d+), (\d+), (\d+)\)", image)]
    if not colours or not {"local", "scroll"} <= set(attachment.split(", ")):
        return False
    return max(abs(paper - shadow) for paper, shadow in zip(colours[0], colours[-1])) > SEEN_SHADOW


def letters(address: str) -> float:
    """Returns the pixels of an SVG's smallest letters: of text, or of outlines, which are scaled by points / 100."""
    svg = Path(unquote(urlsplit(address).path)).read_text()
    of_text = [
        float(size) for size in re.findall(r'font-size="([\d.]+)"|font:[^;"]*?([\d.]+)px', svg) for size in size if size
    ]
    of_outlines = [float(scale) * 100 * 4 / 3 for scale in re.findall(r"scale\(([\d.]+) -[\d.]+\)", svg)]
    return min(of_text + of_outlines, default=float("inf"))
