"""Speed beside FlashAttention-3 as bars, an SVG: a group of bars for each head size, one for each length and mask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tl_attention.measure.cell import OURS
from tl_attention.measure.cell_records import CellRow
from tl_attention.problem.mask import CAUSAL

# Pixels: of a bar, between groups, of the margins, and for each tenth of speed.
BAR, GAP, LEFT, TOP, BOTTOM, TENTH = 14, 26, 48, 44, 30, 60
FULL_COLOUR, CAUSAL_COLOUR, LINE, TEXT = "#4878a8", "#e09040", "#999", "#444"
Bar = tuple[CellRow, float]


@dataclass(frozen=True)
class Scale:
    """Speeds from `lowest` to `highest`, in tenths."""

    lowest: int
    highest: int

    @classmethod
    def of(cls, speeds: Sequence[float]) -> Scale:
        """That has room for them, and for a tenth above and below 1."""
        return cls(min(9, math.floor(min(speeds) * 10)), max(11, math.ceil(max(speeds) * 10)))

    def y(self, speed: float) -> float:
        """Its place from above."""
        return TOP + TENTH * (self.highest - 10 * speed)

    @property
    def bottom(self) -> float:
        """The place of the lowest."""
        return self.y(self.lowest / 10)


def chart(rows: Sequence[CellRow], peer: str = "fa3", name: str = "FlashAttention-3") -> str:
    """The picture of all cells that were timed beside the peer, group by group; bars begin at 1, which is its speed."""
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        if speed := row.speed(OURS, peer):
            groups.setdefault(row.group, []).append((row, speed.ratio))
    scale = Scale.of([speed for found in groups.values() for _, speed in found] or [1.0])
    width = LEFT + sum(len(found) * BAR + GAP for found in groups.values())
    height = scale.bottom + BOTTOM
    body = [*_lines(scale, width), *_bars(scale, list(groups.values())), *_legend(name)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" font-family="sans-serif" '
    paper = f'<rect width="{width}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([f'{head}font-size="12" fill="{TEXT}">', paper, *body, "</svg>\n"])


def _lines(scale: Scale, width: int) -> Iterator[str]:
    for tenth in range(scale.lowest, scale.highest + 1):
        y = scale.y(tenth / 10)
        yield f'<path d="M{LEFT} {y:g}H{width}" stroke="{LINE}" stroke-width="{2 if tenth == 10 else 0.5}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{tenth / 10:.1f}</text>'


def _bars(scale: Scale, groups: Sequence[Sequence[Bar]]) -> Iterator[str]:
    x = LEFT + GAP // 2
    for group in groups:
        for number, (row, speed) in enumerate(group):
            top, bottom = sorted((scale.y(speed), scale.y(1.0)))
            colour = CAUSAL_COLOUR if row.shape.mask == CAUSAL else FULL_COLOUR
            place = f'x="{x + number * BAR}" y="{top:.1f}" width="{BAR - 2}" height="{bottom - top:.1f}"'
            yield f'<rect {place} fill="{colour}"><title>{escape(row.cell)}: {speed:.3f}</title></rect>'
        middle, text = x + len(group) * BAR / 2, escape(group[0][0].group)
        yield f'<text x="{middle:g}" y="{scale.bottom + 18:g}" text-anchor="middle">{text}</text>'
        x += len(group) * BAR + GAP


def _legend(name: str) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="16">speed as a part of that of {escape(name)}; in each group from short to long</text>'
    for number, (text, colour) in enumerate((("without a mask", FULL_COLOUR), ("causal", CAUSAL_COLOUR))):
        x = LEFT + number * 130
        yield f'<rect x="{x}" y="23" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 15}" y="32">{text}</text>'
