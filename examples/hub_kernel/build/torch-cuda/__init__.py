"""This is a kernel for Hugging Face's `kernels`: it has FlashAttention's functions, from an installed tl_attention.

`kernels` looks into build/torch-cuda where PyTorch has CUDA, and metadata.json says what is here.
"""

try:
    from tl_attention.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
except ImportError as error:
    raise ImportError(f"{error}, expected tl_attention: `pip install .` in a checkout of it installs it") from None

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
