"""Measures what calls of attention() and attention_varlen() cost the host, beside their peers', on a Hopper GPU.

    python tools/measure.py host --output results/host-h200.jsonl
    python tools/measure.py host --first --output results/host-h200.jsonl
    python tools/measure.py host --backward --output results/host-h200.jsonl

Each candidate makes 2,000 calls in ten rounds, in which the candidates follow each other in alternating order.
The clock runs around each call by itself: from before the call to after it has returned and its result is given up.
Nobody waits for the GPU inside. Outside, after every DRAINED calls, everybody waits for the GPU, so the queue of 1,024
launches is never full, and no call waits for a place in the queue. Python's garbage collector is off meanwhile. SDPA's
backends are forced around all calls of a round, so what forcing costs does not count.

--first measures the first result of a new process, with kernels in the disk cache. Before the clock starts torch is
imported, the device is initialised and the inputs are there; then tl_attention is imported, called and waited for.

--backward measures forward and backward of one short problem, where the host's time counts: loops of calls, with a wait
for the GPU at the end of each loop. The calls that the rules give to FlashAttention-2 first are over before.

The output has a line of JSON for each candidate, with everything that it was measured with. The exit code is 2 where
there is no GPU.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

import click
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from measurements.backward import compile_ours, tensors
from tl_attention.errors import InputError
from tl_attention.lab.measure import peers
from tl_attention.lab.measure.gpu_worker import offsets_of
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.measure.trials import in_turn
from tl_attention.lab.oracle.reference import make_inputs
from tl_attention.op.attention import attention
from tl_attention.op.varlen import attention_varlen
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape

SHAPE = AttentionShape(1, 32, 128, 128, 128, "bfloat16")
# As many rows, packed.
PACKED = replace(SHAPE, packed=True).with_lengths([Lengths(100, 100), Lengths(3, 3), Lengths(25, 25)], heads_kv=32)
# Calls of each candidate in all rounds, calls between two waits for the GPU, and new processes with --first.
CALLS, ROUNDS, DRAINED, PROCESSES = 2_000, 10, 100, 5
METHOD = f"perf_counter_ns around each unsynchronised call, the GPU waited for after every {DRAINED}, outside the clock"
FIRST_METHOD = (
    "perf_counter_ns in a new process, from torch and device being ready to the first result, disk cache warm"
)
# Forward and backward: not causal the rules keep FlashAttention-2, as 704 = 5 x 128 + 64, and causal they take cuDNN.
SHORT = AttentionShape(1, 8, 704, 704, 64, "bfloat16")
LOOP, LOOPS, LOOPS_BEFORE = 100, 20, 2
LOOP_METHOD = (
    f"perf_counter_ns around {LOOP} calls of forward and backward, the GPU waited for once at the end, {LOOPS} loops"
)
# What a new process runs. Its last line is milliseconds: of the import, and until the result is there.
FIRST = """
import sys, time, torch
q, k, v = (torch.randn(*{sizes}, dtype=torch.{dtype}, device="cuda") for _ in range(3))
torch.cuda.synchronize()
begin = time.perf_counter_ns()
from tl_attention import attention
imported = time.perf_counter_ns()
attention(q, k, v)
torch.cuda.synchronize()
print((imported - begin) / 1e6, (time.perf_counter_ns() - begin) / 1e6)
"""


@dataclass(frozen=True)
class Candidate:
    """A candidate is what is called, for which problem and in which context."""

    name: str
    call: Callable[[], object]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    problem: AttentionShape = SHAPE


# Times so many calls of a candidate, and returns nanoseconds.
Timer = Callable[[Candidate, int], list[int]]


def candidates() -> list[Candidate]:
    """Returns our candidates and their peers: SDPA and, for packed sequences, FlashAttention-3, which must be there."""
    if reason := peers.why_not(peers.FA3, PACKED):
        raise InputError(f"host: {reason}, expected it for the calls of packed sequences")
    q, k, v = make_inputs(SHAPE, seed=1, device="cuda")
    rows, offsets = make_inputs(PACKED, seed=1, device="cuda"), offsets_of(PACKED)
    longest = PACKED.seq_q, PACKED.seq_kv

    def sdpa() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v)

    return [
        Candidate("attention", lambda: attention(q, k, v)),
        Candidate("operator", lambda: torch.ops.tl_attention.forward(q, k, v, None)),
        Candidate("sdpa flash", sdpa, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)),
        Candidate("sdpa cudnn", sdpa, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)),
        Candidate("sdpa", sdpa),
        Candidate("attention_varlen", lambda: attention_varlen(*rows, *offsets, *longest), problem=PACKED),
        Candidate("fa3 varlen", peers.build(peers.FA3, PACKED, *rows, offsets), problem=PACKED),
    ]


def backward_candidates(device: str = "cuda") -> list[Candidate]:
    """Returns calls of forward and backward, ours and SDPA's, without and with a causal mask."""
    found = []
    for shape in (SHORT, replace(SHORT, mask=CAUSAL)):
        inputs, grad = tensors(shape, 1, device)
        leaves, causal = [x.requires_grad_() for x in inputs], shape.mask == CAUSAL

        def both(forward: Callable[..., torch.Tensor], leaves: list[torch.Tensor], grad: torch.Tensor) -> object:
            return torch.autograd.grad(forward(*leaves), leaves, grad)

        ours, sdpa = partial(attention, causal=causal), partial(scaled_dot_product_attention, is_causal=causal)
        ending = f", forward and backward{', causal' * causal}"
        found.append(Candidate(f"attention{ending}", partial(both, ours, leaves, grad), problem=shape))
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            context = partial(sdpa_kernel, backend)
            found.append(Candidate(f"sdpa {name}{ending}", partial(both, sdpa, leaves, grad), context, shape))
    return found


def timed(candidate: Candidate, calls: int) -> list[int]:
    """Times calls of a candidate, and returns the nanoseconds of each."""
    found, call = [], candidate.call
    with candidate.context():
        for number in range(calls):
            if number % DRAINED == 0:
                torch.cuda.synchronize()
            begin = perf_counter_ns()
            call()
            found.append(perf_counter_ns() - begin)
    torch.cuda.synchronize()
    return found


def timed_loop(candidate: Candidate, calls: int) -> list[int]:
    """Times a loop of calls until the GPU has done them all, and returns the nanoseconds of a call, their mean."""
    with candidate.context():
        torch.cuda.synchronize()
        begin = perf_counter_ns()
        for _ in range(calls):
            candidate.call()
        torch.cuda.synchronize()
        return [(perf_counter_ns() - begin) // calls]


def host_times(
    measured: list[Candidate], calls: int, rounds: int, timed: Timer = timed, before: int = DRAINED
) -> dict[str, list[list[int]]]:
    """Times the candidates in turn, and returns the nanoseconds of each call by candidate and round.

    Each makes `before` calls first, which do not count.
    """
    found: dict[str, list[list[int]]] = {candidate.name: [] for candidate in measured}
    for candidate in measured:
        timed(candidate, before)
    gc.disable()
    try:
        for candidate in in_turn(measured, rounds):
            found[candidate.name].append(timed(candidate, -(-calls // rounds)))
    finally:
        gc.enable()
    return found


def row_of(name: str, of_rounds: list[list[int]]) -> dict[str, Any]:
    """Returns what is recorded of a candidate's calls, in microseconds."""
    calls = [one / 1e3 for of_round in of_rounds for one in of_round]
    tenths = quantiles(calls, n=10)
    return {
        "candidate": name,
        "method": METHOD,
        "n": len(calls),
        "median_us": round(median(calls), 2),
        "p10_us": round(tenths[0], 2),
        "p90_us": round(tenths[-1], 2),
        "round_medians_us": [round(median(of_round) / 1e3, 2) for of_round in of_rounds],
    }


def backward_rows(measured: list[Candidate]) -> list[dict[str, Any]]:
    """Times loops of forward and backward."""
    times = host_times(measured, LOOP * LOOPS, LOOPS, timed_loop, LOOP * LOOPS_BEFORE)
    more = {"method": LOOP_METHOD, "n": LOOP * LOOPS}
    return [row_of(one.name, times[one.name]) | more | {"problem": str(one.problem)} for one in measured]


def first_rows() -> list[dict[str, Any]]:
    """Times the first result of PROCESSES new processes, after one that fills the cache and is not counted."""
    program = FIRST.format(sizes=(SHAPE.batch, SHAPE.heads, SHAPE.seq_q, SHAPE.head_dim), dtype=SHAPE.dtype)
    found = []
    for _ in range(PROCESSES + 1):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        if done.returncode:
            raise InputError(f"host: a new process failed: {done.stderr.strip().splitlines()[-1:]}")
        found.append([float(ms) for ms in done.stdout.split()[-2:]])
    imports, results = zip(*found[1:])
    return [
        {
            "candidate": "attention, first result",
            "method": FIRST_METHOD,
            "n": PROCESSES,
            "median_ms": round(median(results), 1),
            "of_it_import_ms": round(median(imports), 1),
            "all_ms": [round(ms, 1) for ms in results],
        }
    ]


@click.command()
@click.option("--first", is_flag=True, help="The first result of a new process instead.")
@click.option("--backward", is_flag=True, help="Forward and backward instead.")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="A file to which the lines are appended."
)
def main(first: bool, backward: bool, output: Path) -> None:
    """Host time of calls of attention(), attention_varlen() and their peers."""
    machine = gpu_fields("host")
    if first:
        rows = first_rows()
    elif backward:
        compile_ours([SHORT, replace(SHORT, mask=CAUSAL)])
        rows = backward_rows(backward_candidates())
    else:
        measured = candidates()
        times = host_times(measured, CALLS, ROUNDS)
        rows = [row_of(one.name, times[one.name]) | {"problem": str(one.problem)} for one in measured]
    results = ResultsFile(output)
    for row in rows:
        line = json.dumps({"problem": str(SHAPE), **row, **machine})
        click.echo(line)
        results.append_json(line, of=row["candidate"])
