"""Makes tables of docs/pytorch-measurements.md, of few queries on many keys: a batch, packed, a model's token."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from pages.cells import SDPA, length, read, record, speeds, spread
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.show.cells import binding_peer
from tl_attention.lab.show.table import markdown
from tl_attention.problem.mask import CAUSAL, FULL, Mask

# How a step of the model is timed, as its group of cells says.
HOW = {"generate_graph": "CUDA graph", "generate_host": "step by step"}
# What the names of lengths in results/packed-decode.yaml mean, in the table's order.
PACKED = {
    "one_2k": "1 on 2k",
    "one_8k": "1 on 8k",
    "one_64k": "1 on 64k",
    "n4_8k": "4 on 8k",
    "n16_512": "16 on 512",
    "n16_2k": "16 on 2k",
    "n16_8k": "16 on 8k",
    "n64_512": "64 on 512",
    "n64_2k": "64 on 2k",
    "n64_8k": "64 on 8k",
    "n256_1k": "256 on 1k",
    "drawn": "64 on 1 to 8k, drawn",
}
# What those in results/mixes.yaml mean: sequences of one query, and prompts beside them.
MIXES = {
    f"{name}_{prompt}": f"{number} and {words}"
    for name, number in {"d8": 8, "d30": 30, "d120": 120}.items()
    for prompt, words in {
        "p512": "one of 512",
        "p2k": "one of 2000",
        "p8k": "one of 8000",
        "4x1k": "four of 1000",
    }.items()
}
MIXED_HEADS = ((32, 32), (32, 8), (64, 8), (28, 4))
# Of a row of the table: the heads of K and V, and the queries.
HEADS, QUERIES = (32, 8, 1), (1, 4, 16)


def decode() -> str:
    """Makes the table of our speed beside the faster peer."""
    rows = [row for row in read(record("decode")) if row.group.startswith("b")]
    lines = [
        [str(queries), f"32 on {heads}", _spread(rows, queries, heads, FULL), _spread(rows, queries, heads, CAUSAL)]
        for queries in QUERIES
        for heads in HEADS
    ]
    headings = ["queries", "heads", "the faster of FlashAttention-3 and cuDNN", "FlashAttention-3, causal"]
    lengths, batches = (sorted({getattr(row.shape, of) for row in rows}) for of in ("seq_kv", "batch"))
    about = (
        f"Geometric means over batches of {', '.join(map(str, batches))} and {length(lengths[0])} to {length(lengths[-1])} keys, "
        "with the lowest and the highest."
    )
    return f"{markdown(headings, lines)}\n\n{about} {_behind(rows)}"


def packed_decode() -> str:
    """Makes the table of packed sequences of one query beside FlashAttention-3, and says how fast those of more are."""
    rows = read(record("packed-decode"))
    columns = {f"kv{heads}_q1": f"32 heads on {heads}" for heads in HEADS}
    few, some = (speeds([row for row in rows if row.group.endswith(f"_{kind}")], "fa3") for kind in ("few", "some"))
    return (
        f"{_of_lengths(rows, 'sequences and their keys', PACKED, columns)}\n\nCausal sequences of 4 or 16 queries on 2k or 8k "
        f"keys have a speed of {spread(few)}; 16 queries on 512 keys, and 64 on 8k or 32k, have {spread(some)}."
    )


def mixes() -> str:
    """Makes the table of sequences of one query beside prompts, beside FlashAttention-3."""
    rows = read(record("mixes"))
    columns = {f"h{heads}_{kv}": f"{heads} heads on {kv}" for heads, kv in MIXED_HEADS}
    table = _of_lengths(rows, "of one query, and prompts", MIXES, columns)
    return f"{table}\n\nThe geometric mean is {geometric_mean(speeds(rows, 'fa3')):.3f}."


def paged() -> str:
    """Makes the table of keys in pages beside the same keys one behind the other, ours and FlashAttention-3's."""
    rows = read(record("pages"))
    kinds, peers = {"q1": "one query", "mix": "with prompts"}, {"contiguous": "ours", "fa3": "FlashAttention-3"}
    sizes = dict.fromkeys(int(row.group.removeprefix("p").partition("_")[0]) for row in rows)
    lines = [
        [
            str(size),
            *(
                spread(speeds([row for row in rows if row.group == f"p{size}_{kind}"], peer))
                for kind in kinds
                for peer in peers
            ),
        ]
        for size in sizes
    ]
    columns = (f"{words}, vs. {name}" for words in kinds.values() for name in peers.values())
    return markdown(["keys of a page", *columns], lines)


def _of_lengths(rows: Sequence[CellRow], heading: str, lengths: dict[str, str], groups: dict[str, str]) -> str:
    """Makes a table of speeds beside FlashAttention-3 from two maps of names in cells to words, of rows and columns."""
    found = {row.cell.removesuffix("-causal"): _ratio(row, "fa3") for row in rows}
    lines = [[words, *(found[f"{group}-{name}"] for group in groups)] for name, words in lengths.items()]
    return markdown([heading, *groups.values()], lines)


def _ratio(row: CellRow, peer: str) -> str:
    return f"{speed.ratio:.3f}" if (speed := row.speed(OURS, peer)) else ""


def generation() -> str:
    """Makes the table of a token of a model that generates, beside SDPA's backends."""
    rows = read(record("generate"))
    lines = [
        [HOW[row.group], str(row.shape.seq_kv - 1), f"{row.ours.median_ms:.3f}", *(_ratio(row, peer) for peer in SDPA)]
        for row in rows
    ]
    return markdown(["timed", "keys in the cache", "ms a token", *SDPA.values()], lines)


def beside(rows: Sequence[CellRow]) -> list[float]:
    """Returns our speed beside the faster peer in each cell in which one was timed; all peers have one bar."""
    return [speed.ratio for row in rows if (peer := binding_peer(row)) and (speed := row.speed(OURS, peer))]


def _spread(rows: Sequence[CellRow], queries: int, heads: int, mask: Mask) -> str:
    found = beside(
        [row for row in rows if (row.shape.seq_q, row.shape.heads_kv, row.shape.mask) == (queries, heads, mask)]
    )
    return spread(found)


def _behind(rows: Sequence[CellRow]) -> str:
    """Says how many of the cells are how far behind."""
    found = beside(rows)
    behind = [
        1000 * row.ours.median_ms * (1 - ratio)
        for row in rows
        for ratio in beside([row])
        if ratio < 0.97 and row.ours.median_ms
    ]
    most = f" (by {max(behind):.2f} us at most)" if behind else ""
    faster = sum(ratio >= 1 for ratio in found)
    return f"Of {len(found)} cells, {faster} are at least as fast, and {len(behind) or 'none'} are below 0.97{most}."
