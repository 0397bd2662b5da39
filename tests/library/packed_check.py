"""Draws and calls one case of packed sequences, and compares each sequence with fp64 and with what may be touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import gpu_lost
import torch
from packed_cases import PackedCase
from torch import Tensor

from tl_attention import attention_varlen
from tl_attention.problem.mask import Mask

# What an output's memory holds before a call.
BEFORE = 7.0
# The most that an LSE may be off.
MOST_LSE = 1e-3
# A sequence's factor of the error of PyTorch's attention in the same precision, as FlashAttention-3's test allows.
ALLOWED = {False: 2.0, True: 3.0}
Call = Callable[..., Any]


def offsets_of(lengths: tuple[int, ...], device: str) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def laid(sizes: list[tuple[int, int, int]], memory: str, like: Tensor) -> list[Tensor]:
    """Makes tensors (rows, heads, columns) of NaN that lie in memory as `memory` says."""
    if memory == "together" and len({rows for rows, _, _ in sizes}) == 1:
        widths = [heads * columns for _, heads, columns in sizes]
        whole = like.new_full((sizes[0][0], sum(widths)), math.nan)
        return [part.unflatten(-1, size[1:]) for part, size in zip(whole.split(widths, dim=-1), sizes)]
    found = []
    for rows, heads, columns in sizes:
        if memory == "heads first":
            found.append(like.new_full((heads, rows, columns), math.nan).transpose(0, 1))
        elif memory == "sliced":
            found.append(like.new_full((rows + 3, heads, columns + 8), math.nan)[2 : 2 + rows, :, 8:])
        else:
            found.append(like.new_full((rows, heads, columns), math.nan))
    return found


def at_least(rows: Tensor, count: int) -> Tensor:
    """Returns the rows with rows of 0 behind them, so that there are `count`."""
    return torch.cat([rows, rows.new_zeros((count - rows.shape[0], *rows.shape[1:]))])


def padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: list[tuple[int, int, int, int]],
    *,
    mask: Mask,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
    precise: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes attention of the sequences at these places, (first row, first key, rows, keys), all at once.

    Returns the output in fp64 (sequences, rows, heads, head_dim_v), the LSE (sequences, rows, heads), and which rows
    there are. Unless `precise`, products and probabilities have the precision of q, as PyTorch's attention has them.
    """
    most_q, most_k = (max(place[side] for place in places) for side in (2, 3))
    group = q.shape[1] // k.shape[1]
    at_q = torch.stack([at_least(q[first : first + rows], most_q) for first, _, rows, _ in places])
    at_k, at_v = (
        torch.stack([at_least(x[first : first + keys], most_k) for _, first, _, keys in places]).repeat_interleave(
            group, 2
        )
        for x in (k, v)
    )
    dtype = torch.float64 if precise else q.dtype
    rows, keys = (torch.tensor([place[side] for place in places], device=q.device)[:, None] for side in (2, 3))
    i, j = (torch.arange(most, device=q.device) for most in (most_q, most_k))
    there = i < rows
    own = (i + keys - rows)[:, :, None]
    hidden = (j >= keys)[:, None]
    if mask.right is not None:
        hidden = hidden | (j > own + mask.right)
    if mask.left is not None:
        hidden = hidden | (j < own - mask.left)
    scores = (
        torch.einsum("bqhd,bkhd->bhqk", at_q.to(dtype), at_k.to(dtype)).to(torch.float64 if precise else torch.float32)
        * scale
    )
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(hidden.expand(len(places), most_q, most_k)[:, None], -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:3], -math.inf)
    seen = (scores - lse[..., None]).exp().nan_to_num(0)[..., :most_k].to(dtype)
    output = torch.einsum("bhqk,bkhd->bqhd", seen, at_v.to(dtype)).double()
    return output, lse.transpose(1, 2).double(), there


def faults(
    case: PackedCase, seed: int, device: str = "cuda", call: Call = attention_varlen, **more: Any
) -> Iterator[str]:
    """Says everything that is wrong with the case of these numbers; NaN stands wherever no sequence may look."""
    kernel, generator = case.kernel, torch.Generator(device).manual_seed(seed)
    like = torch.empty(0, dtype=getattr(torch, kernel.dtype), device=device)
    (heads, heads_kv), (head_dim, head_dim_v) = kernel.heads, case.head_dims
    total_q, total_k = (sum(lengths) + case.behind for lengths in (case.lengths_q, case.lengths_k))
    q, k, v = laid(
        [(total_q, heads, head_dim), (total_k, heads_kv, head_dim), (total_k, heads_kv, head_dim_v)], case.memory, like
    )
    cu_q, cu_k = (offsets_of(lengths, device) for lengths in (case.lengths_q, case.lengths_k))
    begins = [*zip([0, *accumulate(case.lengths_q)], [0, *accumulate(case.lengths_k)])]
    for number, ((q_first, k_first), (rows, keys)) in enumerate(zip(begins, case.each)):
        if number == case.spoilt:
            continue
        for tensor, first, count, spread in (
            (q, q_first, rows, case.cap[1]),
            (k, k_first, keys, 1.0),
            (v, k_first, keys, 1.0),
        ):
            numbers = torch.randn((count, *tensor.shape[1:]), generator=generator, device=device) + 0.5
            tensor[first : first + count] = (numbers * spread).to(tensor.dtype)
    sinks = torch.randn(heads, generator=generator, device=device) * 4 + 2 if kernel.sinks else None
    out = laid([(total_q, heads, head_dim_v)], case.memory if case.out else "contiguous", like)[0].fill_(BEFORE)
    used_q, used_k = (
        None if used is None else torch.tensor(used, dtype=torch.int32, device=device)
        for used in (case.used_q, case.used_k)
    )
    options: dict[str, Any] = {"softcap": case.cap[0], "sinks": sinks}
    result = call(
        q, k, v, cu_q, cu_k, *case.longest, seqused_q=used_q, seqused_k=used_k, causal=kernel.causal,
        window_size=case.window, return_lse=case.lse, out=out if case.out else None, zero_unused=case.zero_unused,
        **options, **more,
    )  # fmt: skip
    output, lse = result if case.lse else (result, None)
    if (tuple(output.shape), output.dtype) != ((total_q, heads, head_dim_v), q.dtype) or (
        case.out and output is not out
    ):
        yield f"the output is {tuple(output.shape)} {output.dtype}"
        return
    known = torch.zeros(total_q, dtype=torch.bool, device=device)
    for (first, _), (rows, _) in zip(begins, case.each):
        known[first : first + rows] = True
    compared = [n for n, (rows, _) in enumerate(case.each) if rows and n != case.spoilt]
    if compared:
        places = [(*begins[n], *case.each[n]) for n in compared]
        options |= {"mask": case.mask, "scale": head_dim**-0.5}
        exact, exact_lse, there = padded(q, k, v, places, **options, precise=True)
        peer, _, _ = padded(q, k, v, places, **options, precise=False)
        most = there.shape[1]
        mine = torch.stack([at_least(output[first : first + rows], most) for first, _, rows, _ in places]).double()
        shown = there[..., None, None]
        error, of_peer = ((x - exact).masked_fill(~shown, 0).abs().max() for x in (mine, peer))
        rounded = exact.to(q.dtype)
        rounding = ((rounded + 0.3 - 0.3) - rounded).double().abs().max()
        allowed = ALLOWED[case.cap[0] > 0] * of_peer + 2 * rounding
        if not error <= allowed:
            yield f"the output is off by {error:.2e}, allowed {allowed:.2e}"
        if lse is not None:
            found = torch.stack(
                [at_least(lse[:, first : first + rows].t(), most) for first, _, rows, _ in places]
            ).double()
            same = (found == exact_lse) | ((found - exact_lse).abs() <= MOST_LSE) | ~there[..., None]
            if not same.all():
                yield f"the LSE of {int((~same).sum())} rows is off"
    unused = output[~known]
    if case.zero_unused and unused.any():
        yield "rows of no sequence are not 0"
    if case.out and not case.zero_unused and (unused != BEFORE).any():
        yield "rows of no sequence were written"


def fault_of(case: PackedCase, seed: int) -> str:
    """Says in one line what is wrong with a case on the GPU; nothing where it is right."""

    def call(*given: Any, **options: Any) -> Any:
        result = attention_varlen(*given, **options)
        gpu_lost.wait()
        return result

    try:
        found = "; ".join(faults(case, seed, call=call))
    except gpu_lost.Lost as lost:
        gpu_lost.leave(f"seed {seed} {case}: {lost}")
    except Exception as error:
        found = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"seed {seed} {case}: {found}" if found else ""
