"""The types of a submission's argument and result. Stands beside the submission as task.py."""

from typing import TypeVar

import torch

# q, k, v: fp16, contiguous, (batch, heads, seq, head_dim)
input_t = TypeVar("input_t", bound=tuple[torch.Tensor, torch.Tensor, torch.Tensor])
# Same shape and dtype as q.
output_t = TypeVar("output_t", bound=torch.Tensor)
