"""Plain products, whose rate attention's is held to: a large matrix product, or nothing but mma.sync on registers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tl_attention.hardware.device import card_at_hand

MATMUL, MMA_SYNC = "matmul", "mma_sync"
PRODUCTS = {MATMUL: "matrix product", MMA_SYNC: "loop of mma.sync"}
MATMUL_SIZE = 8192
# So many of a warp's that a launch takes 0.2 s where an SM multiplies 4096 FLOP a clock at 2 GHz, longer on any other.
ITERATIONS = 3_200_000


def flops(name: str) -> int:
    """Of one call, on the card at hand."""
    if name == MATMUL:
        return 2 * MATMUL_SIZE**3
    # Late: TileLang's language takes a second to import.
    from tl_attention.lowering.mma_sync import rate

    return rate.flops(card_at_hand().sms, ITERATIONS)


def build(name: str, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """A call that computes it of normally distributed numbers, which take the power that attention's take."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    if name == MATMUL:
        a, b = normal(MATMUL_SIZE, MATMUL_SIZE), normal(MATMUL_SIZE, MATMUL_SIZE)
        return lambda: a @ b
    from tl_attention.build.generation import compile_products
    from tl_attention.hardware.warpgroup import WARP
    from tl_attention.lowering.mma_sync import rate

    card = card_at_hand()
    kernel = compile_products(str(dtype).removeprefix("torch."), card.arch, card.sms)
    source = normal(rate.WARPS * WARP, rate.ELEMENTS)
    sums = torch.empty(card.sms, rate.WARPS * WARP, device=device)

    def products() -> Tensor:
        kernel(source, sums, ITERATIONS)
        return sums

    return products
