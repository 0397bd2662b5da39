"""The read of a head's sink: each tile that has one takes that of its own head, before it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tl_attention.proof.events import Event
from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class

SINK = "sink"


def _read(match: re.Match[str], declared: Declared) -> Made:
    declared.register(match[1])
    head = declared.expression(match[2])

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(threads, line, SINK, value=run.value(head, threads))

    return Made(act)


SINK_CALLS = (
    # sink[0] = Sinks[((int64_t)head_3)];
    Call(SINK, re.compile(r"(\w+)\[0\] = Sinks\[(.+)\];$"), _read),
)


def check_sinks(events: Iterable[Event], heads: Sequence[int]) -> None:
    """Raise Unsafe unless a process reads the sinks of these heads, each before it stores rows of that head."""
    found: list[int] = []
    for event in events:
        if event.kind == SINK:
            found.append(event.value)
        elif event.kind in ("store", "output") and found[-1:] != [event.place[1]]:
            raise Unsafe(f"it stores rows of head {event.place[1]} with the sinks of heads {found[-1:]}")
    if found != list(heads):
        raise Unsafe(f"it reads the sinks of heads {found}, expected {list(heads)}")
