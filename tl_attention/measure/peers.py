"""Other implementations of attention forward, called as their users would."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape

MATMUL = "matmul"
MATMUL_SIZE = 8192
MATMUL_FLOPS = 2 * MATMUL_SIZE**3
SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
FA3 = "fa3"


def available(shape: AttentionShape) -> list[str]:
    """Peers that can run this problem here: cuDNN and FlashAttention-2 through SDPA, FlashAttention-3 if installed.

    SDPA's causal mask is aligned at the top left, so it is left out where that differs from ours.
    """
    if shape.mask not in (FULL, CAUSAL):
        return []
    names = list(SDPA) if shape.mask == FULL or shape.seq_q == shape.seq_kv else []
    # The fa3-fwd wheel is built without fp16.
    if find_spec("fa3_fwd_interface") and shape.dtype == "bfloat16":
        names.append(FA3)
    return names


def build(name: str, shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """A call without arguments that computes attention, inputs already in the layout that the peer wants."""
    scale, causal = shape.head_dim**-0.5, shape.mask == CAUSAL
    if name == MATMUL:
        generator = torch.Generator(q.device).manual_seed(0)
        a, b = (
            torch.randn(MATMUL_SIZE, MATMUL_SIZE, generator=generator, device=q.device, dtype=q.dtype) for _ in range(2)
        )
        return lambda: a @ b
    if name == FA3:
        from fa3_fwd_interface import flash_attn_func

        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))

        def fa3() -> Tensor:
            result = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal)
            return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

        return fa3

    def sdpa() -> Tensor:
        with sdpa_kernel(SDPA[name]):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, scale=scale, enable_gqa=shape.group > 1
            )

    return sdpa
