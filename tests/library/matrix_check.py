"""Draws and calls one case of the matrix test, and compares it with fp64 and with what it may touch."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpu_lost
import torch
from guarded import Guarded, bits, guarded, packed, repeated
from matrix_cases import REPEATED, Case
from torch import Tensor

from tl_attention import InputError, attention
from tl_attention.lab.oracle.reference import attention_and_lse, compare, compare_lse
from tl_attention.op.in_memory import as_bhsd
from tl_attention.schedule.schedule import Schedule

# The issue allows an LSE this error, whatever its budget.
MOST_LSE = 1e-3
# What an output's memory holds before a call.
BEFORE = 7.0
Call = Callable[..., Any]


@dataclass(frozen=True)
class Drawn:
    """A drawn case has the tensors' values, (batch, heads, seq, head_dim), and where the tensors lie."""

    values: tuple[Tensor, ...]
    places: tuple[Guarded, ...]
    sinks: Tensor | None
    out: Guarded | None


def drawn(case: Case, seed: int, device: str) -> Drawn:
    """Draws normal numbers of mean 0.5 for a case, with NaN around all that is read."""
    generator = torch.Generator(device).manual_seed(seed)
    like = torch.empty(0, dtype=getattr(torch, case.dtype), device=device)
    read, out = places(case, like)
    for place, spread in zip(read, (case.cap[1], 1.0, 1.0)):
        numbers = torch.randn(place.tensor.shape, generator=generator, device=device) + 0.5
        # What is repeated is written once.
        written = slice(1 if case.memory == REPEATED else None)
        place.tensor[written].copy_((numbers * spread)[written])
    values = tuple(place.tensor.clone(memory_format=torch.contiguous_format) for place in read)
    sinks = torch.randn(case.heads, generator=generator, device=device) * 4 + 2 if case.sinks else None
    return Drawn(values, read, sinks, out)


def places(case: Case, like: Tensor) -> tuple[tuple[Guarded, ...], Guarded | None]:
    """Makes the places of q, k and v, and of out if there is one."""
    sizes = [
        (case.batch, case.heads, case.seq_q, case.head_dim),
        (case.batch, case.heads_kv, case.seq_kv, case.head_dim),
        (case.batch, case.heads_kv, case.seq_kv, case.head_dim_v),
        (case.batch, case.heads, case.seq_q, case.head_dim_v),
    ]
    *read, written = sizes
    out = None if case.out == "none" else guarded(written, like, case.out, case.layout, BEFORE)
    if case.memory == REPEATED:
        return tuple(repeated(size, like, case.layout, math.nan) for size in read), out
    if case.memory != "packed":
        return tuple(guarded(size, like, case.memory, case.layout, math.nan) for size in read), out
    together = [read] if case.seq_q == case.seq_kv else [read[:1], read[1:]]
    return tuple(part for whole in together for part in packed(whole, like, math.nan)), out


def fault_of(case: Case, schedule: Schedule) -> str:
    """Says in one line what is wrong with a case of fresh numbers on the GPU; nothing where it is right."""

    def call(*tensors: Tensor, **options: Any) -> Any:
        result = attention(*tensors, schedule=schedule, **options)
        gpu_lost.wait()
        return result

    seed = random.SystemRandom().randrange(2**31)
    try:
        found = "; ".join(faults(case, seed, "cuda", call))
    except gpu_lost.Lost as lost:
        gpu_lost.leave(f"seed {seed} {case}: {lost}")
    except Exception as error:
        found = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"seed {seed} {case}: {found}" if found else ""


def faults(case: Case, seed: int, device: str, call: Call = attention) -> Iterator[str]:
    """Says everything that is wrong with the case of these numbers."""
    given = drawn(case, seed, device)
    inputs = [*(place.memory for place in given.places), *([] if given.sinks is None else [given.sinks])]
    inputs = [bits(x) for x in inputs]
    before = [x.clone() for x in inputs]
    around = given.out.around() if given.out else None
    q, k, v = (as_bhsd(place.tensor, case.layout) for place in given.places)
    out = as_bhsd(given.out.tensor, case.layout) if given.out else None
    options: dict[str, Any] = {"softcap": case.cap[0], "sinks": given.sinks}
    try:
        result = call(
            *(q, k, v),
            **options,
            causal=case.causal,
            window_size=case.window,
            scale=None if case.scale == "default" else case.scale,
            layout=case.layout,
            return_lse=case.lse,
            out=out,
        )
    except InputError as refusal:
        if not case.is_refused or "strides" not in str(refusal) or "\n" in str(refusal):
            yield f"refused: {refusal}"
    else:
        if case.is_refused:
            yield "a stride of 0 is not refused"
        else:
            output, lse = result if case.lse else (result, None)
            yield from _wrong(case, given.values, output, lse, out, options)
    if around is not None and not torch.equal(given.out.around(), around):  # type: ignore[union-attr]
        yield "written beyond out"
    if not all(map(torch.equal, inputs, before)):
        yield "an input was changed"


def _wrong(
    case: Case,
    values: tuple[Tensor, ...],
    output: Tensor,
    lse: Tensor | None,
    out: Tensor | None,
    options: dict[str, Any],
) -> Iterator[str]:
    sizes = (case.batch, case.heads, case.seq_q, case.head_dim_v)
    if output.dtype != values[0].dtype or tuple(as_bhsd(output, case.layout).shape) != sizes:
        yield f"the output is {tuple(output.shape)} {output.dtype}"
        return
    if out is not None and output is not out:
        yield "the output is not out"
    if out is None and not output.is_contiguous():
        yield "the output is not contiguous"
    if lse is not None and (tuple(lse.shape), lse.dtype, lse.is_contiguous()) != (sizes[:3], torch.float32, True):
        yield f"the LSE is {tuple(lse.shape)} {lse.dtype}"
        return
    output = as_bhsd(output, case.layout)
    if not output.numel():
        return
    options = options | {"mask": case.mask, "scale": case.factor}
    exact, exact_lse = attention_and_lse(*values, **options, precise=True)
    peer, peer_lse = attention_and_lse(*values, **options, precise=False)
    unseen = ~exact.any(dim=-1)
    if output[unseen].any():
        yield "a row that sees no key is not 0"
    if not unseen.all():
        error = compare(output, exact, peer)
        if not error.ok:
            yield f"output: {error}"
    if lse is not None:
        error = compare_lse(lse, exact_lse, peer_lse)
        if not error.ok or error.max_abs > MOST_LSE:
            yield f"LSE: {error}"
