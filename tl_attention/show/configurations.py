"""The best configuration of each tile as a table, those of "flash attention from scratch" beside them."""

from __future__ import annotations

from collections.abc import Sequence

from tl_attention.configurations import published
from tl_attention.configurations.configuration import Configuration, parse, tile_text
from tl_attention.hardware.card import CARDS, KIB
from tl_attention.measure.records import Row

# On in all of the space, as the text leaves it out too.
ALWAYS_ON = "async+eager+swizzled"
HEADINGS = (
    "tile",
    "where",
    f"options behind {ALWAYS_ON}",
    "TFLOPS",
    "% of best",
    "registers per thread",
    "bytes spilled",
    "shared KiB per block",
    "warps per SM",
)
THERE = f"text, {published.CARD.name}"


def of_record(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(a row of each configuration, the second rows of the best of each tile), those of the newest choice in a record."""
    mine = [row for row in rows if row.name.startswith("(")]
    newest = max((row.measured_in for row in mine), default="")
    first: dict[str, Row] = {}
    best: list[Row] = []
    for row in mine:
        if row.measured_in == newest:
            best += [row] if row.name in first else []
            first.setdefault(row.name, row)
    return list(first.values()), sorted(best, key=lambda row: row.median_ms or 0.0)


def counted(rows: Sequence[Row]) -> str:
    """How many there were, and what became of them: a choice's rows, one of each configuration."""
    refused = sum(row.fingerprint is None for row in rows)
    left_out = [row for row in rows if row.status == "compiled"]
    same = sum(bool(row.same_code_as) for row in left_out)
    timed = sum(row.median_ms is not None for row in rows)
    return (
        f"{len(rows)} in the space: {refused} were refused before they were timed, and {len(rows) - refused} were compiled. Among "
        f"the compiled ones {len(left_out) - same} were left out for spills or room, {same} have the same code as another, and "
        f"{timed} were timed"
    )


def best_of_tiles(rows: Sequence[Row]) -> list[list[str]]:
    """The table's lines under HEADINGS: each row, which a configuration names, and behind it what the text has of its tile.

    The parts are of the best here, and of the best there. What a row lacks is left empty: its times where there was no
    GPU, and all that was compiled where it was refused.
    """
    there = {line.configuration.tile: line for line in published.BEST}
    here = [(parse(row.name), row) for row in rows]
    most = max((row.tflops for row in rows if row.tflops is not None), default=0.0)
    found: list[list[str]] = []
    for configuration, row in here:
        found.append([tile_text(configuration.tile), _where(row), *_of_row(configuration, row, most)])
        if line := there.get(configuration.tile):
            found.append(["", THERE, *_of_text(line)])
    return found


def _where(row: Row) -> str:
    return row.device or f"compiled for {CARDS[row.arch].name}"


def _of_row(configuration: Configuration, row: Row, most: float) -> list[str]:
    options, rate = _options(configuration), _rate(row.tflops, most)
    if row.registers is None or row.shared_bytes is None:
        return [options, *rate, *[""] * 4]
    warps = CARDS[row.arch].warps_per_sm(configuration.threads, row.registers, row.shared_bytes)
    return [options, *rate, *_resources(row.registers, row.stack_bytes or 0, row.shared_bytes, warps)]


def _of_text(line: published.Published) -> list[str]:
    most = max(other.tflops for other in published.BEST)
    resources = _resources(line.registers, line.stack_bytes, line.shared_bytes, line.warps_per_sm)
    return [_options(line.configuration), *_rate(line.tflops, most), *resources]


def _options(configuration: Configuration) -> str:
    return str(configuration).partition(": ")[2].removeprefix(f"{ALWAYS_ON}+")


def _rate(tflops: float | None, most: float) -> list[str]:
    return ["", ""] if tflops is None else [f"{tflops:.1f}", f"{100 * tflops / most:.1f}"]


def _resources(registers: int, stack_bytes: int, shared_bytes: int, warps: int) -> list[str]:
    return [str(registers), str(stack_bytes), f"{shared_bytes / KIB:g}", str(warps)]
