"""Times forward plus backward of attention beside SDPA's flash and cuDNN.

    python tools/measure.py backward --output results/backward-h200.jsonl
    python tools/measure.py backward --only 'd128-*' --output FILE

Our entry is a forward that stores the LSE too, then the backward that the rules of backward.yaml name, from the first
call on. Lines are cells as those of `tl-attention compare`, which `tl-attention report` shows: entries are sampled in
turn in one process, SDPA's flash twice. A dense problem has 32768 tokens. A causal window stands beside
FlashAttention-2 and FlexAttention, and packed sequences beside PyTorch's `varlen_attn`.

Gradients are first compared with fp64's at small sizes. At the cell's own sizes, those of all entries must be about the
same. A peer that does not run is in the row, with its reason. The script takes about 4 minutes on an H200, of which one
compiles.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from measurements.in_turn import timed
from tl_attention import attention, attention_varlen
from tl_attention.errors import InputError
from tl_attention.lab.measure import peers
from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.cell import OURS, Cell, schedule_for
from tl_attention.lab.measure.cell_records import CellRow, Timed
from tl_attention.lab.measure.compilation import compile_all
from tl_attention.lab.measure.gpu_worker import offsets_of
from tl_attention.lab.measure.machine import gpu_fields
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.measure.timing import TimedBatch
from tl_attention.lab.oracle.reference import each_sequence, make_inputs
from tl_attention.lab.show.cells import summary
from tl_attention.op.backward import force_operator, packed_pair, shape_of
from tl_attention.problem.features import NOTHING
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.mask import CAUSAL, FULL, TENSORS, Mask, is_window, sides
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Sizes
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.backward import FLASH2, PAIR

FLASH, CUDNN, FLEX, EXACT = "flash2", "cudnn", "flex", "exact"
TOKENS, LENGTHS, MASKS = 32768, (1024, 2048, 4096, 8192, 16384), (FULL, CAUSAL)
# What each group of cells has: head_dim, head_dim of V, heads, KV heads and dtype. The first have all lengths.
OVER_LENGTHS = {
    "d64": (64, 64, 32, 32, "bfloat16"),
    "d96": (96, 96, 16, 16, "bfloat16"),
    "d128": (128, 128, 16, 16, "bfloat16"),
    "d128_gqa": (128, 128, 32, 8, "bfloat16"),
}
OF_4K = {
    "d192_128": (192, 128, 16, 16, "bfloat16"),
    "d256": (256, 256, 8, 8, "bfloat16"),
    "d128_fp16": (128, 128, 16, 16, "float16"),
}
BESIDE_SDPA = {FLASH: None, CUDNN: None}
WINDOW, SEQUENCES = Mask(1023, 0), 12
METHOD = (
    "forward and backward, the FLOP of seven products, our gradients from the first call on by the operator that "
    "backward.yaml names"
)
# What runs as a peer, where its name does not say it.
WORDS = {
    ("window", FLASH): "aten._flash_attention_forward with a window",
    ("window", FLEX): "FlexAttention, compiled",
    ("packed", FLASH): "varlen_attn",
    ("d192_128", FLASH): "flash2 on V filled up with zeros",
}
# Gradients are compared with fp64's at these sizes: ours may be this many times as far from fp64 as flash's.
CHECKED, MOST = Sizes(1, 2, 1100, 1100), 2.0
PACKED = [Lengths(700, 700), Lengths(1, 1), Lengths(399, 399)]
# Results of two entries may be this far apart at a cell's sizes, of their norm. Another mask or scale is farther off.
MOST_APART = 0.1
FAILED = 1
Call = Callable[[], Sequence[Tensor]]
# Makes the call of an entry, by name, from the problem, q, k and v, and the output's gradient.
Entry = Callable[[str, AttentionShape, Sequence[Tensor], Tensor], Call]


def cells() -> Iterator[Cell]:
    """Yields the cells, those over lengths first."""
    for groups, lengths in ((OVER_LENGTHS, LENGTHS), (OF_4K, (4096,))):
        for group, (head_dim, head_dim_v, heads, heads_kv, dtype) in groups.items():
            for seq in lengths:
                for mask in MASKS:
                    sizes = (TOKENS // seq, heads, seq, seq, head_dim, dtype, mask, head_dim_v, heads_kv)
                    yield Cell(group, AttentionShape(*sizes), BESIDE_SDPA)
    window = AttentionShape(TOKENS // 8192, 16, 8192, 8192, 128, "bfloat16", WINDOW)
    yield Cell("window", window, {FLASH: None, FLEX: None})
    packed = AttentionShape.ragged(drawn_lengths(), 16, 128, dtype="bfloat16", mask=CAUSAL, packed=True)
    yield Cell("packed", packed, {FLASH: None}, lengths=f"{SEQUENCES}_sequences")


def drawn_lengths() -> list[Lengths]:
    """Draws the lengths of the packed sequences, always the same ones."""
    cuts = sorted(random.Random(1).sample(range(1, TOKENS), SEQUENCES - 1))
    return [Lengths(end - begin, end - begin) for begin, end in pairwise([0, *cuts, TOKENS])]


def small(shape: AttentionShape) -> AttentionShape:
    """Returns the problem at the sizes at which gradients are compared with fp64's, with as many heads per KV head."""
    if shape.packed:
        return shape.with_lengths(PACKED, CHECKED.heads)
    return shape.resized(CHECKED._replace(heads=CHECKED.heads * shape.group))


# --- entries ----------------------------------------------------------------------------------------------------------


def forward_of(
    name: str, shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor, **of_ours: Any
) -> Callable[[], Tensor]:
    """Makes the forward pass of an entry, a function without arguments; ours gets these options."""
    left, right = sides(shape.mask)
    if shape.packed:
        if name == EXACT:
            return partial(exact_packed, shape, q, k, v)
        from torch.nn.attention.varlen import varlen_attn

        of: Callable[..., Any] = attention_varlen if name == OURS else varlen_attn
        longest, options = (shape.seq_q, shape.seq_kv), of_ours if name == OURS else {}
        return partial(of, q, k, v, *offsets_of(shape, q.device), *longest, window_size=(left, right), **options)
    if name == OURS:
        return partial(attention, q, k, v, window_size=(left, right), **of_ours)
    if name == EXACT:
        return partial(exact, q, k, v, shape.mask)
    if name == FLEX:
        return partial(compiled_flex(), q, k, v, block_mask=block_mask(shape.seq_kv, shape.mask, q.device))
    if is_window(shape.mask):
        return partial(flash_with_window, q, k, v, left, right)
    if name == FLASH and shape.head_dim_v != shape.head_dim:
        # It takes one head_dim for q, k and v.
        return lambda: peers.build(name, shape, q, k, filled_up(v, shape.head_dim))()[..., : shape.head_dim_v]
    return peers.build(name, shape, q, k, v)


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Computes attention by PyTorch's composed operations, in the precision of the inputs."""
    seq_q, seq_kv = q.shape[2], k.shape[2]
    keys = torch.arange(seq_kv, device=q.device)
    own = torch.arange(seq_kv - seq_q, seq_kv, device=q.device)[:, None]
    visible = None if mask == FULL else ~mask.hidden(keys, own, seq_kv, TENSORS)
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


def exact_packed(shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes attention of packed sequences one after another, as `exact` does."""
    found = [exact(*of_one, shape.mask)[0].transpose(0, 1) for of_one in each_sequence(shape, q, k, v)]
    return torch.cat(found)


def flash_with_window(q: Tensor, k: Tensor, v: Tensor, left: int, right: int) -> Tensor:
    """Computes attention by FlashAttention-2's operator, as SDPA has no argument for a window."""
    rows = (x.transpose(1, 2) for x in (q, k, v))
    output: Tensor = torch.ops.aten._flash_attention_forward(
        *(*rows, None, None, q.shape[2], k.shape[2], 0.0, False, False),
        scale=q.shape[3] ** -0.5, window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    return output.transpose(1, 2)


def filled_up(tensor: Tensor, columns: int) -> Tensor:
    """Returns the tensor with columns of zeros behind its own."""
    return pad(tensor, (0, columns - tensor.shape[-1]))


@cache
def compiled_flex() -> Callable[..., Tensor]:
    """Returns FlexAttention as its users call it, compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    found: Callable[..., Tensor] = torch.compile(flex_attention)
    return found


def block_mask(seq: int, mask: Mask, device: torch.device) -> Any:
    """Makes FlexAttention's form of a causal window."""
    from torch.nn.attention.flex_attention import create_block_mask

    left = sides(mask)[0]

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key <= left)

    return create_block_mask(seen, None, None, seq, seq, device=device)


def call_of(name: str, shape: AttentionShape, inputs: Sequence[Tensor], grad: Tensor) -> Call:
    """Makes a call that gives the output and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    forward = forward_of(name, shape, *leaves)

    def both() -> Sequence[Tensor]:
        output = forward()
        return output.detach(), *torch.autograd.grad(output, leaves, grad)

    return both


def tensors(shape: AttentionShape, seed: int, device: str) -> tuple[Sequence[Tensor], Tensor]:
    """Makes q, k, v, and the gradient of an output."""
    inputs = make_inputs(shape, seed, device)
    generator = torch.Generator(device).manual_seed(seed + 1)
    sizes = (*inputs[0].shape[:-1], shape.head_dim_v)
    return inputs, torch.randn(sizes, generator=generator, device=device).to(inputs[0].dtype)


def gradients_by(shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor) -> str:
    """Returns the operator that computes the gradients of our calls, inside of `taking`."""
    if shape.packed:
        return PAIR if packed_pair(q, k, v, shape.mask, (shape.seq_q, shape.seq_kv), NOTHING, False) else FLASH2
    left, right = sides(shape.mask)
    return shape_of(q, k, v, False, (left, right)).count(q.device)


# --- a cell -----------------------------------------------------------------------------------------------------------


def error_of(shape: AttentionShape, seed: int, device: str, call_of: Entry = call_of) -> float:
    """Returns our error against fp64 divided by the allowed error, at small sizes: the worst of a call's tensors."""
    shape = small(shape)
    inputs, grad = tensors(shape, seed, device)
    wanted = call_of(EXACT, shape, [x.double() for x in inputs], grad.double())()
    ours, flash = (call_of(name, shape, inputs, grad)() for name in (OURS, FLASH))
    return max(own / (MOST * theirs) for own, theirs in zip(distances(ours, wanted), distances(flash, wanted)))


def distances(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[float]:
    """Returns how far each tensor is from the one that is wanted, as a part of its norm."""
    return [((x.to(y.dtype) - y).norm() / y.norm()).item() for x, y in zip(found, wanted)]


def flops_of(shape: AttentionShape) -> int:
    """Returns the FLOP of a forward and a backward: of seven products four have Q's columns, and three those of V."""
    columns = shape.head_dim + shape.head_dim_v
    return shape.flops // columns * (4 * shape.head_dim + 3 * shape.head_dim_v)


class Disagrees(Exception):
    """This error says that an entry gives another output, or other gradients, than ours."""


def measured(cell: Cell, seed: int, rounds: int, common: dict[str, Any], device: str = "cuda") -> CellRow:
    """Measures a cell: the first peer, ours, other peers and the first again, of those that run and agree with ours."""
    shape, named = cell.shape, schedule_for(cell.shape.asking(lse=True)).name
    entries = {name: Timed(name, WORDS.get((cell.group, name), name), flops_of(shape)) for name in (OURS, *cell.peers)}
    batches: dict[str, TimedBatch] = {}
    with force_operator():
        inputs, grad = tensors(shape, seed, device)
        error = error_of(shape, seed, device)
        if error > 1:
            reason = f"{MOST * error:.2g} times as far from fp64 as flash's, expected at most {MOST:g}"
            entries[OURS] = replace(entries[OURS], status="wrong", reason=f"gradients of {small(shape)}: {reason}")
        else:
            batches = batches_of(entries, shape, inputs, grad)
        operator = gradients_by(shape, *inputs)
        entries[OURS] = replace(entries[OURS], what=f"{named}, gradients by {operator}", error=error)
        if (checked := gradients_by(small(shape), *tensors(small(shape), seed, device)[0])) != operator:
            raise InputError(
                f"{cell.name}: gradients by {operator}, but {checked} at small sizes, expected the same one"
            )
        return row_of(cell, entries, batches, rounds, METHOD, seed=seed, **common)


def row_of(
    cell: Cell, entries: dict[str, Timed], batches: dict[str, TimedBatch], rounds: int, method: str, **common: Any
) -> CellRow:
    """Times the entries that have a batch, the first peer twice, and returns the cell's row."""
    good = [name for name in cell.peers if name in batches]
    order = [good[0], OURS, *good[1:]] if good and OURS in batches else []
    found = timed([entries[name] for name in order], batches, rounds)
    # As they were sampled: those that failed come last.
    rows = (*found.values(), *(entry for name, entry in entries.items() if name not in found))
    method = f"{method}; {TimedBatch.method(rounds)}"
    return CellRow(cell.name, cell.group, problem_of(cell.shape), rows, dict(cell.peers), method=method, **common)


def batches_of(
    entries: dict[str, Timed], shape: AttentionShape, inputs: Sequence[Tensor], grad: Tensor, call_of: Entry = call_of
) -> dict[str, TimedBatch]:
    """Makes a batch of each entry. One that does not run, or disagrees with ours, has none; `entries` says why."""
    batches: dict[str, TimedBatch] = {}
    own: Sequence[Tensor] = ()
    for name, entry in entries.items():
        try:
            call = call_of(name, shape, inputs, grad)
            found = call()
            own = own or found
            if not (apart := max(distances(found, own))) <= MOST_APART:
                raise Disagrees(f"a result is {apart:.2g} of its norm from ours, expected at most {MOST_APART:g}")
            batches[name] = TimedBatch(call)
        # Whatever a peer raises, a compiler's errors for one, is its row's reason.
        except Exception as error:
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            entries[name] = replace(entry, status="wrong" if isinstance(error, Disagrees) else "error", reason=said)
    return batches


def compile_ours(problems: Sequence[AttentionShape]) -> None:
    """Compiles the kernels that a call takes for these problems, in parallel. Raises InputError if one fails."""
    kernels: dict[object, Candidate] = {}
    for shape in problems:
        shape = shape.asking(lse=True)
        named = schedule_for(shape)
        candidate = called(named.name, shape, Planned(named.schedule))
        kernels[named.schedule, candidate.variant] = candidate
    results = compile_all(list(kernels.values()))
    for candidate, compiled in results.items():
        if compiled.error:
            raise InputError(f"{candidate}: {compiled.error}")


def means(rows: Sequence[CellRow]) -> Iterator[str]:
    """Says the geometric mean and the lowest of our speeds beside each of SDPA's backends, over all lengths."""
    of_lengths = [row for row in rows if row.group in OVER_LENGTHS]
    for peer in BESIDE_SDPA:
        found = {row.cell: speed.ratio for row in of_lengths if (speed := row.speed(OURS, peer))}
        if found:
            lowest = min(found, key=lambda name: found[name])
            yield (
                f"{peer}'s time over ours in {len(found)} of {len(of_lengths)} cells: geometric mean "
                f"{geometric_mean(found.values()):.3f}, lowest {found[lowest]:.3f} ({lowest})"
            )


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/backward.jsonl"), show_default=True)
@click.option("--rounds", type=click.IntRange(15), default=15, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--only", multiple=True, metavar="GLOB", help="take the cells of these names, such as 'd64-*'")
def main(output: Path, rounds: int, seed: int, only: tuple[str, ...]) -> None:
    """Time forward plus backward, and record."""
    common, chosen = gpu_fields("backward"), those(cells(), only)
    compile_ours([shape for cell in chosen for shape in (cell.shape, small(cell.shape))])
    rows, failed = recorded(chosen, output, lambda cell: measured(cell, seed, rounds, common))
    for text in means(rows):
        click.echo(text)
    if failed or any(row.ours.median_ms is None for row in rows):
        sys.exit(FAILED)


def those(cells: Iterable[Cell], only: Sequence[str]) -> list[Cell]:
    """Returns the cells of these names, with wildcards; all without any."""
    return [cell for cell in cells if not only or any(fnmatchcase(cell.name, glob) for glob in only)]


def recorded(chosen: Sequence[Cell], output: Path, measure: Callable[[Cell], CellRow]) -> tuple[list[CellRow], bool]:
    """Measures and records cells, says what came of each, and returns the rows and whether one has failed."""
    rows, failed = [], False
    results = ResultsFile(output)
    for cell in chosen:
        try:
            row = measure(cell)
        # The other cells are measured all the same.
        except (InputError, RuntimeError) as error:
            click.echo(f"{cell.name}: {error}")
            failed = True
            continue
        results.append(row)
        rows.append(row)
        # No bar is asked for, so there is no verdict.
        click.echo(summary(row).removesuffix(": "))
        for entry in row.entries:
            if entry.status != "ok":
                click.echo(f"    {entry.name}: {entry.status}: {entry.reason}")
    return rows, failed
