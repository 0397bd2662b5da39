"""An InterpretedTile has a row tile's buffers; STATEMENT_CODE has what each statement of a loop computes on them.

A statement finds its function by the name of its `code`. What a kernel would hold in registers or shared memory is a
tensor here, and poisoned until it is written, so that a rule that is missing, or a wait or release in the wrong place,
shows up as a wrong number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tl_attention.lab.oracle.features import changes_of_products, more_scores
from tl_attention.problem.mask import TENSORS
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_index
from tl_attention.schedule.loop.exp2 import COEFFICIENTS, LOWEST
from tl_attention.schedule.loop.table import Table, whole
from tl_attention.schedule.options import Exp2Polynomial, SoftmaxOptions

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
# A finite maximum that is as good as infinite.
HIGHEST = 1e30
Observer = Callable[[str, int, str, Tensor], None]


@dataclass(frozen=True)
class Settings:
    """Settings hold how a loop is interpreted: its tile sizes, order of KV blocks and softmax."""

    block_M: int
    block_N: int
    kv_order: str = "ascending"
    softmax: SoftmaxOptions = field(default_factory=SoftmaxOptions)
    # Replaces the code that some statements of the loop's table name.
    code: Mapping[str, Callable[[InterpretedTile], None]] = field(default_factory=dict)
    observer: Observer | None = None  # sees (statement, block, buffer, value) of every read


class TileBuffers:
    """TileBuffers has the buffers of a tile; `tile[name]` reads a buffer, `tile[name] = x` writes it.

    Ring buffers are read and written in the slot of the statement that runs, and a chunk of a split statement works on
    its `columns` of a whole buffer.
    """

    def __init__(
        self, table: Table, code: Mapping[str, Callable[[Any], None]], observer: Observer | None, block_N: int
    ):
        self.table, self.statements, self.rings, self.code = table, table.by_name, table.rings, code
        self.observer, self.block_N = observer, block_N
        self.columns = slice(None)
        self.buffers: dict[object, Tensor] = {}

    def run(self, statement: str, block: int, slot: dict[str, int]) -> None:
        """Executes one statement for loop step `block`."""
        self.statement, self.block, self.slot = statement, block, slot
        self.entry = self.statements[statement]
        self.columns = slice(*self.entry.columns) if self.entry.columns else slice(None)
        self.code[self.entry.code](self)

    def unwritten(self, buffer: str) -> Tensor:
        """Returns what a ring buffer holds before its first load."""
        raise NotImplementedError

    def __getitem__(self, buffer: str) -> Tensor:
        key = self._key(buffer)
        value = self.buffers[key] if key in self.buffers else self.unwritten(buffer)
        if self.observer:
            self.observer(self.statement, self.block, buffer, value)
        return value

    def __setitem__(self, buffer: str, value: Tensor) -> None:
        self.buffers[self._key(buffer)] = value

    def write_columns(self, buffer: str, value: Tensor) -> None:
        """Writes `value` to the running statement's columns of a buffer, in a copy, so that earlier reads stay."""
        changed = self.buffers[buffer].clone()
        changed[:, self.columns] = value
        self[buffer] = changed

    def _key(self, buffer: str) -> object:
        return (buffer, self.slot[self.rings[buffer]]) if buffer in self.rings else buffer


class InterpretedTile(TileBuffers):
    """An InterpretedTile has the buffers of a row tile of the forward.

    acc_s is (block_M, block_N) fp32, acc_s_cast the same in the inputs' dtype, acc_o (block_M, head_dim_v) fp32, the
    row vectors (block_M,) fp32.
    """

    def __init__(
        self,
        shape: AttentionShape,
        inputs: Mapping[str, Tensor],  # Q, K and V
        tiles: Settings,
        index: int,
        blocks: range,  # the KV blocks of the tile
        table: Table,
        scale: float,
        asked: Mapping[str, Any],  # the values of this head's features
        code: Mapping[str, Callable[[InterpretedTile], None]],  # what the statements of the table name
    ):
        super().__init__(table, code, tiles.observer, tiles.block_N)
        self.given = table.inputs
        self.softmax = tiles.softmax
        M, N = tiles.block_M, tiles.block_N
        self.block_M, self.kv_order = M, tiles.kv_order
        self.shape, self.blocks = shape, blocks
        self.changes, factor = changes_of_products(asked, scale)
        self.scale = factor * LOG2_E
        self.more_scores = [score.float() for score in more_scores(asked)]
        self.first_row = index * M
        self.dtype = inputs["Q"].dtype
        self.inputs = inputs
        self.buffers = {
            "Q_shared": rows_of(inputs["Q"], self.first_row, M),
            # For a loop that finds Q in registers.
            "Q_local": rows_of(inputs["Q"], self.first_row, M),
            "acc_s": torch.full((M, N), float("nan")),
            "acc_s_cast": torch.full((M, N), float("nan")),
            "acc_o": torch.zeros(M, shape.head_dim_v),
            "scores_max": torch.full((M,), float("-inf")),
            "denominator": torch.zeros(M),
        }
        for row_vector in ("scores_max_prev", "scores_scale", "scores_sum"):
            self.buffers[row_vector] = torch.full((M,), float("nan"))

    def unwritten(self, buffer: str) -> Tensor:
        return torch.full((self.block_N, self.shape.head_dim), float("nan"))

    @property
    def first_key(self) -> int:
        """Returns the number of the first key of the KV block that the current statement works on."""
        return kv_index(self.block, self.blocks, self.kv_order) * self.block_N

    def result(self) -> Tensor:
        """Returns the normalised output rows (block_M, head_dim_v) in the inputs' dtype, 0 where no key is seen."""
        denominator, factor = self._with_more_scores()
        return torch.where(denominator == 0, 0.0, self.buffers["acc_o"] * factor / denominator).to(self.dtype)

    def _with_more_scores(self) -> tuple[Tensor, Tensor | float]:
        """Returns the denominators (block_M, 1) with keyless scores such as sinks added, and the factor for acc_o."""
        scores_max, denominator = (self.buffers[name][:, None] for name in ("scores_max", "denominator"))
        whole: Tensor | float = 1.0
        for more in self.more_scores:
            score = (more * LOG2_E / self.scale).clamp(max=HIGHEST)
            largest = torch.maximum(scores_max, score)
            factor = torch.where(scores_max == largest, 1.0, torch.exp2((scores_max - largest) * self.scale))
            seen = torch.where(denominator == 0, 0.0, denominator * factor)
            denominator = seen + torch.where(score == largest, 1.0, torch.exp2((score - largest) * self.scale))
            scores_max, whole = largest, whole * factor
        return denominator, whole

    def lse(self) -> Tensor:
        """Returns the natural logarithm of each row's sum, fp32 (block_M,), -inf for a row that sees no key.

        The result does not depend on the maximum from which the exponentials were taken.
        """
        total = LN_2 * (self.buffers["scores_max"] * self.scale + self.buffers["denominator"].log2())
        for score in self.more_scores:
            total = torch.logaddexp(total, score)
        return total


def rows_of(x: Tensor, first: int, count: int) -> Tensor:
    """Returns `count` rows of x from row `first` on, in fp32, with zeros beyond the end.

    The copies into shared memory fill them so.
    """
    rows = torch.zeros(count, x.shape[1])
    inside = x[first : first + count]
    rows[: len(inside)] = inside
    return rows


# --- the statements ---------------------------------------------------------------------------------------------------


def _finite_max(t: InterpretedTile) -> Tensor:
    # A row that has seen no key yet has maximum -inf; 0 in the exponent keeps it from becoming NaN.
    scores_max = t["scores_max"]
    return torch.where(scores_max == float("-inf"), 0.0, scores_max)


def _load(t: InterpretedTile) -> None:
    [source], [buffer] = t.entry.reads, t.entry.writes
    t[buffer] = rows_of(t.inputs[source], t.first_key, t.block_N)


def _places(t: InterpretedTile) -> tuple[Tensor, Tensor]:
    """Returns the numbers of the block's keys (1, block_N), and those of the tile's queries among them (block_M, 1)."""
    keys = t.first_key + torch.arange(t.block_N)[None, :]
    return keys, t.first_row + torch.arange(t.block_M)[:, None] + t.shape.past_len


def _hidden(t: InterpretedTile) -> Tensor:
    """Returns a bool tensor that is True where the mask hides a key of the block from a query of the tile."""
    keys, own_keys = _places(t)
    return t.shape.mask.hidden(keys, own_keys, t.shape.seq_kv, TENSORS).expand(t.block_M, t.block_N)


def _mask(t: InterpretedTile) -> None:
    # Behind the product, or before it.
    scores = t["acc_s"] if t.entry.reads else torch.zeros(t.block_M, t.block_N)
    t["acc_s"] = torch.where(_hidden(t), float("-inf"), scores)


def _mma0(t: InterpretedTile) -> None:
    q, k, *before = t.entry.reads
    # Q stays in registers whole, or comes in fragments like K.
    scores = (t[q][:, t.columns] if q in t.given else t[q]) @ t[k].T
    t["acc_s"] = t["acc_s"] + scores if before else scores


def _max_prev(t: InterpretedTile) -> None:
    t["scores_max_prev"] = t["scores_max"]


def _max_init(t: InterpretedTile) -> None:
    t["scores_max"] = torch.full((t.block_M,), float("-inf"))


def _change(t: InterpretedTile) -> None:
    """Changes an InterpretedTile's acc_s as features such as softcap do, but keeps hidden scores at -inf."""
    for change in t.changes:
        keys, own_keys = _places(t)
        scores = t["acc_s"]
        t["acc_s"] = torch.where(scores == float("-inf"), scores, change(scores, keys - own_keys))


def _row_max(t: InterpretedTile) -> None:
    _change(t)
    # From -inf every maximum is new: the difference is infinite, or no number and no less than anything.
    old = t["scores_max"]
    new = torch.maximum(old, t["acc_s"].amax(dim=1))
    t["scores_max"] = torch.where((new - old) * t.scale <= t.softmax.rescale_threshold, old, new)


def _max_merge(t: InterpretedTile) -> None:
    t["scores_max"] = torch.maximum(t["scores_max"], t["scores_max_prev"])


def _scale(t: InterpretedTile) -> None:
    t["scores_scale"] = torch.exp2((t["scores_max_prev"] - _finite_max(t)) * t.scale)


def _exp(t: InterpretedTile) -> None:
    exponents = (t["acc_s"][:, t.columns] - _finite_max(t)[:, None]) * t.scale
    values = torch.exp2(exponents)
    if polynomial := t.softmax.exp2_polynomial:
        chosen = on_fma_units(polynomial, t.block_M, t.block_N)[:, t.columns]
        values = torch.where(chosen, exp2(exponents, polynomial.degree), values)
    t.write_columns("acc_s", values)


def on_fma_units(polynomial: Exp2Polynomial, rows: int, columns: int) -> Tensor:
    """Returns a bool tensor that is True for the elements of a tile whose exponentials the polynomial computes.

    Their wgmma register decides.
    """
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    register = 4 * (j // 8) + 2 * (i // 8 % 2) + j % 2
    return (register >= polynomial.first) & ((register - polynomial.first) % polynomial.every == 0)


def exp2(x: Tensor, degree: int) -> Tensor:
    """Returns 2^x in fp32 by the polynomial of this degree, 0 from LOWEST down."""
    x = x.clamp(min=LOWEST)
    power = torch.zeros_like(x)
    for coefficient in reversed(COEFFICIENTS[degree]):
        power = power * (x - x.floor()) + coefficient
    return torch.where(x > LOWEST, torch.ldexp(power, x.floor()), 0.0)


def _row_sum(t: InterpretedTile) -> None:
    t["scores_sum"] = t["acc_s"].sum(dim=1)


def _row_sum_added(t: InterpretedTile) -> None:
    # The first chunk scales the sum so far, the others only add to it.
    before = t["denominator"] if t.columns.start else t["denominator"] * t["scores_scale"]
    t["denominator"] = before + t["acc_s"][:, t.columns].sum(dim=1)


def _sum_merge(t: InterpretedTile) -> None:
    t["denominator"] = t["denominator"] * t["scores_scale"] + t["scores_sum"]


def _cast(t: InterpretedTile) -> None:
    t.write_columns("acc_s_cast", t["acc_s"][:, t.columns].to(t.dtype).float())


def _frag(t: InterpretedTile) -> None:
    """Copies the running statement's columns of Q or K, or rows of V, from shared memory into a fragment."""
    [source], [fragment] = t.entry.reads, t.entry.writes
    t[fragment] = t[source][t.columns] if source == "V_shared" else t[source][:, t.columns]


def _mma1(t: InterpretedTile) -> None:
    v = next(buffer for buffer in t.entry.reads if whole(buffer) in ("V_shared", "V_local"))
    t["acc_o"] = t["acc_o"] + t["acc_s_cast"][:, t.columns] @ t[v]


def _rescale(t: InterpretedTile) -> None:
    t.write_columns("acc_o", t["acc_o"][:, t.columns] * t["scores_scale"][:, None])


# By the functions' names; the last two are as kernels compute them that are emitted operation by operation.
STATEMENT_CODE: Mapping[str, Callable[[InterpretedTile], None]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_load, _mask, _mma0, _max_prev, _max_init, _row_max, _max_merge, _scale, _exp, _row_sum, _sum_merge),
        *(_cast, _rescale, _mma1, _row_sum_added, _frag),
    )
}
