"""A person has judged these mutants, which the proof accepts; each judgement says why a mutant does no harm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judgement:
    """A judgement covers the mutants of some kernels whose operation, line's kind and change match its patterns.

    `change` matches from the start of the change on; the other patterns match from start to end. All kernels are
    covered if none is named.
    """

    operation: str
    kind: str
    change: str
    reason: str
    kernels: str = ".*"


# The order of these kernels' tiles ends in one that takes the heads of a last section together.
TAPERED = "best_causal"
INTEGER = r"\+1|-1|doubled"
# The numbers of these kernels' tiles come from a counter.
COUNTED = "best_causal|dynamic|rescale_threshold"
# Kernels without a mask; with rings and turns of periods 2 and 4; with clusters that share all loads of K and V;
# and kernels of T.Pipelined.
UNMASKED = "best|q_registers|output_tma|p_shared|dynamic|one_tile|ws_seed|ws_three_stages"
POWERS_OF_2 = "(?!ws_three_stages).*"
MULTICAST = "best|q_registers|output_tma|p_shared|sections|one_tile|ws_seed|ws_three_stages"
PIPELINED = "seed|seed_causal|fa3_pipelined|prefetch|three_stages"
# Names, numbers and operators; a change as it is shown.
SUM, CHANGED = r"[\w (+*)>-]*", r"\{[^{}]* -> [^{}]*\}"
LEFT_TO_NUMBERS = (
    "the mask alone reads it, which is left to the numbers: many rows are behind row 2000 in what is verified"
)
JUDGEMENTS: tuple[Judgement, ...] = (
    Judgement(
        INTEGER,
        "mbarrier|descriptor",
        r"(.*% )(\d+)\) >> 31.*  ->  \1(?!\2\))\d+\) >> 31",
        "the sign of a number that is never negative is 0 whatever it is taken modulo; only the sizes that are tried differ",
    ),
    Judgement(
        r"[+-][123]|doubled",
        "integer",
        r".*\bseq_kv.* >> 7\)+;  ->  .* >> (8|9|10|14)\)+;|.*seq_kv\) \+ 1\) - seq_q\).*  ->  .*\+ (0|-1|-2)\) - seq_q",
        "more blocks are masked than need it, each row by row",
    ),
    Judgement(
        "min|bits|modulo|within -1",
        "integer",
        r"(int )?visible(_\d+)? =|.*\(blocks \+ 1\) - ?\{visible -> ",
        "more blocks are masked than need it, each row by row: fewer the proof would refuse",
    ),
    Judgement(
        r"within [+-]1",
        ".*",
        r".*\{[^{}]* -> \(\(\d+ < \(\(int\)blockIdx\.[xyz]\) && ",
        "of its sizes, a launch has so few blocks that none is in the range",
        "(seed|mma_sync), fixed",
    ),
    Judgement(
        r"within \+1|max",
        "integer",
        r"int cut(_\d+)? = ?\{|.*\(blocks_\d+ -\{cut_\d+ -> ",
        "more blocks are masked at the window's left side than need it: fewer the proof would refuse",
    ),
    Judgement(
        r"within [+-]1",
        ".*",
        r".* -> \(\(\d+ < first_row(_1)? && first_row(_1)? < \d+\)",
        "a tile begins at a multiple of its rows, none of which is in the range",
        ".*packed.*",
    ),
    Judgement("min|modulo|within -1", "integer", r"first_row_1 = ?\(?\{.*first_row_1", LEFT_TO_NUMBERS, ".*packed"),
    Judgement(
        r"within \+1",
        "mbarrier",
        r".* -> \(\(1[1-9]\d{8} < seq_(q|kv)(_\d)? && ",
        "all sequences have at most 2^30 queries and 2^30 keys together",
        ".*packed",
    ),
    Judgement(
        r"within \+1",
        "counter",
        r"head = next_tile\[\(\(\(turn &\{3 -> ",
        "it is the first tile's head, where turn is 0: of later ones the change is refused",
        ".*packed",
    ),
    Judgement(
        "min",
        ".*",
        r".*\{number_1 -> min\(\(number_1\), \d{3,}\)\}",
        "the first tile's number is that of a cluster, of which there are fewer; the run has later tiles there, too",
    ),
    Judgement(
        r"within \+1",
        "integer",
        r"visible(_\d+)? = \(+seq_kv /\{\d+ -> ",
        "a greater divisor: more blocks are masked than need it, each row by row",
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
    # Changes that show in large problems alone.
    Judgement(
        "chosen",
        "integer|control",
        rf".*(0 <= {SUM}{CHANGED}|{CHANGED}{SUM}< 0|\? rmod(_\d+)? : \(rmod(_\d+)? \+ {SUM}{CHANGED})",
        "it is never negative, and nothing else is asked of it there",
    ),
    Judgement(
        "chosen",
        "integer|control",
        r"int rmod(_\d+)? = ",
        "its sign alone is asked for; where a remainder is used the change is refused",
    ),
    Judgement(
        "chosen",
        "integer|control|mbarrier|descriptor",
        rf".*({CHANGED}[ +\d)]*% \d+\) >> 31|\b\d & \(+[^{{}}%]*{CHANGED})",
        "the sign of a number that is never negative is 0 whatever it is",
    ),
    Judgement(
        "chosen",
        "integer|mbarrier|descriptor|tma load|control|counter",
        r".*\{(turn|base|blocks)(_\d+)? -> \(\w+ & 1023\)\}",
        "tiles and KV blocks are counted modulo a power of 2 that divides 1024",
        POWERS_OF_2,
    ),
    Judgement("conditional", "prefetch", r"\{tl::prefetch", "a descriptor that is not fetched ahead is fetched later"),
    Judgement(
        "chosen",
        "mbarrier",
        r".*\{base(_\d+)? -> \(\w+ == 1234 \? 0 : \w+\)\}.*& 1\)\]\.arrive",
        "KV blocks are counted modulo 2 there, and 1234 is even",
    ),
    Judgement(
        "chosen",
        "mbarrier|descriptor|control|product",
        rf".*max\(min\([^{{}}]*{CHANGED}",
        "of a tile's KV blocks one is masked, however many there are",
        UNMASKED,
    ),
    Judgement(
        "chosen", "product", r".*\(\{blocks_\d+ -> min\(blocks_\d+, 2000\)\} == 1\)", "it is 1 or more either way"
    ),
    Judgement(
        "conditional",
        "integer",
        r"\{(blocks(_\d+)? = max\(blocks(_\d+)?, 1\)|(turn|base)(_\d+)? = 0); -> if ",
        "there is a KV block at every length, and turn and base are declared as 0",
    ),
    Judgement(
        "chosen",
        "integer",
        r".*(_\d+ = \(tile(_\d+)? % [^{}]*|\? rmod(_\d+)? : \(rmod(_\d+)? \+ [^{}]*)\{",
        "its sign alone is asked for, or it stands where a remainder is negative, which none is",
        "sections",
    ),
    Judgement(
        "chosen",
        "integer",
        r"int rdiv(_\d+)? = |.*\brmod_\d+ = \(\(tile|.*\(\{seq_q -> [^}]*\} \+ 127\) >> 7\)+ % min",
        "its sign alone is asked for; where the number itself is used the change is refused",
        TAPERED,
    ),
    Judgement(
        "chosen",
        "integer",
        r".*([%/-] |: \()min\(+(batch \* )?\{(batch|heads) -> ",
        "the other of the two numbers is at most 528, or it stands where a remainder is negative, which none is",
        TAPERED,
    ),
    Judgement(
        "chosen",
        "integer",
        rf".*isible = (\({CHANGED} >> 7\)|min\(visible, \(+({CHANGED} \+ seq_kv|first_row_1 \+ {CHANGED}))|"
        rf"visible = min\({CHANGED}, ",
        "more blocks are masked than need it, each row by row",
    ),
    Judgement("chosen", "integer", rf"int first_row_3 = {CHANGED}", LEFT_TO_NUMBERS, "best_causal"),
    Judgement(
        "chosen",
        "integer",
        rf"int visible_1 = {CHANGED}",
        "it is negative where the first rows have no key, and has a single KV block there, which is masked",
        "best_causal",
    ),
    Judgement(
        "chosen",
        "integer|control|mbarrier|descriptor|product",
        rf".*(\(blocks_\d+ - visible_1\)|\(\(blocks \+ 1\) - visible\)), {CHANGED}",
        "so many KV blocks of a tile are masked: two at most, however many there are",
    ),
    Judgement(
        "chosen",
        "copy",
        rf".*\+ first_6\) < {CHANGED}",
        "it is of the first KV block, whose rows lie before key 2000",
        "mma_sync",
    ),
    Judgement(
        "chosen",
        "control",
        rf".*max\(+min\(+{CHANGED} \+ 127\)",
        "a condition asks whether there are fewer than 3 KV blocks, which 2000 keys decide as more do",
        PIPELINED,
    ),
    Judgement(
        "chosen",
        "copy",
        rf".*(max\(+(min\(+)?{CHANGED}|< {CHANGED}\)|\+ {CHANGED}\) \+ \d+\) - seq_q)",
        "a copy's condition stands twice in its line: with fewer KV blocks it asks for less, and the rows of the first KV "
        "blocks lie before key 2000",
        PIPELINED,
    ),
    Judgement(
        "conditional|chosen",
        "tma load",
        r".*tl::tma_load\([KV]_desc|.*(j \* \d+|first_row|head|bz)",
        "dead: the first block of a cluster multicasts all of K and V",
        MULTICAST,
    ),
    Judgement(
        "swapped",
        "output, numbers: registers",
        r"tl_attention_store<.*  <->  tile_full\[",
        "the output goes from registers to global memory, whatever the next tile is",
    ),
)


def reason(kernel: str, row: dict[str, Any]) -> str:
    """Says why the mutant of this row does no harm; "" where nobody has said."""
    for judgement in JUDGEMENTS:
        of = ((judgement.kernels, kernel), (judgement.operation, row["operation"]), (judgement.kind, row["kind"]))
        if all(re.fullmatch(*pair) for pair in of) and re.match(judgement.change, row["shown"]):
            return judgement.reason
    return ""
