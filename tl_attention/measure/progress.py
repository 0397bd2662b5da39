"""How far a run is, for whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of each step: `phase` starts one of `total` steps, `advance` ends a step."""

    def phase(self, name: str, total: int) -> None: ...
    def advance(self, what: str) -> None: ...


class Silent:
    """Progress that nobody sees."""

    def phase(self, name: str, total: int) -> None: ...
    def advance(self, what: str) -> None: ...


SILENT = Silent()
