"""The reads of tensors that have a number for each head: a tile takes that of its own head, before it is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tl_attention.problem.features import INPUTS, Feature, features_of
from tl_attention.proof.events import Event
from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class

PER_HEAD = "of its head"
# What a tile begins with where a block works on several.
Q_FULL = "Q_full"
TENSORS = tuple(feature.name for feature in INPUTS if feature.kind == "per head")


def _read(match: re.Match[str], declared: Declared) -> Made:
    declared.register(match[1])
    tensor, head = match[2], declared.expression(match[3])

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(threads, line, PER_HEAD, tensor, value=run.value(head, threads))

    return Made(act)


PER_HEAD_CALLS = (
    # own[0] = Sinks[((int64_t)head_3)];
    Call(PER_HEAD, re.compile(rf"(\w+)\[0\] = ({'|'.join(TENSORS)})\[(.+)\];$"), _read),
)


def check_per_head(events: Sequence[Event], parameters: Iterable[str], heads: Sequence[int]) -> None:
    """Raise Unsafe unless a process reads each such tensor at these heads, one for each of its tiles.

    It does so before it stores rows of that head and, where scores need the number, before the tile's first product.
    """
    for feature in features_of(parameters):
        if feature.name in TENSORS:
            _check_tensor(events, feature, heads)


def _check_tensor(events: Sequence[Event], feature: Feature, heads: Sequence[int]) -> None:
    tensor, found, tiles = feature.name, list[int](), 0
    for event in events:
        if event.kind == PER_HEAD and event.name == tensor:
            found.append(event.value)
        elif event.kind == "wait" and event.name == Q_FULL:
            tiles += 1
        elif feature.before_scores and event.kind == "product" and len(found) < max(tiles, 1):
            raise Unsafe(f"it multiplies before it reads {tensor}")
        elif event.kind in ("store", "output") and found[-1:] != [event.place[1]]:
            raise Unsafe(f"it stores rows of head {event.place[1]} with {tensor} of heads {found[-1:]}")
    if found != list(heads):
        raise Unsafe(f"it reads {tensor} of heads {found}, expected {list(heads)}")
