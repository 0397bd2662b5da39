"""A kernel computes the rows of an output whose queries see a key. The other rows need no kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tl_attention.problem.mask import Mask


@dataclass(frozen=True)
class Rows:
    """Rows count a call's queries, `seq_q` in all, of which the first `hidden` see no key.

    Tensors are (batch, heads, seq_q) or (batch, heads, seq_q, head_dim), with a row for each query.
    """

    seq_q: int
    hidden: int

    @classmethod
    def of(cls, mask: Mask, seq_q: int, seq_kv: int) -> Rows:
        """Returns the Rows that count the queries without a key, for so many queries and keys under the mask.

        Either number may be 0.
        """
        return cls(seq_q, mask.rows_before(seq_q, seq_kv) if seq_kv else seq_q)

    @property
    def count(self) -> int:
        """Returns the number of rows that see a key."""
        return self.seq_q - self.hidden

    def without_keys(self, tensor: Any) -> Any:
        """Returns a view of the first `hidden` rows of a tensor, whose queries see no key."""
        return tensor[:, :, : self.hidden]

    def computed(self, tensor: Any) -> Any:
        """Returns a view of the rows of a tensor whose queries see a key. These a kernel reads, or writes."""
        return tensor[:, :, self.hidden :]
