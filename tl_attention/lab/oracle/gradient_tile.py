"""A GradientTile has a tile's buffers of a loop of gradients; STATEMENT_CODE has what its statements compute on them.

Tiles of `dkdv` have keys as rows and queries as columns: shape and mask come transposed. As in a kernel, an LSE of +inf
makes P zero, and buffers are poisoned until they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tl_attention.lab.oracle.features import changes_of_products, slope_of
from tl_attention.lab.oracle.tile import LOG2_E, Observer, TileBuffers, rows_of
from tl_attention.problem.mask import TENSORS
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_index
from tl_attention.schedule.loop.table import Table, whole

NAN = float("nan")


class GradientTile(TileBuffers):
    """A GradientTile has the buffers that its loop's Table lists, tiles (rows, columns) and row vectors (rows,)."""

    def __init__(
        self, table: Table, shape: AttentionShape, block_M: int, block_N: int, index: int, blocks: range, scale: float,
        dtype: torch.dtype, observer: Observer | None = None, asked: Mapping[str, Any] = {},
    ):  # fmt: skip
        super().__init__(table, STATEMENT_CODE, observer, block_N)
        self.shape, self.block_M, self.first_row, self.blocks = shape, block_M, index * block_M, blocks
        self.asked, self.dtype = asked, dtype
        self.changes, self.factor = changes_of_products(asked, scale)
        self.sizes = {
            "block_M": block_M, "block_N": block_N, "head_dim": shape.head_dim, "head_dim_v": shape.head_dim_v, 1: 1
        }  # fmt: skip
        for buffer in table.buffers:
            if buffer.place == "fragment":
                self.buffers[buffer.name] = self.unwritten(buffer.name)
        for name, value in table.initial.items():
            self.buffers[name] = torch.full_like(self.buffers[name], float(value))

    def unwritten(self, buffer: str) -> Tensor:
        of = next(one for one in self.table.buffers if one.name == buffer)
        shape = (self.sizes[of.rows], self.sizes[of.columns])
        return torch.full(shape if of.columns != 1 else shape[:1], NAN)

    def given(self, inputs: Mapping[str, Tensor]) -> None:
        """Gives the tile the inputs of a head, (rows, columns) or (rows,), and its rows of what is resident."""
        self.inputs = inputs
        for buffer in self.table.residents:
            self.buffers[buffer.name] = rows_of(inputs[buffer.symbol], self.first_row, self.block_M)
        for fragment, name in {"row_lse": "LSE", "row_d": "D"}.items():
            if fragment in self.buffers:
                self.buffers[fragment] = self.vector(name, self.first_row, self.block_M)

    def vector(self, name: str, first: int, count: int) -> Tensor:
        """Returns numbers of rows from `first` on; of rows beyond the end an LSE that makes P zero, and a D of 0."""
        numbers = torch.full((count,), float("inf") if name == "LSE" else 0.0)
        inside = self.inputs[name][first : first + count]
        numbers[: len(inside)] = inside
        return numbers

    @property
    def first_column(self) -> int:
        """Returns the number of the first column's query or key, of the block that the current statement works on."""
        return kv_index(self.block, self.blocks, "descending") * self.block_N

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """Returns the numbers of the block's columns, and of the column at which each row stands."""
        columns = self.first_column + torch.arange(self.block_N)[None, :]
        return columns, self.first_row + torch.arange(self.block_M)[:, None] + self.shape.past_len


def row_lse(lse: Tensor) -> Tensor:
    """Returns the LSE as kernels of gradients take it: to base 2, and +inf of rows that see no key, so that P is 0."""
    return torch.where(lse == float("-inf"), float("inf"), lse * LOG2_E)


def row_d(d_out: Tensor, output: Tensor, lse: Tensor, d_lse: Tensor | None) -> Tensor:
    """Returns D of rows, rowsum(dO * O) less the LSE's gradient, which rows with an LSE of -inf do not have."""
    d = (d_out * output).sum(dim=-1)
    return d if d_lse is None else d - d_lse.masked_fill(lse.isneginf(), 0)


# --- the statements ---------------------------------------------------------------------------------------------------


def _load(t: GradientTile) -> None:
    for source, buffer in zip(t.entry.reads, t.entry.writes):
        of_block = rows_of if t.inputs[source].dim() == 2 else None
        first, count = t.first_column, t.block_N
        t[buffer] = of_block(t.inputs[source], first, count) if of_block else t.vector(source, first, count)


def _transposed(t: GradientTile) -> None:
    a, b = t.entry.reads
    # Where others are cut into chunks it writes all of them.
    t[whole(t.entry.writes[0])] = t[a] @ t[b].T


def _added(t: GradientTile) -> None:
    # The chunks that a schedule cuts the first operand into are columns of one tensor.
    *a, b, result = t.entry.reads
    t[result] = t[result] + t[whole(a[0])] @ t[b]


def _mask_s(t: GradientTile) -> None:
    columns, own = t.places
    hidden = t.shape.mask.hidden(columns, own, t.shape.seq_kv, TENSORS)
    t["acc_s"] = torch.where(hidden, float("-inf"), t["acc_s"])


def _change(t: GradientTile) -> None:
    """Changes a GradientTile's acc_s as features such as softcap do, but keeps hidden scores at -inf."""
    columns, own = t.places
    after = columns - own if t.table.rows == "queries" else own - columns
    for change in t.changes:
        t["acc_s"] = torch.where(t["acc_s"] == float("-inf"), t["acc_s"], change(t["acc_s"], after))


def _weights(t: GradientTile, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns P of the current columns, and P times the slope of the features that have changed scores."""
    scores = t["acc_s"][:, t.columns] * t.factor
    weights = torch.exp2(scores * LOG2_E - lse)
    return weights, weights * slope_of(t.asked, scores) if t.changes else weights


def _exp_of_row(t: GradientTile) -> None:
    if t.columns.start in (0, None):
        _change(t)
    t.write_columns("acc_s", _weights(t, t["row_lse"][:, None])[1])


def _exp_of_column(t: GradientTile) -> None:
    if t.changes:
        # cast_p makes P of them.
        _change(t)
    else:
        t.write_columns("acc_s", _weights(t, t["LSE_shared"][None, t.columns])[0])


def _cast_p(t: GradientTile) -> None:
    weights = t["acc_s"][:, t.columns]
    if t.changes:
        weights, sloped = _weights(t, t["LSE_shared"][None, t.columns])
        t.write_columns("acc_s", sloped)
    t.write_columns("acc_s_cast", weights.to(t.dtype).float())


def _ds(t: GradientTile, d: Tensor) -> None:
    t.write_columns("ds_cast", (t["acc_s"][:, t.columns] * (t["acc_dp"][:, t.columns] - d)).to(t.dtype).float())


def _ds_of_row(t: GradientTile) -> None:
    _ds(t, t["row_d"][:, None])


def _ds_of_column(t: GradientTile) -> None:
    _ds(t, t["D_shared"][None, t.columns])


STATEMENT_CODE: Mapping[str, Callable[[GradientTile], None]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_load, _transposed, _added, _mask_s, _exp_of_row, _exp_of_column, _cast_p, _ds_of_row, _ds_of_column),
    )
}
