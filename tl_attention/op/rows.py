"""A kernel computes the rows of an output whose queries see a key. The other rows need no kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tl_attention.problem.mask import Mask, fitted


@dataclass(frozen=True)
class Rows:
    """There is a row for each query; the first `hidden` rows see no key, as queries and keys end together.

    Tensors are (batch, heads, seq_q) or (batch, heads, seq_q, head_dim).
    """

    seq_q: int
    hidden: int

    @classmethod
    def of(cls, mask: Mask, seq_q: int, seq_kv: int) -> Rows:
        """Finds the rows that see no key, for so many queries and keys; either number may be 0."""
        return cls(seq_q, mask.rows_before(seq_q, seq_kv) if seq_kv else seq_q)

    @classmethod
    def seen(cls, mask: Mask, seq_q: int, seq_kv: int) -> tuple[Rows, Mask]:
        """Finds the rows, and drops the sides of the mask that hide nothing from the rows that a kernel computes."""
        rows = cls.of(mask, seq_q, seq_kv)
        return rows, fitted(mask, rows.count, seq_kv)

    @property
    def count(self) -> int:
        """Returns the number of rows that see a key."""
        return self.seq_q - self.hidden

    def without_keys(self, tensor: Any) -> Any:
        """Returns the part of a tensor whose queries see no key."""
        return tensor[:, :, : self.hidden]

    def computed(self, tensor: Any) -> Any:
        """Returns the part of a tensor that a kernel reads, or writes."""
        return tensor[:, :, self.hidden :]
