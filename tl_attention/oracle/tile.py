"""One row tile's buffers on the CPU, as the statements of a loop read and write them.

What a kernel would hold in registers or shared memory is a tensor here, and poisoned until it is written, so that a
rule that is missing, or a wait or release in the wrong place, shows up as a wrong number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tl_attention.loop.table import Table
from tl_attention.oracle.features import changes_of_products, more_scores
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_index
from tl_attention.schedule.options import SoftmaxOptions

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
# A finite maximum that is as good as infinite.
HIGHEST = 1e30
Observer = Callable[[str, int, str, Tensor], None]


@dataclass(frozen=True)
class Tiles:
    """How a loop is run: its tiles, the order of its KV blocks, its softmax.

    `code` replaces what some statements of the loop's table name. `observer(statement, block, buffer, value)` sees every read.
    """

    block_M: int
    block_N: int
    kv_order: str = "ascending"
    softmax: SoftmaxOptions = field(default_factory=SoftmaxOptions)
    code: Mapping[str, Callable[[Tile], None]] = field(default_factory=dict)
    observer: Observer | None = None


class Tile:
    """The buffers of one row tile of one head; `tile[name]` reads a buffer, `tile[name] = x` writes it.

    acc_s is (block_M, block_N) fp32, acc_s_cast the same in the inputs' dtype, acc_o (block_M, head_dim_v) fp32, the
    row vectors (block_M,) fp32. Ring buffers are read and written in the slot of the statement that runs, and a chunk
    of a split statement works on its `columns` of a whole buffer. `inputs` are Q, K and V, `blocks` the KV blocks of
    the tile, `asked` the values of features of this head, `code` what the statements of the table name.
    """

    def __init__(
        self,
        shape: AttentionShape,
        inputs: Mapping[str, Tensor],
        tiles: Tiles,
        index: int,
        blocks: range,
        table: Table,
        scale: float,
        asked: Mapping[str, Any],
        code: Mapping[str, Callable[[Tile], None]],
    ):
        self.statements, self.rings, self.code = table.by_name, table.rings, code
        self.given = table.inputs
        self.columns = slice(None)
        self.softmax = tiles.softmax
        M, N = tiles.block_M, tiles.block_N
        self.block_M, self.block_N, self.kv_order = M, N, tiles.kv_order
        self.shape, self.blocks, self.observer = shape, blocks, tiles.observer
        self.changes, factor = changes_of_products(asked, scale)
        self.scale = factor * LOG2_E
        self.more_scores = [score.float() for score in more_scores(asked)]
        self.first_row = index * M
        self.dtype = inputs["Q"].dtype
        self.inputs = inputs
        self.unwritten = torch.full((N, shape.head_dim), float("nan"))
        self.buffers: dict[object, Tensor] = {
            "Q_shared": rows_of(inputs["Q"], self.first_row, M),
            # Of a loop that finds Q in registers.
            "Q_local": rows_of(inputs["Q"], self.first_row, M),
            "acc_s": torch.full((M, N), float("nan")),
            "acc_s_cast": torch.full((M, N), float("nan")),
            "acc_o": torch.zeros(M, shape.head_dim_v),
            "scores_max": torch.full((M,), float("-inf")),
            "denominator": torch.zeros(M),
        }
        for row_vector in ("scores_max_prev", "scores_scale", "scores_sum"):
            self.buffers[row_vector] = torch.full((M,), float("nan"))

    def run(self, statement: str, block: int, slot: dict[str, int]) -> None:
        """Execute one statement for loop step `block`."""
        self.statement, self.block, self.slot = statement, block, slot
        self.entry = self.statements[statement]
        self.columns = slice(*self.entry.columns) if self.entry.columns else slice(None)
        self.code[self.entry.code](self)

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
        """The output rows, normalised, 0 for one that sees no key: (block_M, head_dim_v) in the inputs' dtype."""
        denominator, factor = self._with_more_scores()
        return torch.where(denominator == 0, 0.0, self.buffers["acc_o"] * factor / denominator).to(self.dtype)

    def _with_more_scores(self) -> tuple[Tensor, Tensor | float]:
        """The denominators, (block_M, 1), with the scores that have no key; and what acc_o must be multiplied by."""
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
        """The natural logarithm of each row's sum, -inf for one that sees no key: (block_M,) fp32.

        Whatever maximum the exponentials were taken from.
        """
        own = LN_2 * (self.buffers["scores_max"] * self.scale + self.buffers["denominator"].log2())
        for score in self.more_scores:
            own = torch.logaddexp(own, score)
        return own


def rows_of(x: Tensor, first: int, count: int) -> Tensor:
    """Rows first .. first + count - 1 in fp32, zero beyond the end, as the copies into shared memory fill them."""
    rows = torch.zeros(count, x.shape[1])
    inside = x[first : first + count]
    rows[: len(inside)] = inside
    return rows
