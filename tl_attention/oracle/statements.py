"""What each statement of the attention loop computes, on a tile's buffers, by the name of its `code`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from tl_attention.loop.exp2 import COEFFICIENTS, LOWEST
from tl_attention.loop.table import whole
from tl_attention.oracle.tile import Tile, rows_of
from tl_attention.schedule.options import Exp2Polynomial

# The arithmetic of a mask's answers for tensors: the least of a number and a tensor, and `or` by element.
TENSORS = SimpleNamespace(min=lambda number, tensor: tensor.clamp(max=number), Or=torch.logical_or)


def _finite_max(t: Tile) -> Tensor:
    # A row that has seen no key yet has maximum -inf; 0 in the exponent keeps it from becoming NaN.
    scores_max = t["scores_max"]
    return torch.where(scores_max == float("-inf"), 0.0, scores_max)


def _load(t: Tile) -> None:
    [source], [buffer] = t.entry.reads, t.entry.writes
    t[buffer] = rows_of(t.inputs[source], t.first_key, t.block_N)


def _places(t: Tile) -> tuple[Tensor, Tensor]:
    """The numbers of the block's keys, (1, block_N), and where the tile's queries stand among them, (block_M, 1)."""
    keys = t.first_key + torch.arange(t.block_N)[None, :]
    return keys, t.first_row + torch.arange(t.block_M)[:, None] + t.shape.past_len


def _hidden(t: Tile) -> Tensor:
    """True where a query of the tile may not see a key of the block."""
    keys, own_keys = _places(t)
    return t.shape.mask.hidden(keys, own_keys, t.shape.seq_kv, TENSORS).expand(t.block_M, t.block_N)


def _mask(t: Tile) -> None:
    t["acc_s"] = torch.where(_hidden(t), float("-inf"), 0.0)


def _mma0(t: Tile) -> None:
    t["acc_s"] = t["acc_s"] + t["Q_shared"] @ t["K_shared"].T


def _mma0_cleared(t: Tile) -> None:
    t["acc_s"] = t["Q_shared"] @ t["K_shared"].T


def _mask_after(t: Tile) -> None:
    t["acc_s"] = torch.where(_hidden(t), float("-inf"), t["acc_s"])


def _max_prev(t: Tile) -> None:
    t["scores_max_prev"] = t["scores_max"]


def _max_init(t: Tile) -> None:
    t["scores_max"] = torch.full((t.block_M,), float("-inf"))


def _change(t: Tile) -> None:
    """What features do to scores, a part of row_max: what is hidden is -inf, and stays so."""
    for change in t.changes:
        keys, own_keys = _places(t)
        scores = t["acc_s"]
        t["acc_s"] = torch.where(scores == float("-inf"), scores, change(scores, keys - own_keys))


def _row_max(t: Tile) -> None:
    _change(t)
    t["scores_max"] = torch.maximum(t["scores_max"], t["acc_s"].amax(dim=1))


def _row_max_kept(t: Tile) -> None:
    _change(t)
    # From -inf every maximum is new: the difference is infinite, or no number and no less than anything.
    old = t["scores_max"]
    new = torch.maximum(old, t["acc_s"].amax(dim=1))
    t["scores_max"] = torch.where((new - old) * t.scale <= t.softmax.rescale_threshold, old, new)


def _max_merge(t: Tile) -> None:
    t["scores_max"] = torch.maximum(t["scores_max"], t["scores_max_prev"])


def _scale(t: Tile) -> None:
    t["scores_scale"] = torch.exp2((t["scores_max_prev"] - _finite_max(t)) * t.scale)


def _exp(t: Tile) -> None:
    exponents = (t["acc_s"][:, t.columns] - _finite_max(t)[:, None]) * t.scale
    values = torch.exp2(exponents)
    if polynomial := t.softmax.exp2_polynomial:
        chosen = on_fma_units(polynomial, t.block_M, t.block_N)[:, t.columns]
        values = torch.where(chosen, exp2(exponents, polynomial.degree), values)
    t.write_columns("acc_s", values)


def on_fma_units(polynomial: Exp2Polynomial, rows: int, columns: int) -> Tensor:
    """True for the elements of a tile whose exponentials the polynomial computes, by their wgmma register."""
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    register = 4 * (j // 8) + 2 * (i // 8 % 2) + j % 2
    return (register >= polynomial.first) & ((register - polynomial.first) % polynomial.every == 0)


def exp2(x: Tensor, degree: int) -> Tensor:
    """2^x in fp32 by the polynomial of this degree, 0 from LOWEST down."""
    x = x.clamp(min=LOWEST)
    power = torch.zeros_like(x)
    for coefficient in reversed(COEFFICIENTS[degree]):
        power = power * (x - x.floor()) + coefficient
    return torch.where(x > LOWEST, torch.ldexp(power, x.floor()), 0.0)


def _row_sum(t: Tile) -> None:
    t["scores_sum"] = t["acc_s"].sum(dim=1)


def _row_sum_added(t: Tile) -> None:
    # The first chunk scales the sum so far, the others only add to it.
    before = t["denominator"] if t.columns.start else t["denominator"] * t["scores_scale"]
    t["denominator"] = before + t["acc_s"][:, t.columns].sum(dim=1)


def _sum_merge(t: Tile) -> None:
    t["denominator"] = t["denominator"] * t["scores_scale"] + t["scores_sum"]


def _cast(t: Tile) -> None:
    t.write_columns("acc_s_cast", t["acc_s"][:, t.columns].to(t.dtype).float())


def _frag(t: Tile) -> None:
    """Columns of a tile in shared memory, or rows of V: along what is multiplied."""
    [source], [fragment] = t.entry.reads, t.entry.writes
    t[fragment] = t[source][t.columns] if source == "V_shared" else t[source][:, t.columns]


def _mma0_fragments(t: Tile) -> None:
    q, k, *before = t.entry.reads
    # Q stays in registers whole, or comes in fragments like K.
    scores = (t[q][:, t.columns] if q in t.given else t[q]) @ t[k].T
    t["acc_s"] = t["acc_s"] + scores if before else scores


def _mma1_fragments(t: Tile) -> None:
    v = next(buffer for buffer in t.entry.reads if whole(buffer) == "V_local")
    t["acc_o"] = t["acc_o"] + t["acc_s_cast"][:, t.columns] @ t[v]


def _rescale(t: Tile) -> None:
    t.write_columns("acc_o", t["acc_o"][:, t.columns] * t["scores_scale"][:, None])


def _mma1(t: Tile) -> None:
    t["acc_o"] = t["acc_o"] + t["acc_s_cast"] @ t["V_shared"]


STATEMENT_CODE: Mapping[str, Callable[[Tile], None]] = {
    "load": _load,
    "mask": _mask,
    "mma0": _mma0,
    "max_prev": _max_prev,
    "max_init": _max_init,
    "row_max": _row_max,
    "max_merge": _max_merge,
    "scale": _scale,
    "exp": _exp,
    "row_sum": _row_sum,
    "sum_merge": _sum_merge,
    "cast": _cast,
    "rescale": _rescale,
    "mma1": _mma1,
    # As the warp-specialised kernel does it.
    "mma0_cleared": _mma0_cleared,
    "mask_after": _mask_after,
    "row_max_kept": _row_max_kept,
    "row_sum_added": _row_sum_added,
    # As the mma.sync kernel does it.
    "frag_q": _frag,
    "frag_k": _frag,
    "frag_v": _frag,
    "mma0_fragments": _mma0_fragments,
    "mma1_fragments": _mma1_fragments,
}
