"""This package is FlashAttention's forward pass for H100-class GPUs, in TileLang. Its pipeline schedule is a YAML file.

    from tl_attention import attention

    out = attention(q, k, v, causal=True)  # (batch, heads, seq, head_dim), fp16 or bf16, on a GPU

The package exports

    attention              computes attention of tensors on a GPU, with a gradient where one is needed
    attention_varlen       computes it of packed sequences, of any lengths
    merge                  combines the outputs and LSEs of attention over parts of the keys
    register_sdpa          lets torch.nn.functional.scaled_dot_product_attention, and varlen_attn, run on these kernels
    register_transformers  lets a Hugging Face model run on them
    register_vllm          lets vLLM compute the prompts of models with latent attention (MLA) on them
    load_schedule          reads a schedule, for `attention(..., schedule=...)`
    Schedule               is one schedule: its keys, checked
    InputError             is raised for bad input; it is a ValueError
    ScheduleRefused        is raised for a schedule that cannot run; it is an InputError

`tl_attention.flash_attn_interface` has FlashAttention-3's functions.
`help(tl_attention.attention)` has shapes, dtypes, layouts and errors. The first call that needs a kernel compiles it.
Importing the package imports neither torch nor TileLang: the exports import them when they are first used.
"""

from typing import Any

__version__ = "0.2.0"
__all__ = [
    "InputError",
    "Schedule",
    "ScheduleRefused",
    "attention",
    "attention_varlen",
    "load_schedule",
    "merge",
    "register_sdpa",
    "register_transformers",
    "register_vllm",
]

_HOME = {
    "attention": ("tl_attention.op.attention", "attention"),
    "attention_varlen": ("tl_attention.op.varlen", "attention_varlen"),
    "merge": ("tl_attention.op.partial", "merge"),
    "register_sdpa": ("tl_attention.op.integrations.sdpa", "register_sdpa"),
    "register_transformers": ("tl_attention.op.integrations.hugging_face", "register_transformers"),
    "register_vllm": ("tl_attention.op.integrations.vllm", "register_vllm"),
    "Schedule": ("tl_attention.schedule.schedule", "Schedule"),
    "load_schedule": ("tl_attention.schedule.files.named", "load"),
    "InputError": ("tl_attention.errors", "InputError"),
    "ScheduleRefused": ("tl_attention.errors", "ScheduleRefused"),
}

# Last: the lowerings register with the schedules that ask for them.
from tl_attention.kernels import registry as _registry  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    # Late, so that `tl-attention list` starts without torch and tilelang.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOME[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    # What is imported late is there too, and nothing that only this file needs.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
