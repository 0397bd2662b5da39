"""Holds the events of a process of the warp-specialised kernel to those of its role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tl_attention.hardware.warpgroup import MEETING, WARP
from tl_attention.proof.events import NAMED, Event, Process
from tl_attention.proof.generated.per_head import PER_HEAD
from tl_attention.proof.generated.refused import Unsafe


def compare(
    process: Process, found: Sequence[Event], expected: Iterator[Event], users: dict[tuple[int, int], Process]
) -> list[bool]:
    """Refuse events that are not those of the process's role; whether each of its KV blocks is masked.

    Those that were left out of a loop are as those beside them, whose code they share.
    """
    masks: list[bool] = []
    out: list[tuple[int, int]] = []
    wanted = next(expected, None)
    number = -1
    for got in found:
        if got.kind == "left out":
            out.append((len(masks), got.value))
        if got.kind in ("left out", "output", "lse", PER_HEAD):
            continue
        number += 1
        while wanted and wanted.kind == "mask" and got.kind != "mask":
            masks.append(False)
            wanted = next(expected, None)
        if wanted and got.kind == wanted.kind == "mask":
            masks.append(True)
        elif got != wanted or _operands(got) != _operands(wanted):
            if _alone(got, process, users):
                continue
            raise Unsafe(f"operation {number} of {process} is {got}, expected {wanted or 'none'}")
        wanted = next(expected, None)
    while wanted and wanted.kind == "mask":
        masks.append(False)
        wanted = next(expected, None)
    if wanted:
        raise Unsafe(f"{process} ends before {wanted}")
    if masks:
        for at, count in reversed(out):
            masks[at:at] = [masks[at]] * count
    return masks


def _alone(event: Event, process: Process, users: dict[tuple[int, int], Process]) -> bool:
    """Whether it concerns the process alone: a fence, or a named barrier for as many threads as it has."""
    if event.kind == "sync" and event.name == NAMED and event.value == process.warps * WARP and event.index >= MEETING:
        user = users.setdefault((process.block, event.index), process)
        if user != process:
            raise Unsafe(f"{user} and {process} both use named barrier {event.index}")
        return True
    return event.kind == "fence"


def _operands(event: Event | None) -> set[tuple[object, ...]]:
    """The shared buffers that a product reads, and whether it keeps what its accumulators have; the columns put in one."""
    if event and event.kind == "put":
        return {event.place}
    if not event or event.kind != "product":
        return set()
    return {*(read[:2] for read in event.reads), ("keeps", event.place[0])}
