"""The options of a schedule in words: all of `lowering: warp_specialized`, those that its file sets marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tl_attention.loop.attention import SOURCE
from tl_attention.schedule.schedule import Schedule

SET = "*"
# Shown with the other registers.
ELSEWHERE = "kernel.registers"
WORDS = {
    "kernel.k_stages": "buffers of K_shared",
    "kernel.v_stages": "buffers of V_shared",
    "kernel.k_stages=None": "K_shared has num_stages buffers",
    "kernel.v_stages=None": "V_shared has num_stages buffers",
    "kernel.tile_scheduler=one_tile": "one thread block per row tile, not persistent",
    "kernel.tile_scheduler=static": "persistent, a thread block per SM takes every n-th row tile",
    "kernel.tile_scheduler=dynamic": "persistent, the next row tile comes from a counter in global memory",
    "kernel.tile_order=rows": "row tiles of one head after another, each head's longest first",
    "kernel.tile_order=tapered": "row tiles of the last heads from the longest to the shortest, to end with these",
    "kernel.tile_order=sections": "row tiles in sections of heads whose K and V fit in L2, the longest tiles first",
    "kernel.cluster=1": "no cluster, every thread block loads its own K and V",
    "kernel.cluster=2": "two thread blocks of neighbouring row tiles share each load of K and V",
    "kernel.ping_pong=True": "the two warpgroups take turns to issue their products",
    "kernel.ping_pong=False": "warpgroups issue their products when they get there",
    "kernel.q_operand=shared": "MMA0 reads Q from shared memory",
    "kernel.q_operand=registers": "MMA0 reads Q from registers",
    "kernel.output=direct": "each thread stores the 4 bytes of output that it holds",
    "kernel.output=vector": "lanes exchange the output and store 16 bytes each",
    "kernel.output=tma": "the output leaves by TMA, through the rows of Q_shared",
    "kernel.waits=exact": "a product's wait stands right behind the chunk of exponentials before it in the order",
    "kernel.waits=loose": "a product's wait stays behind the last exponential of the chunk before it in the order",
    "kernel.waits=free": "ptxas may move a product's wait before exponentials that come first in the order",
    "softmax.fused_scale=True": "the scale is part of the exponent's FMA",
    "softmax.fused_scale=False": "acc_s is scaled before the exponent, not by its FMA",
    "softmax.row_max=thread": "row_max goes on from the row's maximum so far in every thread",
    "softmax.row_max=row": "row_max starts from nothing and compares the row's maximum so far last",
    "softmax.row_sum=thread": "row_sum is summed per thread and reduced once after the loop",
    "softmax.row_sum=row": "row_sum reduces over the row in every block, not once after the loop",
    "softmax.rescale_threshold=0.0": "a row takes every new maximum, and its acc_o is rescaled",
    "softmax.rescale_threshold": "a row keeps its maximum, and its acc_o, until it would grow by more than 2^{0:g}",
    "softmax.exp2_polynomial=None": "every exponential by MUFU.EX2",
    "softmax.exp2_polynomial": (
        "1 in {0.every} exponentials of a thread, from its exponential {0.first} on, by a polynomial of degree "
        "{0.degree} on the FMA units, the others by MUFU.EX2"
    ),
    "split": "in chunks of {0} columns",
    "wait_before": "waited for before {0}, no later",
    "release_before": "{1} is released before {0}, no earlier",
}


def option_lines(schedule: Schedule) -> Iterator[str]:
    """`* kernel.cluster 2: words`, a line for each option in force; without the mark it is the default."""
    for path, value, given in _options(schedule):
        if path != ELSEWHERE:
            yield f"{SET if given else ' '} {path}{_shown(value)}: {_words(path, value)}"


def is_set(schedule: Schedule, path: str) -> bool:
    """Whether the schedule's file sets the option."""
    return next(given for found, _, given in _options(schedule) if found == path)


def _options(schedule: Schedule) -> Iterator[tuple[str, Any, bool]]:
    """(path, value, whether the file sets it); chunks and places that are not there are none."""
    for key in ("kernel", "softmax", "split", "wait_before", "release_before"):
        options: BaseModel = getattr(schedule, key)
        for name, value in options:
            given = key in schedule.model_fields_set and name in options.model_fields_set
            if value is not None or key in ("kernel", "softmax"):
                yield f"{key}.{name}", value, given


def _shown(value: Any) -> str:
    """The value as the file has it; chunks, and options of their own, are said in words."""
    if isinstance(value, bool):
        return f" {value}".lower()
    return f" {value}" if isinstance(value, str | int | float) else ""


def _words(path: str, value: Any) -> str:
    key, name = path.split(".")
    words = WORDS.get(f"{path}={value}") or WORDS.get(path) or WORDS[key]
    shown = " + ".join(map(str, value)) if isinstance(value, tuple) else value
    return words.format(shown, SOURCE.ring_of(name) if name in SOURCE.loads else "")
