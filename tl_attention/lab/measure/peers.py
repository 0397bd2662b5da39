"""Peers are other implementations of attention, called as their users would, and plain products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tl_attention.lab.measure.device import card_at_hand
from tl_attention.lab.measure.records import MATMUL
from tl_attention.problem.features import INPUTS
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.mask import CAUSAL, is_window
from tl_attention.problem.shape import AttentionShape

MATMUL_SIZE = 8192
# A launch of so many iterations of a warp takes 0.2 s on an SM of 4096 FLOP a clock at 2 GHz, longer on any other.
ITERATIONS = 3_200_000


def product_flops(name: str) -> int:
    """Returns how many FLOP a call of the plain product `name`, matmul or mma_sync, has on the card at hand."""
    if name == MATMUL:
        return 2 * MATMUL_SIZE**3
    # Late: TileLang's language takes a second to import.
    from tl_attention.lab.measure import mma_peak

    return mma_peak.flops(card_at_hand().sms, ITERATIONS)


def build_product(name: str, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """Returns a function without arguments that computes the plain product `name` of random normal numbers.

    They take as much power as attention's numbers.
    """
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    if name == MATMUL:
        a, b = normal(MATMUL_SIZE, MATMUL_SIZE), normal(MATMUL_SIZE, MATMUL_SIZE)
        return lambda: a @ b
    from tl_attention.lab.measure import mma_peak
    from tl_attention.problem.warpgroup import WARP

    card = card_at_hand()
    kernel = mma_peak.compile_products(str(dtype).removeprefix("torch."), card.arch, card.sms)
    source = normal(mma_peak.WARPS * WARP, mma_peak.ELEMENTS)
    sums = torch.empty(card.sms, mma_peak.WARPS * WARP, device=device)

    def products() -> Tensor:
        kernel(source, sums, ITERATIONS)
        return sums

    return products


SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
FA3 = "fa3"
# What the fa3-fwd wheel is built for.
FA3_HEAD_SIZES: tuple[HeadSize, ...] = (64, 96, 128, 192, "192/128", 256)


def available(shape: AttentionShape) -> list[str]:
    """Lists the names of the peers that may run this problem, as far as is known before a call.

    These are cuDNN and FlashAttention-2 through SDPA, and FlashAttention-3 if installed.
    """
    return [name for name in (*SDPA, FA3) if not why_not(name, shape)]


def why_not(name: str, shape: AttentionShape) -> str:
    """Returns why a peer cannot run this problem, "" if no reason is known before the call."""
    if is_window(shape.mask):
        return "it is not asked for windows"
    for feature in shape.asked.features:
        # FlashAttention-3 computes the LSE of packed sequences in any case.
        if name not in feature.peers and not (shape.packed and feature.acts == "result"):
            return f"it is not asked for {feature.words}"
    if shape.packed and name != FA3:
        return "it is not asked for packed sequences"
    if name == FA3:
        if shape.dtype != "bfloat16":
            return "the fa3-fwd wheel is built without fp16"
        if shape.head_size not in FA3_HEAD_SIZES:
            return f"the fa3-fwd wheel has no head_dim {shape.head_size}"
        return "" if find_spec("fa3_fwd_interface") else "fa3-fwd is not installed"
    if shape.mask == CAUSAL and shape.seq_q != shape.seq_kv:
        return "SDPA aligns its causal mask at the top left"
    return ""


def build(
    name: str, shape: AttentionShape, q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor] | None = None
) -> Callable[[], Tensor]:
    """Returns a function without arguments that computes attention of q, k and v by the named peer.

    The inputs are brought into the layout that the peer wants. `offsets` say where packed sequences begin.
    FlashAttention-3 chooses itself how often it splits the keys, which it does not by default.
    """
    scale, causal = shape.head_dim**-0.5, shape.mask == CAUSAL
    if name == FA3:
        from fa3_fwd_interface import flash_attn_func, flash_attn_varlen_func

        asked = {f.peers[FA3]: shape.asked[f.word] for f in shape.asked.features if f in INPUTS}
        asked |= {"return_attn_probs": True} if "lse" in shape.asked else {}
        where = () if offsets is None else (*offsets, shape.seq_q, shape.seq_kv)
        if offsets is None:
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))

        def fa3() -> Tensor:
            function = flash_attn_func if offsets is None else flash_attn_varlen_func
            result = function(q, k, v, *where, softmax_scale=scale, causal=causal, num_splits=0, **asked)
            output = result[0] if isinstance(result, tuple) else result
            return output.transpose(1, 2) if offsets is None else output

        return fa3

    def sdpa() -> Tensor:
        with sdpa_kernel(SDPA[name]):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, scale=scale, enable_gqa=shape.group > 1
            )

    return sdpa
