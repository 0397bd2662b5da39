"""A GradientTile has a tile's buffers of a loop of gradients; STATEMENT_CODE has what its statements compute on them.

Tiles of `dkdv` have keys as rows and queries as columns: shape and mask come transposed. As in a kernel, an LSE of +inf
makes P zero, and buffers are poisoned until they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

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
        dtype: torch.dtype, observer: Observer | None = None,
    ):  # fmt: skip
        super().__init__(table, STATEMENT_CODE, observer, block_N)
        self.shape, self.block_M, self.first_row, self.blocks = shape, block_M, index * block_M, blocks
        self.scale, self.dtype = scale * LOG2_E, dtype
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
    columns = t.first_column + torch.arange(t.block_N)[None, :]
    own = t.first_row + torch.arange(t.block_M)[:, None] + t.shape.past_len
    hidden = t.shape.mask.hidden(columns, own, t.shape.seq_kv, TENSORS)
    t["acc_s"] = torch.where(hidden, float("-inf"), t["acc_s"])


def _exp_of_row(t: GradientTile) -> None:
    t.write_columns("acc_s", torch.exp2(t["acc_s"][:, t.columns] * t.scale - t["row_lse"][:, None]))


def _exp_of_column(t: GradientTile) -> None:
    t.write_columns("acc_s", torch.exp2(t["acc_s"][:, t.columns] * t.scale - t["LSE_shared"][None, t.columns]))


def _cast_p(t: GradientTile) -> None:
    t.write_columns("acc_s_cast", t["acc_s"][:, t.columns].to(t.dtype).float())


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
