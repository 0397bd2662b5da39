"""`attention(q, k, v)`: the compiled kernel as a PyTorch function."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tl_attention.build.compile import CompiledKernel, compile_kernel
from tl_attention.errors import InputError
from tl_attention.files.named import DEFAULT, DEFAULT_CAUSAL, resolve
from tl_attention.hardware.device import require_hopper
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.problem.in_memory import BHSD, DIMENSIONS, check_layout, check_out, empty, other_way, placed
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    layout: str = BHSD,
    out: Tensor | None = None,
    schedule: Schedule | str | Path | None = None,
    specialize: bool = False,
) -> Tensor:
    """softmax(scale q k^T) v on the current CUDA stream of q's device.

    q is (batch, heads, seq_q, head_dim), k and v (batch, heads, seq_kv, head_dim), all fp16 or all bf16, on one Hopper
    GPU; head_dim 64 or 128; any sizes of at least 1. Products accumulate in fp32.

    Strides are read, nothing is copied: views run as they lie if the last dimension is contiguous, and the address and
    the stride of every other dimension longer than 1 are multiples of 16 bytes, and not 0. Others are refused.

    Args:
        causal: query i sees keys 0 .. seq_kv - seq_q + i; needs seq_kv >= seq_q.
        scale: factor of the scores, positive; 1 / sqrt(head_dim) by default.
        layout: "bhsd" as above, or "bshd" where q, k, v and the output are (batch, seq, heads, head_dim).
        out: the tensor that the output is written to, and returned; strided as the inputs may be. It shares no element
            with them.
        schedule: the name of a schedule that ships (`tl-attention list`), a file, a label or a Schedule; by default
            `best`, and `best_causal` if causal. A file is read again only when it has changed.
        specialize: compile for exactly these sizes instead of for all.

    Returns: the output, q's shape and dtype, contiguous in its layout, or `out`. There is no backward.
    Raises: InputError (a ValueError) for anything that is not supported; ScheduleRefused, one of them, for a schedule
        that cannot run.
    """
    check_layout(layout)
    q, k, v = (_bhsd(x, layout) for x in (q, k, v))
    shape = _checked_shape(q, k, v, causal)
    scale = shape.head_dim**-0.5 if scale is None else _checked_scale(scale)
    inputs = {"q": q, "k": k, "v": v}
    output = _output(out, (*q.shape[:3], v.shape[3]), inputs, layout)
    strided, tensors = placed({**inputs, "out": output}, layout)
    resolved = _resolve(schedule, causal)
    kernel = _kernel(resolved, replace(shape.variant(fixed=specialize), strided=strided))
    with torch.cuda.device(q.device):
        kernel(Q=tensors["q"], K=tensors["k"], V=tensors["v"], Output=tensors["out"], softmax_scale=scale)
    return other_way(output, layout) if out is None else out


_compile_lock = threading.Lock()


def _kernel(schedule: Schedule, variant: Variant) -> CompiledKernel:
    # TileLang's tracer keeps state in globals, so two threads may not compile at once.
    with _compile_lock:
        return _compiled(schedule, variant)


@functools.cache
def _compiled(schedule: Schedule, variant: Variant) -> CompiledKernel:
    refuse_unless_safe(schedule, variant.head_dim)
    return compile_kernel(schedule, variant)


def _resolve(schedule: Schedule | str | Path | None, causal: bool) -> Schedule:
    if isinstance(schedule, Schedule):
        return schedule
    if schedule is None:
        schedule = DEFAULT_CAUSAL if causal else DEFAULT
    if not isinstance(schedule, (str, Path)):
        found = type(schedule).__name__
        raise InputError(f"attention: schedule is {found}, expected a name, a file, a label or a Schedule")
    return resolve(schedule).schedule


def _bhsd(tensor: Tensor, layout: str) -> Tensor:
    """(batch, heads, seq, head_dim) of a tensor; anything else as it is, for the checks of shapes to name."""
    return other_way(tensor, layout) if isinstance(tensor, Tensor) and tensor.dim() == 4 else tensor


def _output(out: Tensor | None, shape: tuple[int, ...], inputs: dict[str, Tensor], layout: str) -> Tensor:
    """Where an output of this shape (batch, heads, seq, head_dim) goes: a new tensor, or `out`."""
    if out is None:
        return empty(inputs["q"], shape, layout)
    if not isinstance(out, Tensor) or out.dim() != 4:
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"attention: out is {found}, expected a tensor ({', '.join(DIMENSIONS[layout])})")
    if torch.is_grad_enabled() and out.requires_grad:
        raise InputError("attention: out requires a gradient, and there is no backward: call it under torch.no_grad()")
    output = other_way(out, layout)
    check_out(output, shape, inputs, layout)
    return output


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
    if k.shape != v.shape or k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3]:
        raise InputError(
            f"attention: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match, "
            "expected q (batch, heads, seq_q, head_dim) and k, v (batch, heads, seq_kv, head_dim)"
        )
    batch, heads, seq_q, head_dim = q.shape
    dtype, mask = str(q.dtype).removeprefix("torch."), CAUSAL if causal else FULL
    shape = AttentionShape(batch, heads, seq_q, k.shape[2], head_dim, dtype, mask)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise InputError(
            "attention: an input requires a gradient, and there is no backward: call it under torch.no_grad()"
        )
    if q.device.type != "cuda":
        raise InputError(f"attention: the tensors are on {q.device}, expected a CUDA device (H100, H200)")
    require_hopper(torch.cuda.get_device_capability(q.device), torch.cuda.get_device_name(q.device))
    return shape
