"""Times attention() and the operator beside the bare kernel, called one after the other as a model calls them.

    python tools/measure.py operator --output results/operator-h200.jsonl

The bare kernel is the same compiled kernel, launched with tensors that are there: only the checks, the plan, the
dispatcher and the output's allocation differ. The GPU is not held back while calls are enqueued, so the host's time
counts as far as the GPU waits for the host; an untimed call before each batch is under way meanwhile. Lines are cells
as those of `tl-attention compare`, which `tl-attention report` shows: entries are sampled in turn in one process, the
bare kernel twice. The script takes about 30 s on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from measurements.in_turn import record, timed
from tl_attention import attention
from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell import OURS, schedule_for
from tl_attention.lab.measure.cell_records import AGAIN, CellRow, Timed
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.measure.timing import LEAST_CALLS, TimedBatch, sm_clock_mhz
from tl_attention.lab.oracle.reference import make_inputs
from tl_attention.op.call import OFF
from tl_attention.op.launch import Launch
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

# (batch, heads, seq): problem L, and 1k as `compare` has it.
SIZES = ((4, 64, 8192), (32, 16, 1024))
HEAD_DIM = 128
KERNEL, OPERATOR, BAR = "kernel", "operator", 0.997
METHOD = (
    "CUDA events around a batch of calls of about {batch:g} ms, at least {least}, behind one untimed call that is under way "
    "while they are enqueued; {rounds} rounds, entries interleaved in one process in alternating order, {pause} s pause "
    "between entries"
)
Call = Callable[[], Tensor]


class Flow(TimedBatch):
    """A flow is a batch of calls that are enqueued while they run: the host's time counts if the GPU waits for it."""

    def sample(self) -> tuple[float, int | None]:
        """Returns the milliseconds of one call, as the mean over a batch, and the SM clock in MHz during the batch."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._call()
        start.record()
        for _ in range(self.calls):
            self._call()
        end.record()
        clock = sm_clock_mhz()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / self.calls, clock


def shapes() -> Iterator[AttentionShape]:
    """Yields the problems, in bf16."""
    for batch, heads, seq in SIZES:
        for mask in (FULL, CAUSAL):
            yield AttentionShape(batch, heads, seq, seq, HEAD_DIM, "bfloat16", mask)


def calls_of(shape: AttentionShape, inputs: tuple[Tensor, Tensor, Tensor]) -> dict[str, Call]:
    """Returns calls of the bare kernel, attention() and the operator, which give the same output to the bit."""
    q, k, v = inputs
    named, causal = schedule_for(shape), shape.mask == CAUSAL
    output, scale = torch.empty_like(q), shape.head_dim**-0.5
    of = Candidate(named.name, shape, Planned(named.schedule))
    launch = Launch.of(compile_kernel(named.schedule, of.variant).launch, named.schedule, of.variant, shape, of.sms)
    arguments = launch.arguments((q, k, v, output), None, scale, OFF)

    def kernel() -> Tensor:
        launch.kernel(*arguments)
        return output

    return {
        KERNEL: kernel,
        OURS: partial(attention, q, k, v, causal=causal),
        OPERATOR: lambda: torch.ops.tl_attention.forward(q, k, v, None, causal=causal)[0],
    }


def measured(
    shape: AttentionShape, rounds: int, seed: int, common: dict[str, Any], device: str = "cuda"
) -> Iterator[CellRow]:
    """Yields a cell of attention() and a cell of the operator, each beside the bare kernel."""
    calls = calls_of(shape, make_inputs(shape, seed, device))
    expected = calls[KERNEL]().clone()
    if wrong := [name for name, call in calls.items() if not torch.equal(call(), expected)]:
        raise InputError(f"operator: {', '.join(wrong)} of {shape} gives another output than the bare kernel")
    flows = {name: Flow(call) for name, call in calls.items()}
    found = timed([Timed(name, name, shape.flops) for name in calls], flows, rounds)
    length = f"{shape.seq_kv // 1024}k{'-causal' * (shape.mask == CAUSAL)}"
    for name, what in ((OURS, "attention"), (OPERATOR, OPERATOR)):
        yield CellRow(
            f"{what}-{length}",
            what,
            problem_of(shape),
            (found[KERNEL], replace(found[name], name=OURS, what=what), found[KERNEL + AGAIN]),
            {KERNEL: BAR},
            method=METHOD.format(batch=TimedBatch.ms, least=LEAST_CALLS, rounds=rounds, pause=TimedBatch.pause_s),
            seed=seed,
            **common,
        )


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/operator.jsonl"), show_default=True)
@click.option("--rounds", type=click.IntRange(15), default=31, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
def main(output: Path, rounds: int, seed: int) -> None:
    """Time attention() and the operator beside the bare kernel, and record."""
    common = gpu_fields("operator")
    record((row for shape in shapes() for row in measured(shape, rounds, seed, common)), output)
