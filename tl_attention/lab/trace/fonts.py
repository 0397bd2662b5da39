"""Letters are those of matplotlib's own DejaVu, also where a system has another release of it: their bytes differ."""

from __future__ import annotations

import functools
from pathlib import Path

import matplotlib
from matplotlib.font_manager import fontManager


@functools.cache
def own_fonts_first() -> None:
    """Puts matplotlib's own fonts in front of those of the system, which the first of two equally good ones goes by."""
    for file in sorted((Path(matplotlib.get_data_path()) / "fonts/ttf").glob("DejaVuSans*.ttf")):
        fontManager.addfont(file)
        fontManager.ttflist.insert(0, fontManager.ttflist.pop())
