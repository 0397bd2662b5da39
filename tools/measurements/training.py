"""Trains one model with our attention and with SDPA's flash and cuDNN, from the same weights on the same tokens.

    python tools/measure.py training --output results/training-h200.jsonl

The model of examples/transformer_block.py is trained in a larger size. A line for each seed and attention is recorded
as it comes, with the loss of every step. Then each seed is judged (losses.py), and the exit code is 1 if a seed fails.
The script takes about 70 s on an H200, and needs no network.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from transformer_block import OURS as OUR_ATTENTION
from transformer_block import PYTORCHS, losses, model_of, sequences

from measurements.losses import BLOCK, CUDNN, FLASH, WARM_UP_BLOCKS, TrainingRun, judged
from tl_attention.errors import InputError
from tl_attention.lab.measure.cell import OURS
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.peers import SDPA
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.problem.shape import AttentionShape

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
METHOD = (
    "the model of examples/transformer_block.py, fp32 weights, products in bf16, AdamW; steps per second: the median of "
    f"blocks of {BLOCK} steps, synchronised at their ends, without the first {WARM_UP_BLOCKS}, the attentions in another "
    "order for each seed"
)
FAILED = 1


@dataclass(frozen=True)
class Setting:
    """A setting says what is trained, for how many steps and at which rate."""

    shape: AttentionShape
    layers: int = 4
    steps: int = 200
    rate: float = 3e-4
    method: str = METHOD

    def model(self, attend: Attend, seed: int, device: str) -> torch.nn.Module:
        """Makes a model with the seed's weights, which do not depend on the attention."""
        heads = (self.shape.heads, self.shape.heads_kv, self.shape.head_dim)
        return model_of(attend, self.layers, *heads, seed=seed, device=device)

    def batches(self, seed: int, device: str) -> Sequence[Tensor]:
        """Makes a batch of the seed's tokens for each step; its sequences have one token more than the model reads."""
        return sequences(self.shape.batch * self.steps, self.shape.seq_q + 1, seed).to(device).chunk(self.steps)


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Calls PyTorch's attention with this backend and no other."""
    with sdpa_kernel(backend):
        return PYTORCHS(q, k, v)


def attentions() -> dict[str, Attend]:
    """Returns the attentions by their names in the record."""
    return {OURS: OUR_ATTENTION, **{name: partial(sdpa, SDPA[name]) for name in (FLASH, CUDNN)}}


def trained(setting: Setting, attend: Attend, seed: int, device: str) -> dict[str, Any]:
    """Trains once, and returns the fields `losses` and `block_s` of the record."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    found, block_s = [], []
    model, batches = setting.model(attend, seed, device), setting.batches(seed, device)
    synchronize()
    start = time.perf_counter()
    for step, loss in enumerate(losses(model, batches, setting.rate), 1):
        found.append(loss)
        if step % BLOCK == 0:
            synchronize()
            block_s.append(round(time.perf_counter() - start, 6))
            start = time.perf_counter()
    values = torch.stack(found).tolist()
    broken = next((n for n, value in enumerate(values) if not math.isfinite(value)), len(values))
    return {"losses": tuple(values[:broken]), "block_s": tuple(block_s)}


def check_each_runs(setting: Setting, among: Mapping[str, Attend], device: str) -> None:
    """Runs each attention forward and backward once, which compiles ours. Raises InputError where one cannot run."""
    for name, attend in among.items():
        model, tokens = setting.model(attend, 0, device), setting.batches(0, device)[:1]
        try:
            list(losses(model, tokens))
        except RuntimeError as error:
            raise InputError(f"{name}: {str(error).strip().partition(chr(10))[0]}, expected it to train") from None


def measure(
    setting: Setting,
    among: Mapping[str, Attend],
    seeds: Sequence[int],
    device: str,
    common: Mapping[str, Any],
    record: Callable[[TrainingRun], object],
) -> list[TrainingRun]:
    """Trains once for each seed and attention, and records each run as it ends."""
    runs = []
    for number, seed in enumerate(seeds):
        names = list(among)
        # Whoever comes first finds the GPU cooler.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            fields = trained(setting, among[name], seed, device)
            run = TrainingRun(
                name,
                problem_of(setting.shape),
                setting.layers,
                setting.rate,
                setting.steps,
                **fields,
                **common,
                seed=seed,
                method=setting.method,
            )
            runs.append(run)
            record(run)
    return runs


def summary(run: TrainingRun) -> str:
    """Says what came of one run in a line."""
    rate = f"{run.steps_per_second:.1f} steps/s" if run.steps_per_second else "not timed"
    last = f"last loss {run.losses[-1]:.5f}" if len(run.losses) == run.steps else "a loss that is not finite"
    return f"seed {run.seed}, {run.attention}: {last}, {rate}"


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/training.jsonl"), show_default=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(1, 2, 3), show_default=True)
@click.option("--steps", type=click.IntRange(20), default=200, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True)
def main(output: Path, seeds: tuple[int, ...], steps: int, batch: int) -> None:
    """Train with each attention, record, and judge."""
    shape = AttentionShape.parse(f"{batch},8/2,1024,128", dtype="bfloat16", causal=True, lse=True)
    common = gpu_fields("training")
    setting, among = Setting(shape, steps=steps), attentions()
    check_each_runs(setting, among, "cuda")
    results = ResultsFile(output)

    def record(run: TrainingRun) -> None:
        results.append_json(run.to_json(), of=run.attention)
        click.echo(summary(run))

    found = judged(measure(setting, among, seeds, "cuda", common, record))
    for seed in found:
        click.echo(seed.verdict)
    if not all(seed.ok for seed in found):
        sys.exit(FAILED)
