"""Times training steps whose length is new in each step, with the backward by rule, FlashAttention-2 and cuDNN.

    python tools/measure.py new-shapes --output results/training-new-shapes-h200.jsonl

cuDNN builds a plan for each new shape, and the rules of backward.yaml take it only after some calls of one. So where
every step has a new length, a step by rule should take as long as one with FlashAttention-2 alone. The model is that of
examples/transformer_block.py with 8 layers. Steps of the three take turns on one model, and no length comes twice. A
line is recorded for each of the three. The exit code is 1 if steps by rule take more than 1.05 times as long as
FlashAttention-2's. The script takes about a minute on an H200.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from transformer_block import OURS as OUR_ATTENTION
from transformer_block import losses, sequences

from measurements.backward import compile_ours, tensors
from measurements.steps import RULE, Steps, ratios, seconds
from measurements.training import Setting
from tl_attention import attention
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.op.backward import force_operator
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.backward import CUDNN, FLASH2

# In these contexts the backward is chosen by rule, is FlashAttention-2, and is the rule's from the first call on.
WAYS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    RULE: nullcontext,
    FLASH2: partial(force_operator, FLASH2),
    CUDNN: force_operator,
}
BAR, FAILED = 1.05, 1
# Steps of each way before those that count, and new shapes whose plans are timed.
WARM_UP, PLANS = 3, 10
MODEL = "examples/transformer_block.py, new lengths"
METHOD = (
    "training steps of the model of examples/transformer_block.py, fp32 weights, products in bf16, AdamW; the host's clock "
    "around each step, synchronised at both ends; three ways to choose the backward take turns on one model in rotating "
    "order, and each step has a length that is new, in steps of one turn lengths that follow each other"
)


def lengths(count: int, longest: int) -> list[tuple[int, ...]]:
    """Draws so many turns of lengths up to the longest. Lengths of a turn follow each other; none comes twice."""
    turns = [tuple(range(longest - (n + 1) * len(WAYS), longest - n * len(WAYS))) for n in range(count)]
    random.Random(1).shuffle(turns)
    return turns


def measured(setting: Setting, common: Mapping[str, Any], device: str = "cuda") -> list[Steps]:
    """Times `setting.steps` steps of each way, and returns what is recorded of each."""
    shape, names = setting.shape, list(WAYS)
    tokens = sequences(shape.batch, shape.seq_q, seed=1).to(device)
    turns = lengths(WARM_UP + setting.steps, shape.seq_q)
    steps = losses(setting.model(OUR_ATTENTION, 1, device), _batches(tokens, turns), setting.rate)
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    for number, turn in enumerate(turns):
        first = number % len(names)
        for name, seq in zip(names[first:] + names[:first], turn, strict=True):
            with WAYS[name]():
                took = seconds(lambda: next(steps), device)
            if number >= WARM_UP:
                found[name].append((seq, took))
    rows = []
    for name, of_way in found.items():
        seqs, block_s = zip(*of_way)
        plans = plan_ms(shape, PLANS, device) if name == CUDNN else ()
        what: dict[str, Any] = {"seqs": seqs, "plan_ms": plans, "method": METHOD, **common}
        rows.append(Steps(MODEL, name, problem_of(shape), setting.layers, 1, block_s, **what))
    return rows


def _batches(tokens: Tensor, turns: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Yields the tokens of each step, one more than its length."""
    yield from (tokens[:, : seq + 1] for turn in turns for seq in turn)


def plan_ms(shape: AttentionShape, count: int, device: str) -> tuple[float, ...]:
    """Returns how many milliseconds longer a new shape's first backward takes than its third, for so many shapes."""
    found = []
    with force_operator():
        # Longer than every length above.
        for seq in range(shape.seq_q + 1, shape.seq_q + 2 + count):
            inputs, grad = tensors(replace(shape, seq_q=seq, seq_kv=seq), 1, device)
            leaves = [x.requires_grad_() for x in inputs]
            output = attention(*leaves, causal=True)
            backward = partial(torch.autograd.grad, output, leaves, grad, retain_graph=True)
            times = [seconds(backward, device) for _ in range(3)]
            found.append(round(1e3 * (times[0] - times[-1]), 3))
    # The first shape of all loads the kernels.
    return tuple(found[1:])


def verdict(rows: Sequence[Steps]) -> tuple[str, bool]:
    """Says how the three compare, and whether steps by rule are within the bar."""
    found = ratios(rows, FLASH2)
    good = found[RULE] <= BAR
    plan = median(ms for row in rows for ms in row.plan_ms)
    said = (
        f"by rule / {FLASH2}: {found[RULE]:.3f}, expected at most {BAR:g}: {'ok' if good else 'FAILED'}; {CUDNN} from the first call / "
        f"{FLASH2}: {found[CUDNN]:.2f}; a plan takes {plan:.0f} ms"
    )
    return said, good


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/new-shapes.jsonl"), show_default=True)
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True)
def main(output: Path, steps: int, batch: int) -> None:
    """Time training steps whose length is new each time, and record."""
    common = gpu_fields("new-shapes")
    setting = Setting(AttentionShape.parse(f"{batch},8/2,1024,128", dtype="bfloat16", causal=True), 8, steps)
    compile_ours([setting.shape])
    results, rows = ResultsFile(output), measured(setting, common)
    for row in rows:
        results.append_json(row.to_json(), of=row.attention)
        click.echo(f"{row.attention}: {row.step_ms:.2f} ms a step")
    said, good = verdict(rows)
    click.echo(said)
    if not good:
        sys.exit(FAILED)
