"""This module shows a timeline as a table: where the time of each role goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from tl_attention.errors import InputError
from tl_attention.lab.show.table import Table
from tl_attention.lab.trace.critical import critical_path, path_in_words
from tl_attention.lab.trace.shares import shares_of_block, tensor_pipe
from tl_attention.lab.trace.steady import steady
from tl_attention.lab.trace.timeline import Timeline, What


def table(timeline: Timeline) -> Table:
    """Makes a table of what each role of the first traced thread block does, as percent of its whole tiles' cycles."""
    block = timeline.lines[0].block
    roles = shares_of_block(timeline, block)
    total = Counter[What]()
    for shares in roles.values():
        total.update({what: round(1e6 * cycles / shares.cycles) for what, cycles in shares.parts.items()})
    lines = [
        (str(what), *(f"{100 * shares.parts.get(what, 0) / shares.cycles:.1f} %" for shares in roles.values()))
        for what, _ in total.most_common()
    ]
    lines.append(("cycles of a tile", *(f"{shares.cycles / shares.tiles:,.0f}" for shares in roles.values())))
    lines.append(("tiles", *(str(shares.tiles) for shares in roles.values())))
    about = timeline.about
    title = f"{about.name}, {about.shape}, {about.device}, thread block {block}"
    return Table.plain(title, ("what", *roles), lines)


def below(timeline: Timeline) -> Iterator[str]:
    """Yields lines on how busy the tensor pipe was, and what the marks changed; a predicted timeline has no marks."""
    about = timeline.about
    roles = shares_of_block(timeline, timeline.lines[0].block)
    if not roles:
        yield "no role shows a whole tile: `python tools/measure.py timeline --iterations` notes more of them"
    busy = tensor_pipe(timeline, [*roles.values()])
    if busy is not None:
        also = f"; ncu counts {about.ncu.percent:.1f} % in the whole kernel with these marks" if about.ncu else ""
        yield f"tensor pipe busy: {100 * busy:.1f} % of the cycles, by the instructions issued{also}"
    with suppress(InputError):  # Not every timeline shows steady iterations.
        yield f"critical path of two iterations: {path_in_words(critical_path(timeline, steady(timeline)))}"
    if predicted := about.predicted:
        yield (
            f"predicted by a model of {predicted.machine}: {predicted.ms:.3f} ms a launch; tiles of {predicted.blocks} "
            "KV blocks"
        )
    if about.tile_cycles:
        few, all_marks = about.tile_cycles
        yield f"cycles of a tile: {all_marks:,.0f} with these marks, {few:,.0f} with those of tiles alone ({all_marks / few:.3f})"
    if about.time_with_marks:
        median, least, most = about.time_with_marks
        yield (
            f"time of the kernel with marks: {median:.3f} of that without ({least:.3f} to {most:.3f}, {about.rounds} rounds)"
        )
    for name, (plain, marked) in about.machine_code.items():
        if plain != marked:
            yield f"{name}: {_told(plain)} without marks, {_told(marked)} with them"


def _told(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
