"""A submission's argument and result: q, k, v and the output are fp16, contiguous, (batch, heads, seq, head_dim)."""

import torch

input_t = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
output_t = torch.Tensor
