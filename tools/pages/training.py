"""Makes the sections of docs/pytorch-measurements.md on training from their records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from measurements.losses import NAMES, TrainingRun, judged
from measurements.steps import RULE, SDPA, Steps, ratios

from pages.cells import heads_of, span
from pages.made import RESULTS
from tl_attention.lab.measure.records import grouped, read_all, shape_of
from tl_attention.lab.show.table import markdown
from tl_attention.schedule.files.backward import CUDNN, FLASH2

RECORD = RESULTS / "training-h200.jsonl"
LLAMA, LLAMA_LOSSES, NEW_SHAPES = (
    RESULTS / f"training-{name}-h200.jsonl" for name in ("llama", "llama-losses", "new-shapes")
)
# What the profiler calls every kernel of ours.
OUR_KERNEL = "attention_kernel"
# The profiler names the operators that launch kernels, too.
OPERATORS = ("aten::", "tl_attention::")
PICTURE = "docs/training.svg"


def read(path: Path = RECORD) -> list[TrainingRun]:
    """Reads the runs of a record."""
    return read_all(TrainingRun, path)


def section(runs: Sequence[TrainingRun]) -> str:
    """Makes the section: the setting, the picture, a line for each attention, a verdict for each seed."""
    return losses(runs, f"![Losses with three attentions]({Path(PICTURE).name})")


def losses(runs: Sequence[TrainingRun], *picture: str) -> str:
    """Makes the setting, a line for each attention, and a verdict for each seed, of a record of losses."""
    seeds, first = judged(runs), runs[0]
    about = f"{first.layers} layers, attention {shape_of(first.problem)}, {first.steps} steps, AdamW at {first.rate:g}."
    lines = [
        [
            words,
            *(f"{seed.smooth[name][-1]:.5f}" if seed.smooth[name] else "not finite" for seed in seeds),
            _rate([run for run in runs if run.attention == name]),
        ]
        for name, words in NAMES.items()
    ]
    headings = ["attention", *(f"last loss, seed {seed.seed}" for seed in seeds), "steps per second"]
    verdicts = markdown(["judgement"], [[seed.verdict] for seed in seeds])
    return "\n\n".join([about, *picture, markdown(headings, lines), verdicts])


def _rate(runs: Sequence[TrainingRun]) -> str:
    found = [run.steps_per_second for run in runs if run.steps_per_second]
    return f"{statistics.median(found):.1f}" if found else ""


def llama() -> str:
    """Makes the table of a Llama's step times, a line for each model and attention, and the judgement of its losses."""
    rows = read_all(Steps, LLAMA)
    lines = []
    for of_model in grouped(rows, lambda row: (row.model, str(row.problem))).values():
        beside = ratios(of_model, SDPA)
        for row in of_model:
            share = f"{beside[row.attention]:.3f}" if row.attention in beside else ""
            seen = ", ".join(f"`{name}`" for name in row.seen if not name.startswith(OPERATORS))
            lines.append([row.model, heads_of(row.shape), f"`{row.attention}`", f"{row.step_ms:.2f}", share, seen])
    first = rows[0]
    about = f"{first.layers} layers, attention {first.shape} in the first line."
    headings = ["model", "heads", "attention", "ms a step", f"time / {SDPA}'s", "kernels of attention"]
    parts = [about, markdown(headings, lines)]
    if masked := grouped(
        [row for row in rows if row.attention != SDPA and OUR_KERNEL not in row.seen], lambda row: row.model
    ):
        parts.append(
            f"{', '.join(masked)}: Transformers gives SDPA a mask tensor, so cuDNN computes attention with and without "
            "`register_sdpa`."
        )
    return "\n\n".join([*parts, losses(read(LLAMA_LOSSES))])


def llama_answer() -> str:
    """Says between which parts of SDPA's time ours is for a Llama's steps."""
    rows = read_all(Steps, LLAMA)
    of_models = grouped(rows, lambda row: (row.model, str(row.problem))).values()
    found = [share for of_model in of_models for share in ratios(of_model, SDPA).values()]
    return f"A Llama's training step takes {span(found)} of its time with SDPA as it is."


def new_shapes() -> str:
    """Makes the table of steps whose length is new each time, and says how long cuDNN's plans take."""
    rows = read_all(Steps, NEW_SHAPES)
    beside, plans = ratios(rows, FLASH2), [ms for row in rows for ms in row.plan_ms]
    words = {RULE: "the rules", FLASH2: "FlashAttention-2", CUDNN: "the rules, cuDNN from the first call on"}
    lines = [
        [words[row.attention], f"{row.step_ms:.2f}", f"{beside[row.attention]:.3f}" if row.attention in beside else ""]
        for row in rows
    ]
    first = rows[0]
    about = f"{len(first.seqs)} steps of each; {first.layers} layers, attention of at most {first.shape}."
    plan = f"cuDNN's first backward of a shape takes {statistics.median(plans):.0f} ms longer than the third (median of {len(plans)})."
    return "\n\n".join([about, markdown(["backward by", "ms a step", "time / FlashAttention-2's"], lines), plan])
