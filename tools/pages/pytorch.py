"""Makes what comes from data in docs/pytorch.md, its reference and its measurements."""

from __future__ import annotations

import json

from pages import backward, cells
from pages import training as of_training
from pages.cells import CARDS, PEERS, divided, read, record, speeds, spread
from pages.decode import decode, generation, mixes, packed_decode, paged
from pages.defaults import said
from pages.invariance import invariance
from pages.made import RESULTS, filling
from pages.packed import packed
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import grouped
from tl_attention.lab.show.table import markdown
from tl_attention.schedule.files.defaults import defaults

HOST, OPERATOR = (RESULTS / f"{name}-h200.jsonl" for name in ("host", "operator"))


def speed() -> str:
    """Makes the table of speed vs. the peers in bf16, a line for each kind of problem and card."""
    grids = {card: [row for row in read(record("grid", card)) if row.shape.dtype == "bfloat16"] for card in CARDS}
    cells = read(record("cells"))
    few = [row for row in read(record("decode")) if row.group.startswith("b")]
    kinds: list[tuple[str, str, list[CellRow]]] = [
        *(("head_dim 128, 1k to 32k tokens", card, rows) for card, rows in grids.items()),
        *(
            (f"head_dim {size}, 1k to 16k tokens", "h200", [row for row in cells if row.group == group])
            for size, group in (("64", "d64"), ("96", "d96"), ("192/128", "d192_128"), ("192", "d192"), ("256", "d256"))
        ),
        ("head_dim 128, softcap 30", "h200", [row for row in cells if row.group == "softcap"]),
        ("1 query, 2k to 128k keys", "h200", [row for row in few if row.shape.seq_q == 1]),
        ("4 or 16 queries, 2k to 128k keys", "h200", [row for row in few if row.shape.seq_q > 1]),
        *(
            (words, "h200", read(record(stem)))
            for words, stem in (
                ("packed", "packed"),
                ("packed, 1 to 64 queries a sequence", "packed-decode"),
                ("packed, sequences of one query with prompts", "mixes"),
            )
        ),
        ("forward and backward, 1k to 16k tokens", "h200", divided(read(backward.RECORD))[0]),
    ]
    lines = [
        [what, card.upper(), str(len(rows)), *(spread(speeds(rows, peer)) for peer in PEERS)]
        for what, card, rows in kinds
    ]
    return markdown(["problems", "card", "how many", *PEERS.values()], lines)


def rules() -> str:
    """Makes the table of which schedule serves which case, a line for each rule."""
    lines = []
    # The words of the records are taken from the records: the file may be about to be written.
    for rule, recorded in zip(defaults().rules, said(), strict=True):
        others = [words for words in rule.conditions if not words.startswith("head_dims ")]
        lines.append([", ".join(map(str, rule.head_dims)), "; ".join(others), f"`{rule.schedule}`", rule.why, recorded])
    return markdown(["head_dim", "only if", "schedule", "why", "record in `results/`"], lines)


def host() -> str:
    """Says what a call costs the host, and how long the first result of a process takes."""
    lines = [json.loads(line) for line in HOST.read_text().splitlines()]
    first = next(line for line in lines if "median_ms" in line)
    headings = ["problem", "median, us", "a tenth is faster than", "a tenth is slower than"]
    told = [
        markdown(
            ["forward and backward" if "forward and backward" in method else "a call", *headings],
            [
                [call["candidate"], call["problem"], *(f"{call[key]:.1f}" for key in ("median_us", "p10_us", "p90_us"))]
                for call in calls
            ],
        )
        for method, calls in grouped(
            [line for line in lines if "median_us" in line], lambda line: line["method"]
        ).items()
    ]
    told.append(
        f"The first result of a new process takes {first['median_ms']:.0f} ms, of which {first['of_it_import_ms']:.0f} are the "
        f"import (median of {first['n']}, the slowest {max(first['all_ms']):.0f})."
    )
    return "\n\n".join(told)


def operator() -> str:
    """Makes the table of the GPU's time of a call beside the bare kernel's."""
    rows = read(OPERATOR)
    lines = [
        [row.ours.what, str(row.shape), f"{row.ours.median_ms:.3f}", f"{speed.ratio:.4f}", f"{row.repeatability:.4f}"]
        for row in rows
        if (speed := row.speed(OURS, "kernel")) and row.repeatability is not None
    ]
    headings = ["call", "problem", "ms", "speed of the bare kernel's", "equal code entered twice differs by"]
    return markdown(headings, lines)


MADE = {
    **filling("docs/pytorch.md", {"speed": speed}),
    **filling("docs/pytorch-reference.md", {"defaults": rules}),
    **filling(
        "docs/pytorch-measurements.md",
        {
            "speed": lambda: cells.section(cells.all_cards()),
            "decode": decode,
            "packed_decode": packed_decode,
            "mixes": mixes,
            "paged": paged,
            "generation": generation,
            "packed": packed,
            "training": lambda: of_training.section(of_training.read()),
            "llama": of_training.llama,
            "new shapes": of_training.new_shapes,
            "backward": lambda: backward.section(read(backward.RECORD)),
            "pair": backward.pair,
            "host": host,
            "operator": operator,
            "invariance": invariance,
        },
    ),
}
