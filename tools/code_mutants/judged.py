"""What a person has judged of mutants that the proof accepts, each with the reason why it does no harm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judgement:
    """Of every mutant of those kernels, all if none is named, whose operation, line's kind and change match.

    The change from its start, the others from start to end.
    """

    operation: str
    kind: str
    change: str
    reason: str
    kernels: str = ".*"


INTEGER = r"\+1|-1|doubled"
# Their tiles' numbers come from a counter.
COUNTED = "best_causal|dynamic|rescale_threshold"
JUDGEMENTS: tuple[Judgement, ...] = (
    Judgement(
        INTEGER,
        "mbarrier|descriptor",
        r"(.*% )(\d+)\) >> 31.*  ->  \1(?!\2\))\d+\) >> 31",
        "the sign of a number that is never negative is 0 whatever it is taken modulo; only the sizes that are tried differ",
    ),
    Judgement(
        INTEGER,
        "integer",
        r".*\bseq_kv.* >> 7\)+;  ->  .* >> (8|14)\)+;",
        "more blocks are masked than need it, each row by row",
    ),
    Judgement(
        "deleted|swapped",
        "fence",
        r"tl::fence_proxy_async\(\);($|  <->  for \(int j = 0; j < blocks_2)",
        "of the counter's producer: ordinary instructions touch nothing that its TMA loads write",
        COUNTED,
    ),
    Judgement(
        f"deleted|swapped|{INTEGER}",
        "named barrier|mbarrier",
        r"(tile_full.*  <->  )?tl::__sync_thread_partial\(3, 32\);($|  ->  |  <->  tile = next_tile)",
        "each lane of the producer has waited for the tile's number itself, and none can write the next one there before"
        " all have arrived",
        COUNTED,
    ),
    Judgement(
        "swapped",
        "output, numbers: registers",
        r"tl_attention_store<.*  <->  tile_full\[",
        "the output goes from registers to global memory, whatever the next tile is",
    ),
)


def reason(kernel: str, row: dict[str, Any]) -> str:
    """Why the mutant of this row does no harm; "" where nobody has said."""
    for judgement in JUDGEMENTS:
        of = ((judgement.kernels, kernel), (judgement.operation, row["operation"]), (judgement.kind, row["kind"]))
        if all(re.fullmatch(*pair) for pair in of) and re.match(judgement.change, row["shown"]):
            return judgement.reason
    return ""
