"""Times the backward alone by a pair of schedules, with all its kernels, beside cuDNN's and FlashAttention-2's.

    python tools/measure.py pair --output FILE
    python tools/measure.py pair --only 'd128-*' --output FILE

Each entry's forward runs once; what is timed gives the gradients of q, k and v from what it left. Lines are cells as
those of `tools/measure.py backward`, whose dense problems these are, with causal windows and packed prompts of each
head size beside FlashAttention-2. Gradients are first compared with fp64's at small sizes, and with the peers' at the
cell's own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import torch
from torch import Tensor

from measurements import backward
from measurements.backward import CUDNN, FAILED, FLASH, MASKS, MOST, OVER_LENGTHS, TOKENS, WORDS, Call, small
from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell import OURS, Cell
from tl_attention.lab.measure.cell_records import CellRow, Timed
from tl_attention.lab.measure.compilation import compile_all
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.op.pair import LOOPS, pair_of
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

# The names of the schedules that ship are those of the loops.
PAIR = LOOPS
WINDOW, PROMPTS, SHORTEST, LONGEST = Mask(1023, 0), 12, 100, 4000
# The lowest speed that is asked for beside each peer.
LEAST = {"d64": 0.65, "d96": 0.65, "d128": 0.8, "d128_gqa": 0.8}
LEAST_OF_FLASH = 1.2
METHOD = f"the backward alone with all its kernels, the FLOP of five products, ours by ({', '.join(PAIR)})"


def cells() -> Iterator[Cell]:
    """Yields the cells: over lengths with and without a causal mask, in a window, and of packed prompts."""
    rng = random.Random(1)
    prompts = [Lengths(n, n) for n in (rng.randint(SHORTEST, LONGEST) for _ in range(PROMPTS))]
    for group, (head_dim, head_dim_v, heads, heads_kv, dtype) in OVER_LENGTHS.items():

        def of(seq: int, mask: Mask, *sizes: Any) -> AttentionShape:
            return AttentionShape(TOKENS // seq, sizes[1], seq, seq, sizes[0], sizes[4], mask, sizes[2], sizes[3])

        sizes = head_dim, heads, head_dim_v, heads_kv, dtype
        for seq in backward.LENGTHS:
            for mask in MASKS:
                yield Cell(group, of(seq, mask, *sizes), {CUDNN: LEAST[group], FLASH: LEAST_OF_FLASH})
        for seq in (4096, 16384):
            yield Cell(f"window_{group}", of(seq, WINDOW, *sizes), {FLASH: LEAST_OF_FLASH})
        more: dict[str, Any] = {"dtype": dtype, "mask": CAUSAL, "packed": True}
        packed = replace(AttentionShape.ragged(prompts, heads, head_dim, **more), heads_kv=heads_kv)
        yield Cell(f"packed_{group}", packed, {FLASH: LEAST_OF_FLASH}, lengths=f"{PROMPTS}_prompts")


def call_of(name: str, shape: AttentionShape, inputs: Sequence[Tensor], grad: Tensor) -> Call:
    """Makes a call that gives the gradients of q, k and v, of a forward that has run."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = backward.forward_of(name, shape, *leaves, backward=PAIR)()
    return lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True)


def flops_of(shape: AttentionShape) -> int:
    """Returns the FLOP of a backward: of five products three have Q's columns, and two those of V."""
    columns = shape.head_dim + shape.head_dim_v
    return shape.flops // columns * (3 * shape.head_dim + 2 * shape.head_dim_v)


def measured(cell: Cell, seed: int, rounds: int, common: dict[str, Any], device: str = "cuda") -> CellRow:
    """Measures a cell: the first peer, ours, other peers and the first again, of those that run and agree with ours."""
    shape, group = cell.shape, cell.group.partition("_")[0]
    entries = {name: Timed(name, WORDS.get((group, name), name), flops_of(shape)) for name in (OURS, *cell.peers)}
    entries[OURS] = replace(entries[OURS], what=f"gradients by ({', '.join(PAIR)})")
    error = backward.error_of(shape, seed, device, call_of)
    if error > 1:
        reason = f"gradients of {small(shape)}: {MOST * error:.2g} times as far from fp64 as flash's, expected {MOST:g}"
        entries[OURS] = replace(entries[OURS], status="wrong", reason=reason, error=error)
        batches = {}
    else:
        entries[OURS] = replace(entries[OURS], error=error)
        batches = backward.batches_of(entries, shape, *backward.tensors(shape, seed, device), call_of)
    return backward.row_of(cell, entries, batches, rounds, METHOD, seed=seed, **common)


def compile_ours(problems: Sequence[AttentionShape]) -> None:
    """Compiles the kernels of calls and of their gradients, in parallel. Raises InputError if one fails."""
    backward.compile_ours(problems)
    pair = [(named, Planned(named.schedule)) for named in pair_of(PAIR)]
    kernels = [Candidate(named.name, shape, planned) for shape in problems for named, planned in pair]
    for candidate, compiled in compile_all([*{(one.schedule, one.variant): one for one in kernels}.values()]).items():
        if compiled.error:
            raise InputError(f"{candidate}: {compiled.error}")


def means(rows: Sequence[CellRow]) -> Iterator[str]:
    """Says, by group and peer, the geometric mean and the lowest of our speeds."""
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        for peer in of_group[0].peers:
            if found := [speed.ratio for row in of_group if (speed := row.speed(OURS, peer))]:
                yield (
                    f"{group}: {peer}'s time over ours in {len(found)} of {len(of_group)} cells: "
                    f"geometric mean {geometric_mean(found):.3f}, lowest {min(found):.3f}"
                )


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/pair.jsonl"), show_default=True)
@click.option("--rounds", type=click.IntRange(15), default=15, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--only", multiple=True, metavar="GLOB", help="take the cells of these names, such as 'd64-*'")
def main(output: Path, rounds: int, seed: int, only: tuple[str, ...]) -> None:
    """Time the backward by a pair of schedules, and record."""
    common, chosen = gpu_fields("pair"), backward.those(cells(), only)
    compile_ours([shape for cell in chosen for shape in (cell.shape, small(cell.shape))])
    rows, failed = backward.recorded(chosen, output, lambda cell: measured(cell, seed, rounds, common))
    for text in means(rows):
        click.echo(text)
    if failed or any(row.ours.median_ms is None for row in rows):
        sys.exit(FAILED)
