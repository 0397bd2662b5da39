"""Runs a Program on the CPU with torch: the pipelined order, the real number of buffers, both adversaries.

What a kernel would hold in registers or shared memory is a tensor here, and poisoned until it is written, so that a
rule that is missing, or a wait or release in the wrong place, shows up as a wrong number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from tl_attention.loop.exp2 import COEFFICIENTS, LOWEST
from tl_attention.loop.table import Table
from tl_attention.oracle.reference import ErrorReport, attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.problem.mask import Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, kv_index, row_tiles
from tl_attention.problem.variant import Variant
from tl_attention.program.machine import EARLY, LATE, Policy, execute
from tl_attention.program.program import Program
from tl_attention.schedule.options import Exp2Polynomial, SoftmaxOptions
from tl_attention.schedule.schedule import Schedule

LOG2_E = math.log2(math.e)
POLICIES: Mapping[str, Policy] = {"late": LATE, "early": EARLY}
Observer = Callable[[str, int, str, Tensor], None]
# The arithmetic of a mask's answers for tensors: the least of a number and a tensor, and `or` by element.
TENSORS = SimpleNamespace(min=lambda number, tensor: tensor.clamp(max=number), Or=torch.logical_or)


class Tile:
    """The buffers of one row tile of one head; `tile[name]` reads a buffer, `tile[name] = x` writes it.

    acc_s is (block_M, block_N) fp32, acc_s_cast the same in the inputs' dtype, acc_o (block_M, head_dim) fp32, the
    row vectors (block_M,) fp32. Ring buffers are read and written in the slot of the statement that runs, and a chunk
    of a split statement works on its `columns` of a whole buffer. `blocks` are the KV blocks of the tile.
    `observer(statement, block, buffer, value)` sees every read.
    """

    def __init__(
        self,
        shape: AttentionShape,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        block_M: int,
        block_N: int,
        kv_order: str,
        index: int,
        blocks: range,
        scale: float,
        table: Table,
        softmax: SoftmaxOptions = SoftmaxOptions(),
        observer: Observer | None = None,
    ):
        self.statements, self.rings = table.by_name, table.rings
        self.columns = slice(None)
        self.softmax = softmax
        M, N = block_M, block_N
        self.block_M, self.block_N, self.kv_order = M, N, kv_order
        self.shape, self.blocks, self.observer = shape, blocks, observer
        self.scale = scale * LOG2_E
        self.first_row = index * M
        self.dtype = q.dtype
        self.inputs = {"load_k": k, "load_v": v}
        self.unwritten = torch.full((N, shape.head_dim), float("nan"))
        self.buffers: dict[object, Tensor] = {
            "Q_shared": _rows(q, self.first_row, M),
            "acc_s": torch.full((M, N), float("nan")),
            "acc_s_cast": torch.full((M, N), float("nan")),
            "acc_o": torch.zeros(M, shape.head_dim),
            "scores_max": torch.full((M,), float("-inf")),
            "logsum": torch.zeros(M),
        }
        for row_vector in ("scores_max_prev", "scores_scale", "scores_sum"):
            self.buffers[row_vector] = torch.full((M,), float("nan"))

    def run(self, statement: str, block: int, slot: dict[str, int]) -> None:
        """Execute one statement for loop step `block`."""
        self.statement, self.block, self.slot = statement, block, slot
        entry = self.statements[statement]
        columns = entry.columns
        self.columns = slice(*columns) if columns else slice(None)
        STATEMENT_CODE[entry.code](self)

    def __getitem__(self, buffer: str) -> Tensor:
        value = self.buffers.get(self._key(buffer), self.unwritten)
        if self.observer:
            self.observer(self.statement, self.block, buffer, value)
        return value

    def __setitem__(self, buffer: str, value: Tensor) -> None:
        self.buffers[self._key(buffer)] = value

    def write_columns(self, buffer: str, value: Tensor) -> None:
        """Write the columns of the statement that runs; values that were read before stay as they were."""
        changed = self.buffers[buffer].clone()
        changed[:, self.columns] = value
        self[buffer] = changed

    def _key(self, buffer: str) -> object:
        return (buffer, self.slot[self.rings[buffer]]) if buffer in self.rings else buffer

    @property
    def first_key(self) -> int:
        """The first key of the KV block that the current statement works on."""
        return kv_index(self.block, self.blocks, self.kv_order) * self.block_N

    def result(self) -> Tensor:
        """The output rows, normalised, 0 for one that sees no key: (block_M, head_dim) in the inputs' dtype."""
        logsum = self.buffers["logsum"][:, None]
        return torch.where(logsum == 0, 0.0, self.buffers["acc_o"] / logsum).to(self.dtype)


def _rows(x: Tensor, first: int, count: int) -> Tensor:
    """Rows first .. first + count - 1 in fp32, zero beyond the end, as the copies into shared memory fill them."""
    rows = torch.zeros(count, x.shape[1])
    inside = x[first : first + count]
    rows[: len(inside)] = inside
    return rows


def _finite_max(t: Tile) -> Tensor:
    # A row that has seen no key yet has maximum -inf; 0 in the exponent keeps it from becoming NaN.
    scores_max = t["scores_max"]
    return torch.where(scores_max == float("-inf"), 0.0, scores_max)


def _load(t: Tile) -> None:
    buffer = {"load_k": "K_shared", "load_v": "V_shared"}[t.statement]
    t[buffer] = _rows(t.inputs[t.statement], t.first_key, t.block_N)


def _hidden(t: Tile) -> Tensor:
    """True where a query of the tile may not see a key of the block."""
    keys = t.first_key + torch.arange(t.block_N)[None, :]
    own_keys = t.first_row + torch.arange(t.block_M)[:, None] + t.shape.past_len
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


def _row_max(t: Tile) -> None:
    t["scores_max"] = torch.maximum(t["scores_max"], t["acc_s"].amax(dim=1))


def _row_max_kept(t: Tile) -> None:
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
    """2^x in fp32 by the polynomial of this degree."""
    x = x.clamp(min=LOWEST)
    power = torch.zeros_like(x)
    for coefficient in reversed(COEFFICIENTS[degree]):
        power = power * (x - x.floor()) + coefficient
    return torch.ldexp(power, x.floor())


def _row_sum(t: Tile) -> None:
    t["scores_sum"] = t["acc_s"].sum(dim=1)


def _row_sum_added(t: Tile) -> None:
    # The first chunk scales the sum so far, the others only add to it.
    before = t["logsum"] if t.columns.start else t["logsum"] * t["scores_scale"]
    t["logsum"] = before + t["acc_s"][:, t.columns].sum(dim=1)


def _logsum(t: Tile) -> None:
    t["logsum"] = t["logsum"] * t["scores_scale"] + t["scores_sum"]


def _cast(t: Tile) -> None:
    t.write_columns("acc_s_cast", t["acc_s"][:, t.columns].to(t.dtype).float())


def _rescale(t: Tile) -> None:
    t.write_columns("acc_o", t["acc_o"][:, t.columns] * t["scores_scale"][:, None])


def _mma1(t: Tile) -> None:
    t["acc_o"] = t["acc_o"] + t["acc_s_cast"] @ t["V_shared"]


STATEMENT_CODE: Mapping[str, Callable[[Tile], None]] = {
    "load_k": _load,
    "mask": _mask,
    "mma0": _mma0,
    "max_prev": _max_prev,
    "max_init": _max_init,
    "row_max": _row_max,
    "max_merge": _max_merge,
    "scale": _scale,
    "exp": _exp,
    "row_sum": _row_sum,
    "logsum": _logsum,
    "cast": _cast,
    "rescale": _rescale,
    "load_v": _load,
    "mma1": _mma1,
    # Where a kernel does it otherwise: `Statement.code`.
    "mma0_cleared": _mma0_cleared,
    "mask_after": _mask_after,
    "row_max_kept": _row_max_kept,
    "row_sum_added": _row_sum_added,
}


def interpret(
    program: Program,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_M: int,
    block_N: int,
    kv_order: str = "ascending",
    mask: Mask,
    scale: float,
    policy: Policy,
    softmax: SoftmaxOptions = SoftmaxOptions(),
    observer: Observer | None = None,
) -> Tensor:
    """Attention by the Program on the CPU, in tiles of block_M queries and block_N keys of any size.

    q (batch, heads, seq_q, head_dim), k and v (batch, heads, seq_kv, head_dim), fp16 or bf16; returns q's shape and
    dtype. Raises machine.Deadlock.
    """
    batch, heads, seq_q, head_dim = q.shape
    shape = AttentionShape(batch, heads, seq_q, k.shape[2], head_dim, str(q.dtype).removeprefix("torch."), mask)
    output = torch.empty_like(q)
    least_blocks = program.least_blocks
    for b in range(batch):
        for h in range(heads):
            for index in range(row_tiles(shape, block_M)):
                blocks = kv_blocks(shape, block_M, block_N, index, least_blocks)
                tile = Tile(
                    shape,
                    q[b, h],
                    k[b, h],
                    v[b, h],
                    block_M=block_M,
                    block_N=block_N,
                    kv_order=kv_order,
                    index=index,
                    blocks=blocks,
                    scale=scale,
                    table=program.table,
                    softmax=softmax,
                    observer=observer,
                )
                execute(program, len(blocks), tile, policy)
                rows = output[b, h, index * block_M : (index + 1) * block_M]
                rows.copy_(tile.result()[: len(rows)])
    return output


def verify(program: Program, schedule: Schedule, variant: Variant, seed: int = 0) -> dict[str, ErrorReport]:
    """Both runs of the interpreter against fp64 on a ragged problem of several tiles: {"late": ..., "early": ...}."""
    seq_q = schedule.block_M + 37
    seq_kv = seq_q + 3 * schedule.block_N + 5
    q, k, v = make_inputs(1, 1, seq_q, seq_kv, variant.head_dim, getattr(torch, variant.dtype), seed)
    options = {"mask": variant.mask, "scale": variant.head_dim**-0.5}
    tile = {key: getattr(schedule, key) for key in ("block_M", "block_N", "kv_order", "softmax")}
    exact = attention_fp64(q, k, v, **options)
    peer = attention_same_precision(q, k, v, **options)
    return {
        name: compare(interpret(program, q, k, v, policy=policy, **tile, **options), exact, peer)
        for name, policy in POLICIES.items()
    }
