"""A pair of schedules, of loops dq and dkdv, computes the gradients of a call with two kernels of our own.

The kernel of dQ is launched first. It leaves D = rowsum(dO * O) and an LSE to base 2 of each row in a workspace, which
the kernel of dK and dV reads. No two threads add to one number in memory, so the same call has the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tl_attention.compiler.compile import CompiledKernel, is_finished, why_none_is_made
from tl_attention.errors import InputError, ScheduleRefused, shown
from tl_attention.kernels.backward.dialect import PADDED_ROWS
from tl_attention.kernels.registry import lowering_of, parameters_of
from tl_attention.op import checks, compiled
from tl_attention.op.aten import Saved
from tl_attention.op.call import Call
from tl_attention.op.in_memory import ALIGNMENT, has_rows, whole_strides
from tl_attention.op.launch import FOUND
from tl_attention.op.plan import MOST_KEPT, NAMED
from tl_attention.problem.card import HOPPER
from tl_attention.problem.features import BY_WORD, INPUTS, NOTHING, FeatureValues
from tl_attention.problem.mask import WINDOW, Mask, ceildiv, fitted, is_window, shortened
from tl_attention.problem.packed import words_of_list
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import GRADIENT_PARAMETERS, OFFSETS, Variant
from tl_attention.schedule.files.named import Named, resolve
from tl_attention.schedule.schedule import Schedule

# In the order of their launches.
LOOPS = tuple(GRADIENT_PARAMETERS)
# The offsets of packed sequences' queries and keys, and how many of each count, None if all do.
Offsets = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def texts_of(given: object) -> tuple[str, ...]:
    """Returns the texts by which `resolve` finds a pair's schedules. Raises InputError for what is no pair."""
    pair = [*given] if isinstance(given, (tuple, list)) else []
    if len(pair) != len(LOOPS) or not all(isinstance(one, NAMED) for one in pair):
        raise InputError(
            f"attention: backward is {shown(given)}, expected a pair ({', '.join(LOOPS)}), each a name, a file, a label "
            "or a Schedule"
        )
    return tuple(one.label if isinstance(one, Schedule) else str(one) for one in pair)


def pair_of(texts: Sequence[str]) -> list[Named]:
    """Returns the schedules of a pair. Raises InputError for those of another loop, and for two that do not fit."""
    pair = [resolve(text) for text in texts]
    for named, loop in zip(pair, LOOPS, strict=True):
        named.refuse_other_loop(loop)
    rows, block = pair[0].schedule.block_M, pair[1].schedule.block_N
    # Otherwise a last block would have rows behind the last tile, whose D and LSE nobody has written.
    if rows % block:
        raise InputError(
            f"attention: backward: dkdv reads {block} rows at once (block_N), expected a divisor of the {rows} that a "
            "tile of dq has (block_M)"
        )
    return pair


def problem_of(tensors: Sequence[Tensor], mask: Mask, asked: FeatureValues = NOTHING) -> AttentionShape:
    """Returns the problem of q, k and v with one row, as its kernels serve all lengths.

    Tensors are (batch, heads, seq, head_dim), or packed (rows, heads, head_dim). Lengths may be symbols: they only say
    which sides of a window hide a key.
    """
    q, k, v = tensors
    heads_kv = max(1, int(k.shape[1]))
    heads = heads_kv * max(1, int(q.shape[1]) // heads_kv)
    dtype = str(q.dtype).removeprefix("torch.")
    sizes = 1, heads, 1, 1, int(q.shape[-1]), dtype, _fitted(mask, q, k), int(v.shape[-1]), heads_kv, asked
    return AttentionShape(*sizes, packed=_is_packed(q))


def _is_packed(q: Tensor) -> bool:
    # Tensors of packed sequences have no batch.
    return q.dim() == 3


def _fitted(mask: Mask, q: Tensor, k: Tensor) -> Mask:
    """Returns the mask as kernels have it for tensors that `problem_of` describes."""
    if not is_window(mask):
        return mask
    # How long the longest of packed sequences is, is not known.
    return shortened(mask, q.shape[0] + k.shape[0]) if _is_packed(q) else fitted(mask, q.shape[2], k.shape[2])


def launched(
    pair: Sequence[Named], problem: AttentionShape, strided: bool, arch: str = HOPPER.arch
) -> list[tuple[Named, Variant]]:
    """Returns what the backward of a problem launches, in order: schedules, each with its kernel's variant.

    Raises InputError, with file and line, for what one of the schedules does not compute.
    """
    # Imported late, as calls without a pair do without it.
    from tl_attention.kernels.preflight import check_card

    found = list(zip(pair, _variants(problem, strided, arch), strict=True))
    for named, variant in found:
        try:
            check_card(named.schedule, variant.card)
            lowering_of(named.schedule).check_variant(named.schedule, variant)
        except ScheduleRefused as refusal:
            raise named.refused(refusal) from None
    return found


@functools.lru_cache(maxsize=MOST_KEPT)
def _variants(problem: AttentionShape, strided: bool, arch: str) -> tuple[Variant, ...]:
    """Returns the variants of the kernels that a backward launches, which each step of a training asks for."""
    return tuple(replace(of_loop, strided=strided, arch=arch) for of_loop in problem.variants_of_gradients())


def why_not(texts: Sequence[str], problem: AttentionShape, strided: bool, arch: str) -> str:
    """Returns why a pair does not compute a problem's gradients here, "" if it does: it compiles nothing."""
    try:
        kernels, lacking = launched(pair_of(texts), problem, strided, arch), why_none_is_made()
        if not lacking or all(is_finished(named.schedule, variant) for named, variant in kernels):
            return ""
    except InputError as error:
        return str(error)
    return f"its kernels do not ship, and {lacking}"


def check_serves(call: Call, mask: Mask) -> None:
    """Raises InputError if the call's pair does not compute its gradients. Lengths may be symbols."""
    launched(pair_of(texts_of(call.backward)), *of_call(call, mask))


def of_call(call: Call, mask: Mask) -> tuple[AttentionShape, bool]:
    """Returns the problem of a call with what it asks for, and whether its kernels are those for strided tensors."""
    tensors = [call.where.canonical(x) for x in call[:3]]
    values = {f.word: value if f.is_number else value is not None for f, value in zip(INPUTS, call.values)}
    return problem_of(tensors, mask, FeatureValues(**values, lse=call.return_lse)), is_strided(tensors)


def is_strided(tensors: Sequence[Tensor]) -> bool:
    """Says whether a kernel for contiguous tensors does not serve these."""
    return not all(x.is_contiguous() for x in tensors)


def kernels(
    texts: Sequence[str], problem: AttentionShape, strided: bool, arch: str
) -> list[tuple[Schedule, Variant, CompiledKernel]]:
    """Returns the pair's schedules, variants and compiled kernels for a problem, as `problem_of` describes it.

    They are compiled once in a process. Raises InputError for what is not proved.
    """
    found = []
    # Calls are checked once, and kernels when they are compiled.
    for named, variant in zip(pair_of(texts), _variants(problem, strided, arch), strict=True):
        try:
            found.append((named.schedule, variant, compiled.kernel_of(named.schedule, variant)))
        except ScheduleRefused as refusal:
            raise named.refused(refusal) from None
    return found


def gradients(
    texts: Sequence[str], given: Saved, d_lse: Tensor | None, mask: Mask, scale: float | None, **features: float
) -> list[Tensor]:
    """Returns the gradients of q, k and v by a pair's kernels, and D. Tensors are (batch, heads, seq, head_dim).

    Gradients lie as their inputs do, without gaps, and are 0 of rows that see no key. D is fp32 (batch, heads, seq_q)
    as the LSE and its gradient `d_lse`: each row's sum of dO * O, less `d_lse` but for rows with an LSE of -inf.
    `features` are those that change scores, by word.
    """
    _, q, k, v, _, lse = given
    batch, heads, seq_q, _ = q.shape
    if 0 in (batch, heads, seq_q, k.shape[2]):
        d = torch.zeros_like(lse) if d_lse is None else d_lse.neg().masked_fill(lse.isneginf(), 0)
        return [*(torch.zeros_like(x) for x in (q, k, v)), d]
    found = [torch.empty_like(x) for x in (q, k, v)]
    rows = lse.new_empty((2, batch, heads, ceildiv(seq_q, PADDED_ROWS) * PADDED_ROWS))
    _launch(texts, given, d_lse, found, rows, mask, scale, features)
    return [*found, rows[1][..., :seq_q]]


def packed_gradients(
    texts: Sequence[str], given: Saved, d_lse: Tensor | None, mask: Mask, scale: float | None,
    offsets: Offsets, **features: float,
) -> list[Tensor]:  # fmt: skip
    """Returns the gradients of q, k and v of packed sequences by a pair's kernels. None of the tensors is empty.

    Tensors are (rows, heads, head_dim), and the LSE is (heads, rows), as `attention_varlen` has them. Rows that are no
    sequence's have gradients of 0. `offsets` say where queries and keys of sequences begin, and how many rows of each
    sequence count.
    """
    _, q, k, v, _, lse = given
    (total_q, heads, _), sequences = q.shape, offsets[0].shape[0] - 1
    found = [torch.zeros_like(x) for x in (q, k, v)]
    # Numbers of rows are 0 for a sequence without queries, of which the kernel of dQ has no tile.
    rows = lse.new_zeros((2, 1, heads, (ceildiv(total_q, PADDED_ROWS) + sequences) * PADDED_ROWS))
    _launch(texts, given, d_lse, found, rows, mask, scale, features, offsets)
    return found


def _launch(
    texts: Sequence[str], given: Saved, d_lse: Tensor | None, found: Sequence[Tensor], rows: Tensor, mask: Mask,
    scale: float | None, features: Mapping[str, float], offsets: Offsets | tuple[()] = (),
) -> None:  # fmt: skip
    """Launches a pair's kernels, which write the gradients `found`, and LSE and D of rows to `rows`."""
    strided = bool(offsets) or not all(x.is_contiguous() for x in given[1:4])
    grad, q, k, v, output, lse = given.but(lambda x: _readable(x, strided))
    dq, dk, dv = map(whole_strides, found)
    changing = {BY_WORD[word].name: value for word, value in features.items() if value}
    arguments = {
        "Q": q, "K": k, "V": v, "dO": grad, "O": output, "LSE": lse.contiguous(), "RowLSE": rows[0], "RowD": rows[1],
        "dLSE": None if d_lse is None else d_lse.contiguous(), "dQ": dq, "dK": dk, "dV": dv, **changing,
        "softmax_scale": q.shape[-1] ** -0.5 if scale is None else scale, **_fitted(mask, q, k).values(WINDOW),
    }  # fmt: skip
    # Used lengths as long as the offsets stand for none.
    whole = (own if given is None else given for own, given in zip(offsets[:2] * 2, offsets))
    arguments |= zip((parameter.name for parameter in OFFSETS), whole)
    sms, arch = compiled.sms_of(q.device), checks.checked_card(q.device).arch
    problem = problem_of(given[1:4], mask, FeatureValues(lse=d_lse is not None, **features))
    with torch.cuda.device(q.device):
        for schedule, variant, kernel in kernels(texts, problem, strided, arch):
            arguments["workers"] = schedule.workers(sms)
            if offsets:
                total = (q if schedule.table.rows == "queries" else k).shape[0]
                arguments["Tiles"] = words_of_list(total, offsets[0].shape[0] - 1, schedule.block_M)
            wanted = (parameter.name for parameter in parameters_of(schedule, variant) if parameter.kind not in FOUND)
            kernel.launch(*(arguments[name] for name in wanted))


def _readable(x: Tensor, strided: bool) -> Tensor:
    """Returns a tensor as kernels read it, which take strides if `strided`: a copy where rows do not lie so."""
    if x.data_ptr() % ALIGNMENT or not (has_rows(x) if strided else x.is_contiguous()):
        x = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
    return whole_strides(x) if strided else x
