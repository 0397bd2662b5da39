"""Each kind of thing that a role does has a colour, the same in every view."""

from __future__ import annotations

COLOURS = {
    "tile": "#8c959f",
    "wait": "#d4351c",
    "issue": "#1f6feb",
    "load": "#8250df",
    "fragments": "#bf8700",
    "vector": "#2da44e",
    "store": "#0a3069",
    "end": "#8c959f",
}
