"""Few queries on many keys: heads that share K and V may be rows of one, and keys computed in parts that are merged."""

from __future__ import annotations

from typing import Any

from tl_attention.problem.mask import ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.schedule import Schedule


def put_together(shape: AttentionShape, schedule: Schedule) -> AttentionShape:
    """Returns the problem that the schedule's kernel computes, in which a head may have the rows of several."""
    return shape.together(schedule.block_M) if schedule.kernel.rows_of == "group" else shape


def parts_of(shape: AttentionShape, schedule: Schedule) -> int:
    """Returns in how many parts the schedule computes the problem's keys, 0 where it computes all of them at once.

    A part has `kernel.part_blocks` KV blocks, the last may have fewer: a row's parts follow from its own keys.
    """
    blocks = schedule.kernel.part_blocks
    return ceildiv(shape.seq_kv, blocks * schedule.block_N) if blocks else 0


def results_of_parts(output: Any, parts: int) -> tuple[Any, Any]:
    """Returns fp32 tensors for the output and the LSE of each part of a problem with this output, as more batches of it.

    PyTorch's allocator keeps their memory for the next call, apart for each stream and for each captured graph.
    """
    import torch

    batch, heads, rows, columns = output.shape
    sizes = (parts * batch, heads, rows)
    return output.new_empty((*sizes, columns), dtype=torch.float32), output.new_empty(sizes, dtype=torch.float32)
