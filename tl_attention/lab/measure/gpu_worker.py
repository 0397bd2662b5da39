"""The worker process on the GPU runs these functions: they verify and time one candidate at a time."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tl_attention.compiler.compile import CompiledKernel, compile_kernel
from tl_attention.lab.measure import peers, timing
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.records import PRODUCTS
from tl_attention.lab.oracle import reference
from tl_attention.lab.oracle.pages import in_pages
from tl_attention.lab.oracle.reference import ErrorReport, each_sequence
from tl_attention.op.launch import Launch
from tl_attention.op.pages import Pages, as_rows, pages_of
from tl_attention.problem.features import INPUTS
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import PAGES, Variant
from tl_attention.schedule.schedule import Schedule

DEVICE = "cuda"
REPEATS = 3
# A large problem is verified on this many of its last rows, in this many heads, spread over all.
SOME_ROWS, SOME_HEADS = 128, 8


class _Inputs(NamedTuple):
    """An `_Inputs` holds the inputs of a call of attention."""

    q: Tensor  # q, k and v are (batch, heads, seq, head_dim), or (rows, heads, head_dim) for packed sequences.
    k: Tensor
    v: Tensor
    asked: dict[str, Any]  # a value for each feature of the problem, by the feature's word; some are (heads,) tensors


class _Result(NamedTuple):
    """A `_Result` holds the results of a call of attention."""

    output: Tensor  # (batch, heads, seq_q, head_dim_v), or (rows, heads, head_dim_v) for packed sequences
    lse: Tensor | None  # (batch, heads, seq_q) or (heads, rows), where it is asked for

    def copy(self) -> _Result:
        return _Result(self.output.clone(), None if self.lse is None else self.lse.clone())

    def equals(self, other: _Result) -> bool:
        """Says whether both outputs, and both LSEs where there are two, are equal bit for bit."""
        if not torch.equal(self.output, other.output):
            return False
        return self.lse is None or other.lse is None or torch.equal(self.lse, other.lse)


@functools.lru_cache(maxsize=1)
def drawn_inputs(shape: AttentionShape, seed: int, spread: float = 1.0) -> _Inputs:
    """Draws a problem's inputs on the GPU by the seed, with Q multiplied by `spread`; the last ones are kept."""
    return _Inputs(*reference.make_inputs(shape, seed, DEVICE, spread), reference.make_asked(shape, seed, DEVICE))


@functools.lru_cache(maxsize=1)
def drawn_pages(shape: AttentionShape, seed: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Pages, Tensor, Tensor]:
    """Puts the keys of `drawn_inputs` into pages; returns K, V, the Pages, offsets and lengths, and keeps the last."""
    _, *keys, _ = drawn_inputs(shape, seed, spread)
    lengths = [of_one.seq_kv for of_one in shape.all_lengths]
    (k, v), table = in_pages(keys, lengths, shape.page_size, seed)
    used = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    pages, begins = pages_of(k, v, table, None, used)
    return *as_rows(k, v, pages), pages, begins, used


@functools.lru_cache(maxsize=1)
def result_tensors(shape: AttentionShape) -> _Result:
    """Returns tensors on the GPU for a kernel of this problem to write to; those of the last problem are kept."""
    # One result for all kernels: they run one after another, and an 80 GB card could not hold a result for each.
    rows: tuple[int, ...] = (shape.batch, shape.heads, shape.seq_q)
    of_lse = rows
    if shape.packed:
        rows, of_lse = (shape.totals[0], shape.heads), (shape.heads, shape.totals[0])
    output = torch.empty((*rows, shape.head_dim_v), dtype=getattr(torch, shape.dtype), device=DEVICE)
    return _Result(output, torch.empty(of_lse, device=DEVICE) if "lse" in shape.asked else None)


def _expected(inputs: _Inputs, shape: AttentionShape) -> tuple[_Result, _Result]:
    """Returns two results for these inputs, the right one in fp64 and PyTorch's in the problem's own precision."""
    if shape.packed:
        each = (_expected(_Inputs(*part, inputs.asked), shape.as_batch()) for part in each_sequence(shape, *inputs[:3]))
        exacts, peers_ = zip(*each)
        return _packed(exacts), _packed(peers_)
    q, k, v, asked = inputs
    options: dict[str, Any] = {"mask": shape.mask, "scale": shape.head_dim**-0.5, **asked}
    exact = _Result(*reference.attention_and_lse(q, k, v, precise=True, **options))
    lse = reference.lse_same_precision(q, k, **options) if "lse" in shape.asked else None
    return exact, _Result(reference.attention_same_precision(q, k, v, **options), lse)


def _packed(results: Sequence[_Result]) -> _Result:
    """Returns the results of sequences, (1, heads, rows, head_dim_v) and (1, heads, rows), as those of packed ones."""
    output = torch.cat([found.output[0].transpose(0, 1) for found in results])
    lses = [found.lse[0] for found in results if found.lse is not None]
    return _Result(output, torch.cat(lses, dim=1) if lses else None)


# The largest problem's reference takes gigabytes and seconds, the ragged ones nothing: keep the last few.
@functools.lru_cache(maxsize=32)
def _references(shape: AttentionShape, seed: int, spread: float) -> tuple[_Result, _Result]:
    return _expected(drawn_inputs(shape, seed, spread), shape)


def _judged(found: _Result, exact: _Result, peer: _Result) -> ErrorReport:
    """Compares a result's output and LSE with an fp64 and a same-precision result, and returns the worse error."""
    report = reference.compare(found.output, exact.output, peer.output)
    if found.lse is None or exact.lse is None or peer.lse is None:
        return report
    return reference.worst_of([report, reference.compare_lse(found.lse, exact.lse, peer.lse)])


@functools.cache
def _kernel(schedule: Schedule, variant: Variant) -> CompiledKernel:
    return compile_kernel(schedule, variant)


def _implementation(
    candidate: Candidate, shape: AttentionShape, seed: int, spread: float = 1.0
) -> Callable[[], _Result]:
    q, k, v, asked = drawn_inputs(shape, seed, spread)
    if candidate.schedule is None:
        is_product = candidate.name in PRODUCTS
        peer = (
            peers.build_product(candidate.name, q.dtype, q.device)
            if is_product
            else peers.build(candidate.name, shape, q, k, v, offsets_of(shape, q.device) if shape.packed else None)
        )
        return lambda: _Result(peer(), None)
    variant, result, parts = candidate.variant, result_tensors(shape), candidate.parts(shape)
    if candidate.strided:
        q, k, v, output = map(rows_together, (q, k, v, torch.full_like(result.output, float("nan"))))
        result = _Result(output, result.lse)
    kernel, sms = _kernel(candidate.schedule, variant).launch, candidate.sms
    launch = Launch.of(kernel, candidate.schedule, variant, shape, sms, parts)
    offsets: tuple[Any, ...] = ()
    of_pages: tuple[Any, ...] = ()
    if shape.packed:
        (begins_q, begins_k), used = offsets_of(shape, q.device), None
        if shape.page_size:
            k, v, pages, begins_k, used = drawn_pages(shape, seed, spread)
            of_pages = pages[: len(PAGES)]
        offsets = (*launch.offsets(begins_q, begins_k, None, used, shape.totals[0]), *of_pages)
    values, tensors = tuple(asked.get(feature.word) for feature in INPUTS), (q, k, v, result.output)
    arguments = launch.arguments(tensors, result.lse, shape.head_dim**-0.5, values, offsets)

    def run() -> _Result:
        launch.kernel(*arguments)
        return result

    return run


def rows_together(x: Tensor) -> Tensor:
    """Returns a copy of (batch, heads, rows, columns) whose memory has all heads of a row side by side."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def offsets_of(shape: AttentionShape, device: torch.device | str = DEVICE) -> tuple[Tensor, Tensor]:
    """Returns where a shape's packed sequences begin in Q and in K, int32 (sequences + 1,), on the GPU or `device`."""
    both = zip(*shape.all_lengths)
    q, k = (torch.tensor([0, *accumulate(of)], dtype=torch.int32, device=device) for of in both)
    return q, k


def _unwritten(shape: AttentionShape) -> None:
    """Fills with NaN the tensors that kernels write, so that nothing looks computed that a kernel leaves out."""
    for tensor in result_tensors(shape):
        if tensor is not None:
            tensor.fill_(float("nan"))


def verify(candidate: Candidate, shape: AttentionShape, spread: float, seed: int) -> tuple[ErrorReport, bool]:
    """Runs a candidate on inputs of this shape and seed, and returns (its error, whether repeats are bitwise equal).

    Q is multiplied by `spread`.
    """
    exact, peer = _references(shape, seed, spread)
    call = _implementation(candidate, shape, seed, spread)
    _unwritten(shape)
    first = call().copy()
    report = _judged(first, exact, peer)
    stable = all(first.equals(call()) for _ in range(REPEATS - 1)) if report.finite else True
    return report, stable


def verify_some_rows(candidate: Candidate, seed: int) -> ErrorReport | str:
    """Returns the error of the last rows of some heads of the candidate's problem, or why a peer does not take it.

    `verify` computes all of a problem in fp64. For a problem of 16k keys that takes longer than to time it. The whole
    output must be finite.
    """
    shape = candidate.shape
    if candidate.schedule is None and (reason := peers.why_not(candidate.name, shape)):
        return reason
    call = _implementation(candidate, shape, seed)
    _unwritten(shape)
    try:
        with warnings.catch_warnings():
            # SDPA says of every backend why it is not used, in several lines.
            warnings.simplefilter("ignore")
            found = call()
    except RuntimeError as error:
        if candidate.schedule is not None:
            raise
        # Raises once more where it was no refusal and the context is broken.
        torch.cuda.synchronize()
        return str(error).strip().partition("\n")[0]
    if not found.output.isfinite().all():
        return ErrorReport(0.0, 0.0, 0.0, 0.0, False)
    if shape.packed:
        return _some_sequences(shape, seed, found)
    q, k, v, asked = drawn_inputs(shape, seed)
    # Queries and keys end together, so the last queries see the same keys by themselves.
    of_all = torch.linspace(0, shape.batch * shape.heads - 1, SOME_HEADS).long().unique().tolist()
    places = [divmod(number, shape.heads) for number in of_all]

    def some(tensor: Tensor, group: int = 1) -> Tensor:
        return torch.stack([tensor[b, h // group] for b, h in places])[None]

    def last(tensor: Tensor) -> Tensor:
        return some(tensor)[:, :, -SOME_ROWS:]

    heads = [head for _, head in places]
    own = {word: value[heads] if isinstance(value, Tensor) else value for word, value in asked.items()}
    part = _Inputs(last(q), some(k, shape.group), some(v, shape.group), own)
    rows = _Result(last(found.output), None if found.lse is None else last(found.lse))
    return _judged(rows, *_expected(part, shape))


def _some_sequences(shape: AttentionShape, seed: int, found: _Result) -> ErrorReport:
    """Returns the error of the last rows of some heads of some of a packed problem's sequences."""
    *tensors, asked = drawn_inputs(shape, seed)
    each = enumerate(zip(each_sequence(shape, *tensors), accumulate(n.seq_q for n in shape.all_lengths)))
    chosen = {*torch.linspace(0, shape.batch - 1, SOME_HEADS).long().tolist()}
    reports = []
    for number, ((q, k, v), end) in each:
        rows = min(SOME_ROWS, q.shape[2])
        if number not in chosen or not rows:
            continue
        heads = [number % shape.heads_kv * shape.group]
        own = {word: value[heads] if isinstance(value, Tensor) else value for word, value in asked.items()}
        head_kv = [heads[0] // shape.group]
        part = _Inputs(q[:, heads, -rows:], k[:, head_kv], v[:, head_kv], own)
        output = found.output[end - rows : end, heads].transpose(0, 1)[None]
        lse = None if found.lse is None else found.lse[None, heads, end - rows : end]
        reports.append(_judged(_Result(output, lse), *_expected(part, shape.as_batch())))
    return reference.worst_of(reports)


_loaded: dict[Candidate, Callable[[], object]] = {}
_batches: dict[Candidate, timing.TimedBatch] = {}


def load(candidate: Candidate, seed: int, batches: type[timing.TimedBatch] | None = None) -> int:
    """Loads a candidate for `sample`, runs it once, and returns how many calls a time covers, 1 unless in `batches`."""
    _loaded[candidate] = _implementation(candidate, candidate.shape, seed)
    call(candidate)
    if not batches:
        return 1
    _batches[candidate] = batches(_loaded[candidate])
    return _batches[candidate].calls


def call(candidate: Candidate) -> None:
    """Runs a loaded candidate once, and waits until the GPU has finished it."""
    _loaded[candidate]()
    torch.cuda.synchronize()


def forget(candidate: Candidate) -> None:
    """Forgets one loaded candidate."""
    _loaded.pop(candidate, None)
    _batches.pop(candidate, None)


def forget_tensors() -> None:
    """Has the next candidate get inputs and results of its own; those that are loaded keep theirs."""
    drawn_inputs.cache_clear()
    drawn_pages.cache_clear()
    result_tensors.cache_clear()


def unload() -> None:
    """Forgets the loaded candidates and their inputs."""
    _loaded.clear()
    _batches.clear()
    forget_tensors()
    _references.cache_clear()
    torch.cuda.empty_cache()


def warm(candidate: Candidate, seconds: float) -> None:
    """Runs a loaded candidate again and again for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call(candidate)


def sample(candidate: Candidate, calls: int = timing.CALLS_PER_ROUND) -> tuple[list[float], int | None]:
    """Times a loaded candidate, and returns (milliseconds of each call or the mean of a batch, SM clock in MHz)."""
    if candidate not in _batches:
        return timing.sample(_loaded[candidate], calls)
    ms, clock = _batches[candidate].sample()
    return [ms], clock


def device_name() -> str | None:
    """Returns the GPU's name, or None without a GPU."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
