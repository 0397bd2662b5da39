"""This file draws the inputs of a test. It needs nothing but torch, so its copy beside the submission works alone."""

import torch


def generate_input(
    batch_size: int, num_heads: int, seq_len: int, head_dim: int, seed: int, device: str = "cuda"
) -> tuple[torch.Tensor, ...]:
    """Returns (q, k, v), each standard normal fp16, contiguous, (batch_size, num_heads, seq_len, head_dim)."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (batch_size, num_heads, seq_len, head_dim)
    return tuple(torch.randn(shape, dtype=torch.float16, device=device, generator=generator) for _ in range(3))
