"""Says in schedule/files/defaults.yaml what records have of each rule's schedule."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

from pages.cells import NAMES, length, read, record, speeds
from pages.decode import beside
from pages.made import ROOT, Make
from pages.results import ratios
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.show.cells import binding_peer
from tl_attention.problem.mask import CAUSAL
from tl_attention.schedule.files.conditions import NONE_YET, Case
from tl_attention.schedule.files.defaults import FILE, defaults

# The schedules of the grid of lengths in both dtypes, and whether it is causal there.
OF_GRID = {"best": False, "best_causal": True}
ENTRY = re.compile(r"^    record:.*\n(?:      .*\n)*", re.M)


def said() -> Iterator[str]:
    """Yields what the records say of each rule, in the order of the rules."""
    stems = ("cells", "grid", "packed", "decode", "packed-decode")
    cells, grid, packed, few, few_packed = (read(record(stem)) for stem in stems)
    for number, rule in enumerate(defaults().rules):
        for_packed = not rule.holds("packed", False)
        own, of_few, of_few_packed = (
            [row for row in rows if defaults().choose(Case.of(row.shape)) == number and row.ours.what == rule.schedule]
            for rows in (packed if for_packed else cells, few, few_packed)
        )
        if for_packed:
            yield packed_mean(of_few_packed, "packed-decode") if of_few_packed else packed_mean(own)
        elif of_few:
            yield decode_mean(of_few)
        elif rule.schedule in OF_GRID and rule.head_dims == (128,):
            yield grid_means(grid, OF_GRID[rule.schedule])
        else:
            yield each_speed(own)


def packed_mean(rows: Sequence[CellRow], stem: str = "packed") -> str:
    """Says the mean over the cells of packed sequences."""
    if not rows:
        return NONE_YET
    mean = geometric_mean(speeds(rows, "fa3"))
    return f"{record(stem).name} says {mean:.3f} x FlashAttention-3, geometric mean of {len(rows)} kinds of lengths and heads"


def decode_mean(rows: Sequence[CellRow]) -> str:
    """Says the mean over the cells of few queries on many keys."""
    found = beside(rows)
    mean = f"{geometric_mean(found):.3f} x the faster of FlashAttention-3 and cuDNN"
    return f"{record('decode').name} says {mean}, geometric mean of {len(found)} problems"


def grid_means(rows: Sequence[CellRow], causal: bool) -> str:
    """Says the means over lengths and numbers of heads."""
    lengths = sorted({row.shape.seq_kv for row in rows})

    def mean(dtype: str, peer: str) -> str:
        return f"{geometric_mean(ratios(rows, dtype, peer, causal)):.3f} x {NAMES[peer]}"

    return (
        f"{record('grid').name} says {mean('bfloat16', 'fa3')} in bf16 and {mean('float16', 'cudnn')} in fp16, "
        f"{'' if causal else 'not '}causal, geometric means over {lengths[0]} to {lengths[-1]}"
    )


def each_speed(rows: Sequence[CellRow]) -> str:
    """Says each cell's speed beside the peer that it is shown with, and its number of keys."""
    speeds: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        peer = binding_peer(row)
        if peer and (speed := row.speed(OURS, peer)):
            causal = ", causal" if row.shape.mask == CAUSAL else ""
            speeds.setdefault(f"{NAMES[peer]}{causal}", []).append((f"{speed.ratio:.3f}", length(row.shape.seq_kv)))
    words = []
    for words_of_peer, found in speeds.items():
        peer, causal, _ = words_of_peer.partition(", causal")
        ratios_of, lengths = (" and ".join(", ".join(of).rsplit(", ", 1)) for of in zip(*found, strict=True))
        words.append(f"{ratios_of} x {peer} at {lengths} keys{causal}")
    return f"{record('cells').name} says {'; '.join(words)}" if speeds else NONE_YET


def entry(words: str) -> str:
    """Returns the words as they stand in the file, with the key `record`."""
    line = f"    record: {words}\n"
    if len(line) <= 121 and ": " not in words:
        return line
    return "    record: >-\n" + textwrap.indent(textwrap.fill(words, 114, break_on_hyphens=False), " " * 6) + "\n"


def with_words(file: Path, said: Callable[[], Iterator[str]]) -> dict[str, Make]:
    """Returns the entry of a file of rules whose words of the records are made anew."""

    def page() -> str:
        words = said()
        return ENTRY.sub(lambda found: entry(next(words)), file.read_text("utf-8"))

    return {str(file.relative_to(ROOT)): page}


MADE = with_words(FILE, said)
