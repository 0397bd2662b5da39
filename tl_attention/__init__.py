"""FlashAttention forward for H100-class GPUs in TileLang, whose pipeline schedule is a YAML file."""

from typing import Any

__version__ = "0.1.0"
__all__ = [
    "InputError",
    "Schedule",
    "ScheduleRefused",
    "attention",
    "load_schedule",
    "merge",
    "register_sdpa",
    "register_transformers",
]

_HOME = {
    "attention": ("tl_attention.op.attention", "attention"),
    "merge": ("tl_attention.op.partial", "merge"),
    "register_sdpa": ("tl_attention.integrations.sdpa", "register_sdpa"),
    "register_transformers": ("tl_attention.integrations.hugging_face", "register_transformers"),
    "Schedule": ("tl_attention.schedule.schedule", "Schedule"),
    "load_schedule": ("tl_attention.files.named", "load"),
    "InputError": ("tl_attention.errors", "InputError"),
    "ScheduleRefused": ("tl_attention.errors", "ScheduleRefused"),
}

# Last: the lowerings register with the schedules that ask for them.
import tl_attention.lowering.registry  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    # Late, so that `tl-attention list` starts without torch and tilelang.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOME[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    # What is imported late is there too.
    return sorted({*globals(), *__all__})
