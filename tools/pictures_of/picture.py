"""What a picture is: a name, the records that it is made from, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from pictures_of.style import styled
from tl_attention.measure.records import Measured

Draw = Callable[[Path], Figure]


@dataclass(frozen=True)
class Picture:
    """`records` are files in results/ without which there is no picture; `draw` takes the folder that they are in."""

    name: str
    records: tuple[str, ...]
    draw: Draw

    def missing(self, results: Path) -> list[str]:
        """The records that are not there."""
        return [name for name in self.records if not (results / name).exists()]

    def drawn(self, results: Path) -> Figure:
        """The figure, in the style of all of them whatever the machine's settings are."""
        with styled():
            return self.draw(results)


def measured(rows: Iterable[Measured], *records: str) -> str:
    """Where, when and in which records, if they are named: the first words of a foot."""
    found = [row for row in rows if row.device]
    devices = " and one ".join(sorted({f"{row.device}" for row in found}))
    limits = sorted({row.power_limit_w for row in found if row.power_limit_w})
    limit = f" ({' and '.join(f'{watts:.0f} W' for watts in limits)})" if limits else ""
    days = sorted({row.run[:10] for row in found})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = f"; {', '.join(f'results/{name}' for name in records)}" if records else ""
    return f"Measured on one {devices}{limit}, {when}{where}."
