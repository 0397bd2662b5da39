"""Gradients of attention: by definition in fp64, with a kernel's roundings written out, and by running Programs.

All tensors are (batch, heads, rows, columns), of K and V with fewer heads where heads share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tl_attention.lab.oracle.features import changes, slope_of, values_of_head
from tl_attention.lab.oracle.gradient_tile import GradientTile, row_d, row_lse
from tl_attention.lab.oracle.reference import attention_and_lse
from tl_attention.lab.oracle.tile import Observer
from tl_attention.problem.mask import FULL, TENSORS, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.program.machine import Policy, execute
from tl_attention.program.program import Program


def gradients(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, d_lse: Tensor | None = None, *, mask: Mask, scale: float,
    precise: bool, **asked: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Returns dQ, dK and dV by name, in fp64 if `precise`, else in fp32 with P, dS and the output rounded to 16 bits.

    A query that sees no key has gradients of 0. `d_lse` is the LSE's gradient, (batch, heads, seq_q). `asked` are
    features by word: numbers, or tensors (heads,).
    """
    output, lse = attention_and_lse(q, k, v, mask=mask, scale=scale, precise=precise, **asked)
    d = row_d(d_out.to(lse.dtype), output.to(lse.dtype), lse, d_lse)
    return gradients_from(lse, d, q, k, v, d_out, mask=mask, scale=scale, precise=precise, **asked)


def gradients_from(
    lse: Tensor, d: Tensor, q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, *, mask: Mask, scale: float, precise: bool,
    **asked: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Returns what `gradients` does, from LSE and D of rows, both (batch, heads, seq_q)."""
    compute, group = torch.float64 if precise else torch.float32, q.shape[1] // k.shape[1]
    queries, keys, values, grad = (
        x.to(compute).repeat_interleave(repeat, dim=1) for x, repeat in ((q, 1), (k, group), (v, group), (d_out, 1))
    )
    scores = queries @ keys.mT * scale
    own = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    columns, end = torch.arange(k.shape[2])[None, :], k.shape[2]
    of_features = values_of_head(asked, torch.arange(q.shape[1])[:, None, None], compute)
    for change in changes(of_features):
        scores = change(scores, columns - own)
    slope = slope_of(of_features, scores)
    if mask != FULL:
        scores = scores.masked_fill(mask.hidden(columns, own, end, TENSORS), float("-inf"))
    p = torch.exp(scores - torch.where(lse.isneginf(), float("inf"), lse.to(compute))[..., None])
    ds = p * slope * (grad @ values.mT - d[..., None])
    if not precise:
        p, ds = (x.to(q.dtype).to(compute) for x in (p, ds))
    of_heads = {"dQ": ds @ keys * scale, "dK": ds.mT @ queries * scale, "dV": p.mT @ grad}
    of_kv = {name: x.unflatten(1, (-1, group)).sum(dim=2) for name, x in of_heads.items() if name != "dQ"}
    found = of_heads | of_kv
    return found if precise else {name: x.to(q.dtype) for name, x in found.items()}


def interpret_gradients(
    program: Program, inputs: Mapping[str, Tensor], block_M: int, block_N: int, *, mask: Mask, scale: float,
    policy: Policy, observer: Observer | None = None, **asked: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Computes a loop's gradients by running its Program on the CPU under an adversary, in tiles of any size.

    `inputs` are Q, K, V, dO and the forward's O by name, fp16 or bf16, and LSE, fp32 (batch, heads, seq_q), with its
    gradient dLSE if it has one. Returns dQ, or dK and dV, in their dtype. `asked` are features that change scores, by
    word. Raises machine.Deadlock.
    """
    q, k, v = (inputs[name] for name in "QKV")
    batch, heads, seq_q, head_dim = q.shape
    heads_kv, seq_kv, group = k.shape[1], k.shape[2], heads // k.shape[1]
    dtype = str(q.dtype).removeprefix("torch.")
    shape = AttentionShape(1, heads, seq_q, seq_kv, head_dim, dtype, mask, v.shape[3], heads_kv)
    of_rows = program.table.rows == "queries"
    if not of_rows:
        # Rows are keys: for the tiles, and the mask, queries and keys change places.
        shape = replace(shape, seq_q=seq_kv, seq_kv=seq_q, mask=mask.transposed)
    d = row_d(inputs["dO"].float(), inputs["O"].float(), inputs["LSE"], inputs.get("dLSE"))
    whole = {**inputs, "LSE": row_lse(inputs["LSE"]), "D": d}
    rows = q if of_rows else k
    found = {
        name: torch.empty(*rows.shape[:3], (v if name == "dV" else q).shape[3], dtype=q.dtype)
        for name in program.table.stored
    }
    for b, h, index in product(range(batch), range(rows.shape[1]), range(row_tiles(shape, block_M))):
        blocks = kv_blocks(shape, block_M, block_N, index, program.least_blocks)
        tile = GradientTile(program.table, shape, block_M, block_N, index, blocks, scale, q.dtype, observer, asked)
        # A tile of keys has the queries of all heads that share them, one head behind the other.
        for head in (h,) if of_rows else range(h * group, (h + 1) * group):
            tile.given({name: x[b, head // group if name in "KV" else head] for name, x in whole.items()})
            execute(program, len(blocks), tile, policy)
        for name, result in found.items():
            to = result[b, h, index * block_M : (index + 1) * block_M]
            to.copy_((tile.buffers[program.table.stored[name]] * (1.0 if name == "dV" else scale))[: len(to)])
    return found
