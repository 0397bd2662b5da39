"""Tries cuDNN's backward beside FlashAttention-2's at each number of keys past a multiple of 128, and several LSEs.

    python tools/measure.py cudnn-inputs --output results/training-cudnn-inputs-h200.jsonl

The rules of backward.yaml keep from cuDNN what is wrong here. The script takes about a minute on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from tl_attention.errors import InputError
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.records import Measured, problem_of
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.op import trial
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape

# Around -88.7, below which fp32 has no exponential of the LSE's negative, and far from it.
LEVELS = (120.0, 0.0, -60.0, -100.0, -120.0, -500.0)
QUERIES, KEYS = 96, range(128, 256)
METHOD = (
    f"{KEYS[0]} to {KEYS[-1]} keys and {QUERIES} queries, or, causal, as many as keys; wrong is what is not finite, or more "
    f"than {trial.MOST_APART:g} of its norm from FlashAttention-2's"
)


@dataclass(frozen=True)
class Tried(Measured):
    """A Tried says with which inputs of a problem, and of fewer keys, cuDNN's gradients were wrong."""

    cudnn: str  # the versions of cuDNN and torch
    problem: dict[str, Any]
    levels: tuple[float, ...]  # the LSEs that rows have, about
    tried: int  # inputs, which are a number of keys and a level
    # Of each input the number of keys, the level, and what was wrong.
    wrong: tuple[tuple[int, float, str], ...] = ()


def problem(mask: Mask) -> AttentionShape:
    """Returns the problem of the most keys."""
    seq_q = KEYS[-1] if mask == CAUSAL else QUERIES
    return AttentionShape(2, 4, seq_q, KEYS[-1], 128, "bfloat16", mask, heads_kv=2)


def wrong_ones(shape: AttentionShape, lengths: range, device: torch.device) -> Iterator[tuple[int, float, str]]:
    """Yields each number of keys and level at which cuDNN is wrong, and what it gives."""
    causal = shape.mask == CAUSAL
    for seq_kv in lengths:
        sizes = (seq_kv if causal else shape.seq_q, seq_kv, shape.heads, shape.heads_kv, shape.head_dim)
        for level in LEVELS:
            found = trial.tried(*sizes, causal=causal, level=level, of_rows=False, device=device)
            if found:
                yield seq_kv, level, found


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/cudnn-inputs.jsonl"), show_default=True)
def main(output: Path) -> None:
    """Try cuDNN's backward on inputs of all residues, and record where it is wrong."""
    common, device, results = gpu_fields("cudnn-inputs"), torch.device("cuda", 0), ResultsFile(output)
    if not trial.cudnn_version():
        raise InputError("cudnn-inputs: torch has no cuDNN, expected one")
    for shape in map(problem, (FULL, CAUSAL)):
        with torch.no_grad():
            wrong = tuple(wrong_ones(shape, KEYS, device))
        what, tried = problem_of(shape), len(KEYS) * len(LEVELS)
        row = Tried(trial.cudnn_version(), what, LEVELS, tried, wrong, method=METHOD, seed=7, **common)
        results.append_json(row.to_json(), of=str(shape.mask))
        click.echo(f"{shape}: {len(wrong)} of {tried} inputs are wrong")
