"""Records in results/ answer the questions of docs/results.md."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from statistics import geometric_mean, median

from measurements.losses import judged

from pages import backward
from pages import training as of_training
from pages.cells import CARDS, divided, length, read, record, span, speeds
from pages.decode import beside
from pages.made import RESULTS, Make
from pages.outcomes import EXPERIMENTS, outcomes
from tl_attention.lab.files.ladder_file import ladder_names, load_ladder, record_name
from tl_attention.lab.leaderboard.results import Evaluation, read_evaluation
from tl_attention.lab.measure.cell import NOT_INVARIANT, OURS
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import RoundRatios, parse_object, read_lines, read_rows
from tl_attention.lab.show.ladder import by_name
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.problem.mask import CAUSAL


def speed_on_l(card: str, group: str, peer: str, causal: bool) -> RoundRatios:
    """Reads our speed beside a peer on problem L; the group says in which dtype."""
    rows = [row for row in read(record("cells", card)) if (row.group, row.shape.mask == CAUSAL) == (group, causal)]
    [speed] = [speed for row in rows if (speed := row.speed(OURS, peer))]
    return speed


def one_number() -> str:
    """Says how fast tl-attention is, for README and index: each card's median and range, and its causal medians."""
    full, causal = ({card: speed_on_l(card, "L", "fa3", causal) for card in CARDS} for causal in (False, True))
    medians = " and ".join(
        f"{speed.ratio:.3f}x{the} on an {card.upper()}" for the, (card, speed) in zip((" the speed", ""), full.items())
    )
    ranges = " and ".join(f"from {span(speed.ratios)} on the {card.upper()}" for card, speed in full.items())
    masked = " and ".join(f"{speed.ratio:.3f}" for speed in causal.values())
    [rounds] = {len(speed.ratios) for speed in (*full.values(), *causal.values())}
    return (
        f"Beside FlashAttention-3 in bf16, tl-attention has **{medians}**, at batch 4, 64 heads, 8192 queries and keys, and "
        f"head_dim 128. Each is the median of {rounds} ratios, which range {ranges}. Each ratio compares the two kernels in one "
        f"round of one process. With a causal mask the medians are {masked}. At head_dim 256 we are slower: {head_dim_256()}."
    )


def head_dim_256() -> str:
    """Gives the geometric mean of our speed at the largest head size, without and with a causal mask."""
    rows = [row for row in divided(read(record("cells")))[0] if row.shape.head_size == 256]
    return f"{geometric_mean(speeds(rows, 'fa3')):.3f}x in the mean (H200)"


def problem_l() -> str:
    """Gives the speeds on problem L with their ranges: in bf16 beside FlashAttention-3, in fp16 beside cuDNN."""

    def told(group: str, peer: str, causal: bool) -> str:
        speeds = {card.upper(): speed_on_l(card, group, peer, causal) for card in CARDS}
        return " and ".join(
            f"{speed.ratio:.3f}x ({span(speed.ratios)}) on the {card}" for card, speed in speeds.items()
        )

    return " ".join(
        f"In {dtype} vs. {PEER_NAMES[peer]}: {told(group, peer, False)}; with a causal mask {told(group, peer, True)}."
        for dtype, group, peer in (("bf16", "L", "fa3"), ("fp16", "L_fp16", "cudnn"))
    )


def lengths() -> str:
    """Gives the range and the mean of our speed over the grid, on each card."""
    found = []
    for card in CARDS:
        ratios = speeds(read(record("grid", card)), "fa3")
        mean = geometric_mean(ratios)
        found.append(f"{span(ratios, unit='x')} on the {card.upper()} (geometric mean {mean:.3f}x)")
    return f"In {len(ratios)} problems in bf16, our speed vs. FlashAttention-3 is {' and '.join(found)}."


def head_sizes() -> str:
    """Gives the slowest and the fastest cell at other head sizes than 128."""
    rows = [row for row in divided(read(record("cells")))[0] if row.shape.head_size != 128]
    found = sorted((speed.ratio, cell_name(row)) for row in rows if (speed := row.speed(OURS, "fa3")))
    (low, slowest), (high, fastest) = found[0], found[-1]
    return f"In bf16 we have {low:.3f}x ({slowest}) to {high:.3f}x ({fastest}) the speed of FlashAttention-3."


def cell_name(row: CellRow) -> str:
    """Names a cell, as in `head_dim 96, causal, 1k keys`."""
    causal = ", causal" * (row.shape.mask == CAUSAL)
    return f"head_dim {row.shape.head_size}{causal}, {length(row.shape.seq_kv)} keys"


def packed_sequences() -> str:
    """Gives our speed with packed sequences."""
    found = speeds(read(record("packed")), "fa3")
    return f"In {len(found)} problems we have {_mean(found)} the speed of FlashAttention-3."


def same_bits() -> str:
    """Gives the speed of invariant calls, where they run other kernels than others."""
    found = speeds(read(record("invariance")), NOT_INVARIANT)
    return f"Where another kernel runs for it, {_mean(found)} the speed of a call without."


def _mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.3f}x ({span(ratios, unit='x')})"


def fastest_schedule() -> str:
    """Names the fastest schedule and its time, without and with a causal mask, in bf16."""
    found = []
    for file in ("bench-h200-L.jsonl", "bench-h200-L-causal.jsonl"):
        rows = [row for row in read_rows(RESULTS / file) if row.sizes != "peer" and row.shape.dtype == "bfloat16"]
        first = min(rows, key=lambda row: row.median_ms or float("inf"))
        found.append(f"`{first.name}` takes {first.median_ms:.3f} ms")
    return f"In bf16 {found[0]}. With a causal mask {found[1]}."


def experiments() -> str:
    """Says how many predictions came true."""
    counts = [(one.base, [outcome.came_true for outcome in outcomes(one)]) for one in EXPERIMENTS]
    return " ".join(f"{sum(true)} of {len(true)} predictions about `{base}` came true." for base, true in counts)


def ladders() -> str:
    """Names the step of all ladders that gains the most."""
    gains = []
    for name in ladder_names():
        rows = by_name(read_rows(RESULTS / record_name(name)), load_ladder(name))
        gains += [(1 / row.against.ratio, name, row.name) for row in rows.values() if row.against]
    gain, name, step = max(gains)
    return f"Each page has its table. Step {step} of `{name}` gains the most: {gain:.2f}x."


def submission() -> str:
    """Gives best and mean time of the largest test beside cuDNN's, on each card."""
    found = []
    for card in CARDS:
        timed = {name: of.rows[-1].timing for name, of in evaluations(record("evaluate", card).name)}
        (best, mean), (best_of_cudnn, mean_of_cudnn) = (
            (timing.best_ms, timing.mean_ms) for name in ("leaderboard_submit", "cudnn") if (timing := timed[name])
        )
        found.append(
            f"On the {card.upper()}, problem L in fp16 takes {best:.2f} ms at best and {mean:.2f} ms in the mean, where cuDNN takes "
            f"{best_of_cudnn:.2f} and {mean_of_cudnn:.2f} ms."
        )
    return " ".join(found)


def evaluations(name: str) -> list[tuple[str, Evaluation]]:
    """Reads the evaluations of a record, each with the submission's name."""
    return [read_evaluation(line, parse_object(line, where), where) for where, line in read_lines(RESULTS / name)]


def call() -> str:
    """Says how much of the host's time a call takes, ours and SDPA's."""
    found = medians_of_calls()
    return f"A call takes {found['attention']:.1f} us of the host's time, and a call of PyTorch's SDPA {found['sdpa']:.1f} us."


def medians_of_calls() -> dict[str, float]:
    """Returns the host's median time of a call in us, by candidate."""
    rows = [parse_object(line, where) for where, line in read_lines(RESULTS / "host-h200.jsonl")]
    return {row["candidate"]: row["median_us"] for row in rows if "median_us" in row}


def few_queries() -> str:
    """Gives our speed with few queries on many keys, and that of a model's token."""
    found = beside(read(record("decode")))
    rows = [row for row in read(record("generate")) if row.bars]
    cudnn, flash = (span(of, unit="x") for of in (speeds(rows, peer) for peer in ("cudnn", "flash2")))
    packed = speeds([row for row in read(record("packed-decode")) if row.group.endswith("_q1")], "fa3")
    mixed = speeds(read(record("mixes")), "fa3")
    return (
        f"In {len(found)} problems we have {_mean(found)} the speed of the faster of FlashAttention-3 and cuDNN. Packed, with one "
        f"query a sequence, we have {_mean(packed)} that of FlashAttention-3, and with prompts {_mean(mixed)}. A model's token in "
        f"a CUDA graph has {cudnn} the speed of SDPA's cuDNN, and {flash} that of SDPA's flash."
    )


def training() -> str:
    """Says how many seeds pass, and the steps per second of each attention."""
    runs = of_training.read()
    seeds = judged(runs)
    ours, flash, cudnn = (
        median([run.steps_per_second for run in runs if run.attention == name and run.steps_per_second])
        for name in ("ours", "flash2", "cudnn")
    )
    return (
        f"{sum(f'seed {seed.seed}: ok' in seed.verdict for seed in seeds)} of {len(seeds)} seeds pass the test of losses. We make "
        f"{ours:.1f} steps a second, SDPA's flash {flash:.1f} and SDPA's cuDNN {cudnn:.1f}. {of_training.llama_answer()}"
    ).strip()


def counters() -> str:
    """Says how busy the tensor pipe is, ours and FlashAttention-3's."""
    name = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    with open(RESULTS / "counters-h200.csv", newline="") as file:
        found = {row["run"]: row for row in csv.DictReader(file) if row["metric"] == name}
    ours, theirs = (float(found["L"][column]) for column in ("ours_value", "fa3"))
    return f"On problem L the tensor cores work in {ours:.1f} % of the active cycles, with FlashAttention-3 in {theirs:.1f} %."


def other_cards() -> str:
    """Gives the speed on the H200 of the backend for other cards."""
    rows = read(RESULTS / "cells-mma-h200.jsonl")
    small = speeds([row for row in rows if row.group == "mma_small"], "flash2")
    return (
        f"Kernels by `mma.sync` compile for them and have not run on one. On an H200 they have "
        f"{span(speeds(rows, 'flash2'), 2, 'x')} the speed of FlashAttention-2; `mma_sync_small`, which RTX cards take at "
        f"head_dim 128, has {small[0]:.2f}x, causal {small[1]:.2f}x."
    )


# The answers by the names that they have in texts/results.md.
ANSWERS: dict[str, Make] = {
    "backward": backward.answer,
    **{
        answer.__name__: answer
        for answer in (
            *(problem_l, head_sizes, lengths, few_queries, packed_sequences, same_bits, fastest_schedule),
            *(experiments, ladders, submission, call, training, counters, other_cards),
        )
    },
}
