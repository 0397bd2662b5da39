"""One self-contained HTML page reports a search over schedules: what was raced, what was left out, and what won."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import SEARCH_PAGE

TEMPLATE = Path(__file__).with_name("search.html")
DATA = "/*SEARCH*/{}"


def write(told: Mapping[str, Any], file: Path) -> None:
    """Writes a page of what a search told; the page's script documents the keys of that mapping."""
    user_file.write(file, text(told), SEARCH_PAGE)


def text(told: Mapping[str, Any]) -> str:
    """Returns the text of a page of what a search told."""
    # JSON has no word for NaN and infinities: the page shows them as what is not known.
    known = json.loads(json.dumps(told), parse_constant=lambda _: None)
    # No text can end the element that holds the data.
    return TEMPLATE.read_text().replace(DATA, json.dumps(known, separators=(",", ":")).replace("<", "\\u003c"))
