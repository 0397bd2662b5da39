"""Makes the section of docs/pytorch-measurements.md on forward plus backward from its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from pages.cells import ALONE, SDPA, about_lengths, divided, over_lengths, read, span, speeds, spread
from pages.made import RESULTS
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow, Timed
from tl_attention.lab.measure.records import grouped
from tl_attention.lab.show.table import markdown

RECORD, INPUTS, PAIR = (RESULTS / f"{name}-h200.jsonl" for name in ("backward", "training-cudnn-inputs", "pair"))
# Words of a group of PAIR, by what stands before and behind its last d.
KINDS = {"": "1k to 16k tokens, ", "window_": "a window of 1024, ", "packed_": "12 packed prompts, causal, "}
HEADS = {"64": "32 heads of 64", "96": "16 heads of 96", "128": "16 heads of 128", "128_gqa": "32 on 8 heads of 128"}
# What ours is called says who computes its gradients.
BY = ", gradients by "


def section(rows: Sequence[CellRow]) -> str:
    """Makes the section: a table over lengths for each of SDPA's backends, and one of the other problems."""
    return "\n\n".join(_parts(rows))


def _parts(rows: Sequence[CellRow]) -> Iterator[str]:
    of_lengths, others = divided(rows)
    yield f"{about_lengths((of_lengths or rows)[0])} {_operators(rows)}"
    for peer, name in SDPA.items():
        if found := speeds(of_lengths, peer):
            yield (f"Vs. {name} in {len(found)} problems, our speed is {spread(found)}:")
            yield over_lengths(of_lengths, {peer: name})
    if others:
        yield markdown(ALONE, [line for row in others for line in _beside_each(row)])


def _operators(rows: Sequence[CellRow]) -> str:
    """Says which operator computes our gradients, and where it is not the first row's."""
    cells = grouped(rows, lambda row: row.ours.what.partition(BY)[2])
    (most, _), *others = sorted(cells.items(), key=lambda of: -len(of[1]))
    rest = "".join(f", and by `{name}` in {', '.join(row.cell for row in of)}" for name, of in others)
    return f"Our gradients are computed by `{most}` in {len(cells[most])} of {len(rows)} problems{rest}."


def _beside_each(row: CellRow) -> Iterator[list[str]]:
    """Yields a line for each peer of a cell that stands alone."""
    ms = row.ours.median_ms
    for peer in row.peers:
        entry = row.entry(peer)
        if entry is not None:
            speed = row.speed(OURS, peer)
            own = row.ours.status if ms is None else f"{ms:.3f}"
            yield [str(row.shape), own, f"{speed.ratio:.3f}" if speed else "", _words(entry)]


def _words(entry: Timed) -> str:
    """Names a peer, and says why it was not timed."""
    name = SDPA.get(entry.what, entry.what)
    return name if entry.status == "ok" else f"{name}: {entry.status}, {entry.reason}"


def pair() -> str:
    """Makes the table of the backward alone by a pair of schedules, a line for each kind of problem."""
    lines = [
        [KINDS[kind] + HEADS[heads], str(len(of)), *(spread(speeds(of, peer)) for peer in SDPA)]
        for (kind, _, heads), of in grouped(read(PAIR), lambda row: row.group.rpartition("d")).items()
    ]
    return markdown(["problems", "how many", *SDPA.values()], lines)


def answer() -> str:
    """Gives our speed of forward and backward beside SDPA's, over the problems of several lengths."""
    rows, _ = divided(read(RECORD))
    found = {name: speeds(rows, peer) for peer, name in SDPA.items()}
    told = " and ".join(
        f"{span(of, 2, 'x')} the speed of {name} (geometric mean {geometric_mean(of):.2f}x)"
        for name, of in found.items()
    )
    return f"In {len(rows)} problems we have {told}."
