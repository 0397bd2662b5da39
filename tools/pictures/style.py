"""Pictures share sizes, colours that differ in grey too, and settings that give the same bytes on each machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import matplotlib.style

from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.trace.fonts import own_fonts_first

# Keywords of a line, a mark or a text of matplotlib's.
Style = dict[str, Any]
# Points. Nothing is smaller than SMALL, in a picture that is shown as wide as it is drawn.
SMALL, NORMAL, TITLE = 8.0, 9.0, 12.0
TEXT, QUIET, LINE, PAPER = "#1a1a1a", "#4d4d4d", "#b8b8b8", "#ffffff"
# From dark to light, so that they are apart in grey; each has a marker and dashes of its own besides.
COLOURS = {OURS: "#12355b", "fa3": "#c2410c", "cudnn": "#2a9d8f", "flash2": "#e3b23c"}
MARKERS = {OURS: "o", "fa3": "s", "cudnn": "^", "flash2": "D"}
DASHES: dict[str, Any] = {OURS: "-", "fa3": (0, (4, 1.5)), "cudnn": (0, (7, 2, 1.5, 2)), "flash2": (0, (1.5, 1.5))}
NAMES = {OURS: "tl-attention", **PEER_NAMES}

# Letters are drawn as paths of matplotlib's own font, and identifiers hashed with a fixed salt.
RC: Style = {
    "font.family": "DejaVu Sans",
    "font.size": NORMAL,
    # So that letters are as wide in one format as in the other.
    "text.hinting": "none",
    "text.color": TEXT,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": TEXT,
    "axes.labelsize": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": NORMAL,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "tl-attention",
    "path.simplify": False,
}


def styled() -> AbstractContextManager[None]:
    """Returns the context in which figures are made and saved, whatever a machine's own settings are."""
    own_fonts_first()
    return matplotlib.style.context(["default", RC], after_reset=True)


def lightness(colour: str) -> float:
    """Returns the CIE L* of `#rrggbb`, 0 for black to 100 for white: what is left of a colour in grey."""
    linear = [_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5)]
    y = sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722)))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def ink_on(colour: str) -> str:
    """Chooses black or white: the ink that is read better on a colour."""
    return TEXT if lightness(colour) > 55 else PAPER


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
