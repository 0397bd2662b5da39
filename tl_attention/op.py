"""`attention(q, k, v)`: the compiled kernel as a PyTorch function."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import torch
from torch import Tensor

from tl_attention.build.compile import CompiledKernel, compile_kernel
from tl_attention.errors import InputError
from tl_attention.files.defaults import default_schedule
from tl_attention.files.named import resolve
from tl_attention.hardware.device import require_hopper
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.problem.head_dims import HeadSize, check_head_dim, head_size
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

# Of the addresses of q, k and v, in bytes: what TMA and 16-byte copies need.
ALIGNMENT = 16


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    schedule: Schedule | str | Path | None = None,
    specialize: bool = False,
) -> Tensor:
    """softmax(scale q k^T) v on the current CUDA stream of q's device.

    Layout: q (batch, heads, seq_q, head_dim), k and v (batch, heads, seq_kv, head_dim), all fp16 or all bf16, on one
    Hopper GPU; head_dim every multiple of 8 up to 256, and v may have another than q and k, such as 192 and 128; any
    sizes of at least 1. Products accumulate in fp32.

    Args:
        causal: query i sees keys 0 .. seq_kv - seq_q + i; needs seq_kv >= seq_q.
        scale: factor of the scores, positive; 1 / sqrt(head_dim) by default.
        schedule: the name of a schedule that ships (`tl-attention list`), a file, a label or a Schedule; by default
            that of the head size and mask (`files/defaults.py`). A file is read again only when it has changed.
        specialize: compile for exactly these sizes instead of for all.

    Returns: the output (batch, heads, seq_q, v's head_dim), q's dtype, contiguous. There is no backward.
    Raises: InputError (a ValueError) for anything that is not supported; ScheduleRefused, one of them, for a schedule
        that cannot run.
    """
    shape = _checked_shape(q, k, v, causal)
    scale = shape.head_dim**-0.5 if scale is None else _checked_scale(scale)
    tensors = {"Q": _aligned("q", q), "K": _aligned("k", k), "V": _aligned("v", v)}
    resolved = _resolve(schedule, causal, shape.head_size)
    kernel = _kernel(resolved, shape.variant(fixed=specialize))
    output = q.new_empty(*q.shape[:3], shape.head_dim_v)
    with torch.cuda.device(q.device):
        kernel(**tensors, Output=output, softmax_scale=scale)
    return output


_compile_lock = threading.Lock()


def _kernel(schedule: Schedule, variant: Variant) -> CompiledKernel:
    # TileLang's tracer keeps state in globals, so two threads may not compile at once.
    with _compile_lock:
        return _compiled(schedule, variant)


@functools.cache
def _compiled(schedule: Schedule, variant: Variant) -> CompiledKernel:
    refuse_unless_safe(schedule, variant.head_size)
    return compile_kernel(schedule, variant)


def _resolve(schedule: Schedule | str | Path | None, causal: bool, size: HeadSize = 128) -> Schedule:
    if isinstance(schedule, Schedule):
        return schedule
    if schedule is None:
        schedule = default_schedule(size, causal)
    if not isinstance(schedule, (str, Path)):
        found = type(schedule).__name__
        raise InputError(f"attention: schedule is {found}, expected a name, a file, a label or a Schedule")
    return resolve(schedule).schedule


def _aligned(name: str, tensor: Tensor) -> Tensor:
    """The tensor, contiguous. Its loads take 16 bytes at a time, from an address that 16 must divide."""
    tensor = tensor.contiguous()
    offset = tensor.data_ptr() % ALIGNMENT
    if offset:
        raise InputError(
            f"attention: {name} starts {offset} bytes after a multiple of {ALIGNMENT}, expected a multiple: pass "
            f"{name}.clone()"
        )
    return tensor


def _checked_scale(scale: float) -> float:
    if not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
        raise InputError(f"attention: scale is {scale!r}, expected a positive number")
    return float(scale)


def _checked_shape(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> AttentionShape:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"attention: {name} is {found}, expected a tensor (batch, heads, seq, head_dim)")
        if tensor.device != q.device or tensor.dtype != q.dtype:
            raise InputError(
                f"attention: {name} is {tensor.dtype} on {tensor.device}, expected q's {q.dtype} on {q.device}"
            )
    if k.shape[:3] != v.shape[:3] or k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3]:
        raise InputError(
            f"attention: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match, "
            "expected q (batch, heads, seq_q, head_dim) and k, v (batch, heads, seq_kv, head_dim), where v's head_dim may "
            "be another"
        )
    batch, heads, seq_q, head_dim = q.shape
    dtype, mask = str(q.dtype).removeprefix("torch."), CAUSAL if causal else FULL
    check_head_dim(head_size(head_dim, v.shape[3]))
    shape = AttentionShape(batch, heads, seq_q, k.shape[2], head_dim, dtype, mask, v.shape[3])
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise InputError(
            "attention: an input requires a gradient, and there is no backward: call it under torch.no_grad()"
        )
    if q.device.type != "cuda":
        raise InputError(f"attention: the tensors are on {q.device}, expected a CUDA device (H100, H200)")
    require_hopper(torch.cuda.get_device_capability(q.device), torch.cuda.get_device_name(q.device))
    return shape
