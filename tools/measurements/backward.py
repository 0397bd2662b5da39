"""Times forward plus backward of attention beside SDPA's flash and cuDNN.

    python tools/measure.py backward --output results/backward-h200.jsonl

Our entry is a forward that stores the LSE too, then aten's FlashAttention-2 backward. SDPA's flash runs the same
backward kernels, so only the forward differs. Lines are cells as those of `tl-attention compare`, which `tl-attention
report` shows: entries are sampled in turn in one process, SDPA's flash twice. A problem has 16384 tokens and 16 heads.
The script takes about 60 s on an H200, of which 15 s compile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tl_attention import attention
from tl_attention.errors import InputError
from tl_attention.measure import peers
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.cell import OURS, schedule_for
from tl_attention.measure.cell_records import AGAIN, CellRow, Timed
from tl_attention.measure.cells import with_times
from tl_attention.measure.compilation import compile_all
from tl_attention.measure.machine import gpu_fields
from tl_attention.measure.records import problem_of
from tl_attention.measure.results_file import ResultsFile
from tl_attention.measure.timing import Batch
from tl_attention.measure.trials import Samples, in_turn
from tl_attention.oracle.reference import make_inputs
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Sizes
from tl_attention.program.planned import Planned
from tl_attention.show.cells import summary

TOKENS, HEADS, HEAD_DIMS, LENGTHS = 16384, 16, (64, 128), (1024, 4096, 16384)
FLASH, CUDNN, EXACT = "flash2", "cudnn", "exact"
# A forward has two products, a backward five.
FLOPS_OF_FORWARD = 3.5
# Gradients are compared with fp64's at these sizes: ours may be this many times as far from fp64 as flash's.
CHECKED, MOST = Sizes(1, 2, 1100, 1100), 2.0
FAILED = 1
Call = Callable[[], Sequence[Tensor]]


def shapes() -> Iterator[AttentionShape]:
    """Yields the problems, in bf16."""
    for head_dim in HEAD_DIMS:
        for seq in LENGTHS:
            for mask in (FULL, CAUSAL):
                yield AttentionShape(TOKENS // seq, HEADS, seq, seq, head_dim, "bfloat16", mask)


def call_of(name: str, shape: AttentionShape, inputs: Sequence[Tensor], grad: Tensor) -> Call:
    """Makes a call that gives the output and the gradients of q, k and v."""
    q, k, v = leaves = [x.detach().requires_grad_() for x in inputs]
    causal = shape.mask == CAUSAL

    def exact() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    if name == OURS:
        forward: Callable[[], Tensor] = partial(attention, q, k, v, causal=causal)
    else:
        forward = exact if name == EXACT else peers.build(name, shape, q, k, v)

    def both() -> Sequence[Tensor]:
        output = forward()
        return output.detach(), *torch.autograd.grad(output, leaves, grad)

    return both


def tensors(shape: AttentionShape, seed: int, device: str) -> tuple[Sequence[Tensor], Tensor]:
    """Makes q, k, v, and the gradient of an output."""
    inputs = make_inputs(shape, seed, device)
    generator = torch.Generator(device).manual_seed(seed + 1)
    return inputs, torch.randn(inputs[0].shape, generator=generator, device=device).to(inputs[0].dtype)


def error_of(shape: AttentionShape, seed: int, device: str) -> float:
    """Returns our error against fp64 divided by the allowed error, at small sizes: the worst of four tensors."""
    small = shape.resized(CHECKED)
    inputs, grad = tensors(small, seed, device)
    exact = call_of(EXACT, small, [x.double() for x in inputs], grad.double())()
    ours, flash = (call_of(name, small, inputs, grad)() for name in (OURS, FLASH))
    errors = [
        [((x.double() - wanted).norm() / wanted.norm()).item() for x, wanted in zip(found, exact)]
        for found in (ours, flash)
    ]
    return max(own / (MOST * theirs) for own, theirs in zip(*errors))


def measured(shape: AttentionShape, seed: int, rounds: int, common: dict[str, Any], device: str = "cuda") -> CellRow:
    """Measures the cell of a problem: flash, ours, cuDNN and flash again."""
    error = error_of(shape, seed, device)
    name = f"d{shape.head_dim}-{shape.seq_kv // 1024}k{'-causal' * (shape.mask == CAUSAL)}"
    flops = round(FLOPS_OF_FORWARD * shape.flops)
    ours = Timed(OURS, schedule_for(shape.asking(lse=True)).name, flops, error=error)
    entries = [Timed(FLASH, FLASH, flops), ours, Timed(CUDNN, CUDNN, flops)]
    if error > 1:
        wrong = (
            f"gradients at {CHECKED}: {MOST * error:.2g} times as far from fp64 as flash's, expected at most {MOST:g}"
        )
        entries[1] = replace(ours, status="wrong", reason=wrong)
    else:
        inputs, grad = tensors(shape, seed, device)
        batches = {entry.name: Batch(call_of(entry.name, shape, inputs, grad)) for entry in entries}
        order = [*entries, replace(entries[0], name=FLASH + AGAIN)]
        samples = sampled([batches[entry.name.removesuffix(AGAIN)] for entry in order], rounds)
        entries = [with_times(entry, found) for entry, found in zip(order, samples)]
    return CellRow(
        name,
        f"d{shape.head_dim}",
        problem_of(shape),
        tuple(entries),
        {FLASH: None, CUDNN: None},
        method=f"forward and backward, {FLOPS_OF_FORWARD:g} times the FLOP of a forward; {Batch.method(rounds)}",
        seed=seed,
        **common,
    )


def sampled(batches: Sequence[Batch], rounds: int) -> list[Samples]:
    """Samples the batches in turn."""
    found = [Samples(batch.calls) for batch in batches]
    for samples, batch in in_turn(list(zip(found, batches)), rounds):
        ms, clock = batch.sample()
        samples.add([ms], clock)
        time.sleep(batch.pause_s)
    return found


def compile_ours(problems: Sequence[AttentionShape]) -> None:
    """Compiles the kernels that `attention` will take for these problems, in parallel. Raises InputError if one fails."""
    kernels: dict[object, Candidate] = {}
    for shape in problems:
        shape = shape.asking(lse=True)
        named = schedule_for(shape)
        candidate = Candidate(named.name, shape, Planned(named.schedule))
        kernels[named.schedule, candidate.variant] = candidate
    results = compile_all(list(kernels.values()))
    for candidate, compiled in results.items():
        if compiled.error:
            raise InputError(f"{candidate}: {compiled.error}")


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/backward.jsonl"), show_default=True)
@click.option("--rounds", type=click.IntRange(15), default=15, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
def main(output: Path, rounds: int, seed: int) -> None:
    """Time forward plus backward, and record."""
    common = gpu_fields("backward")
    compile_ours(list(shapes()))
    rows = []
    results = ResultsFile(output)
    for shape in shapes():
        rows.append(measured(shape, seed, rounds, common))
        results.append(rows[-1])
        # No bar is asked for, so there is no verdict.
        click.echo(summary(rows[-1]).removesuffix(": "))
    if any(row.ours.median_ms is None for row in rows):
        sys.exit(FAILED)
