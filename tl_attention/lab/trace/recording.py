"""A traced kernel runs on the GPU, and what its threads noted becomes a timeline.

What marks change is measured: the kernel without marks is timed beside it, the machine code of both is compared, and so
are the cycles of its tiles with those of a kernel that has the marks of tiles alone.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tl_attention.codeproof.mark_places import arrivals
from tl_attention.codeproof.marks import roles_in, threads_of_role, unmarked
from tl_attention.compiler.compile import compile_kernel
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.lab.machine_code.sass import steady
from tl_attention.lab.measure import gpu_worker, timing
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.trials import in_turn
from tl_attention.lab.trace.about import About
from tl_attention.lab.trace.shares import tile_ends
from tl_attention.lab.trace.timeline import Timeline, What, Window, decoded
from tl_attention.problem.variant import TRACE_WORDS
from tl_attention.problem.warpgroup import ROWS, WARP, WARPGROUP

ROUNDS = 12
METHOD = (
    "SM clock at each mark by one lane of each role, %globaltimer once; the kernels with and without marks timed in turn in "
    "one process, CUDA events, {pause} s between them"
)
# Nothing is said yet about what a kernel has just noted.
UNKNOWN = About(name="", shape="", device="")
# Marks that say how long a tile takes, and hardly anything else.
OF_TILES = frozenset({"tile", "end"})
# The depth of a wgmma and of an mma.sync, and the rows and columns of an mma.sync.
DEPTH, MMA_ROWS, MMA_COLUMNS = 16, 16, 8
# An mma.sync keeps the tensor core of its quarter of the SM busy for so many cycles. So it is for all kernels of
# mma.sync whose counters results/profile-h200.jsonl has.
MMA_CYCLES, QUARTERS = 6, 4


def record(candidate: Candidate, kinds: frozenset[str], window: Window, seed: int | None = None) -> Timeline:
    """Runs a candidate's kernel with marks of these kinds, and returns the timeline of the window's thread blocks.

    Raises InputError where there is no GPU, where the kernel cannot be compiled, or where the buffer cannot hold the
    window.
    """
    common = gpu_fields("trace")
    seed = secrets.randbelow(2**31) if seed is None else seed
    plain = compile_kernel(candidate.ours.schedule, candidate.variant, candidate.planned)
    values = values_of(candidate, seed)
    traced, of_tiles = Traced(candidate, kinds), Traced(candidate, OF_TILES)
    found, few = traced.timeline(window, values), of_tiles.timeline(replace(window, skip=0), values)
    marked = traced.kernel
    of_plain, of_marked = MachineCode(plain), MachineCode(marked)
    ratios, mhz = _beside(lambda: plain(**values), lambda: marked(**values, Trace=traced.buffer))
    about = About(
        **common,
        name=candidate.name,
        label=candidate.label,
        shape=str(candidate.shape),
        seed=seed,
        marks=tuple(sorted(kinds)),
        skip=window.skip,
        method=METHOD.format(pause=timing.PAUSE_S),
        rounds=ROUNDS,
        time_with_marks=(statistics.median(ratios), min(ratios), max(ratios)),
        tile_cycles=_tile_cycles(few, found),
        product_cycles=_product_cycles(candidate, traced),
        blocks_of_sm=of_marked.blocks_per_sm,
        machine_code={
            **{kind: (_places(of_plain).get(kind), places) for kind, places in _places(of_marked).items()},
            "registers": (of_plain.report.registers, of_marked.report.registers),
            "bytes of spills": (of_plain.report.stack_bytes, of_marked.report.stack_bytes),
        },
    )
    return replace(found, about=about, mhz=mhz)


class Traced:
    """A Traced is a candidate's kernel with marks of some kinds, and the buffer that it notes them in."""

    def __init__(self, candidate: Candidate, kinds: frozenset[str]):
        planned = candidate.ours
        self.kernel = compile_kernel(planned.schedule, replace(candidate.variant, trace=kinds), planned)
        source, marks = unmarked(self.kernel.source, kinds)
        self.roles, self.whats = roles_of(source), tuple(What(mark.kind, mark.name) for mark in marks)
        self.arrives = arrivals(source, marks)
        self.buffer = torch.zeros(TRACE_WORDS, dtype=torch.int64, device="cuda")

    def timeline(self, window: Window, values: dict[str, Any]) -> Timeline:
        """Runs the kernel once, and returns what the window's thread blocks noted; nothing is said about it yet.

        Raises InputError where the buffer cannot hold the window.
        """
        head = torch.from_numpy(window.head(len(self.roles), len(self.whats))).cuda()
        self.buffer.zero_()
        self.buffer[: len(head)] = head
        self.kernel(**values, Trace=self.buffer)
        torch.cuda.synchronize()
        lines = decoded(self.buffer.cpu().numpy(), window, len(self.roles), len(self.whats))
        return Timeline(UNKNOWN, self.roles, 1.0, self.whats, self.arrives, lines)


def roles_of(source: str) -> tuple[str, ...]:
    """Returns the names of the roles in a block of a kernel's code without marks, in the order of their threads."""
    together, count = threads_of_role(source), roles_in(source)
    consumers = tuple(f"consumer {n}" for n in range(count - 1))
    if "threadIdx.y" in source:
        return (*consumers, "producer")
    if "warpgroup_reg_dealloc" in source:  # TileLang's own specialisation has the first warpgroup load.
        return ("producer", *consumers)
    return tuple(f"{'warp' if together == WARP else 'warpgroup'} {n}" for n in range(count))


def values_of(candidate: Candidate, seed: int) -> dict[str, Any]:
    """Returns the arguments of a candidate's kernel on the GPU, by name: inputs by the seed, room for results."""
    shape = candidate.shape
    (q, k, v, asked), (output, lse) = gpu_worker.drawn_inputs(shape, seed), gpu_worker.result_tensors(shape)
    values: dict[str, Any] = {"Q": q, "K": k, "V": v, "Output": output, "softmax_scale": shape.head_dim**-0.5}
    values |= {"group": shape.group, "workers": candidate.ours.schedule.workers(candidate.sms)}
    return values | {feature.name: asked.get(feature.word, lse) for feature in shape.asked.features}


def _beside(run: Callable[[], None], run_traced: Callable[[], None]) -> tuple[list[float], float]:
    """Returns how much longer the traced kernel takes, a ratio for each round, and the median SM clock in MHz."""
    times: dict[Callable[[], None], list[float]] = {run_traced: [], run: []}
    clocks = []
    for call in in_turn([*times], ROUNDS):
        samples, clock = timing.sample(call)
        times[call].append(statistics.median(samples))
        clocks += [clock] if clock else []
        time.sleep(timing.PAUSE_S)
    ratios = [traced / plain for traced, plain in zip(times[run_traced], times[run])]
    return ratios, float(statistics.median(clocks)) if clocks else 1000.0


def _tile_cycles(few: Timeline, found: Timeline) -> tuple[float, float] | None:
    """Returns the mean cycles of a tile in two timelines, of as many first tiles as both show; None without a tile."""
    ends = [[tile_ends(timeline, line) for line in timeline.lines] for timeline in (few, found)]
    tiles = min(len(of_line) for of_timeline in ends for of_line in of_timeline) - 1
    if tiles < 1:
        return None
    one, other = (statistics.mean((line[tiles] - line[0]) / tiles for line in of_timeline) for of_timeline in ends)
    return one, other


def _product_cycles(candidate: Candidate, traced: Traced) -> dict[str, float]:
    """Returns for how many cycles a role's product of a KV block keeps the tensor pipe of its SM busy."""
    schedule, variant = candidate.ours.schedule, candidate.variant
    rows = schedule.block_M / sum(role != "producer" for role in traced.roles)
    if threads_of_role(traced.kernel.source) == WARPGROUP:
        # A wgmma m64nNk16 takes N / 2.
        of_column = rows / ROWS / 2 / DEPTH
    else:
        of_column = rows / MMA_ROWS / MMA_COLUMNS * MMA_CYCLES / QUARTERS / DEPTH
    return {
        "mma0": of_column * schedule.block_N * variant.tile_dim,
        "mma1": of_column * variant.tile_dim_v * schedule.block_N,
    }


def _places(code: MachineCode) -> dict[str, tuple[int, ...]]:
    """Returns after how many exponentials each wait of the steady loop's machine code stands, by kind of wait."""
    loop = steady(code.report.loops)
    return {kind: (*places,) for kind, places in loop.places.items()} if loop else {}
