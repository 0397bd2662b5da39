"""A version of cuDNN that no record covers is tried once, on inputs like those that public reports found wrong.

The outcome is kept beside the kernels. cuDNN computes no gradient where a trial failed.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import torch
from torch import Tensor

from tl_attention.compiler import store
from tl_attention.compiler.toolchain import cache_enabled, cache_folder
from tl_attention.op import aten
from tl_attention.op.aten import Saved
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.schedule.files.backward import CUDNN

RIGHT = "right"
# Queries, keys, heads of q and of K, head size, whether causal, and about which LSE all rows have. cuDNN's reports are
# of LSEs below -88.7, whose exponential fp32 does not have, and of lengths that end within a block (pytorch#196678,
# trl#7181). No rule gives cuDNN one query (cudnn-frontend#1072), or 64 keys beyond a multiple of 128.
TRIED = (
    (192, 192, 4, 4, 128, True, -120.0),
    (448, 200, 4, 2, 64, False, -120.0),
    (192, 129, 4, 4, 128, False, -500.0),
    (65, 255, 4, 1, 128, False, 120.0),
    (64, 128, 4, 4, 256, False, -120.0),
)
# Gradients of both operators are rounded to 16 bits, and differ by 4e-3 of their norm where both are right.
MOST_APART = 0.02


def why_not(device: torch.device, versions: tuple[str, ...], may_run: bool = True) -> str:
    """Returns in words why cuDNN cannot compute gradients on this device; "" if it can.

    A version that is none of `versions` is tried, unless a trial may not run now, as inside the capture of a graph.
    """
    if why := aten.lacking(CUDNN):
        return why
    version = cudnn_version()
    if version in versions:
        return ""
    if not version:
        return "torch has no cuDNN"
    key = re.sub(r"[^\w.+]", "-", f"{version} {torch.__version__} {torch.cuda.get_device_name(device)}")
    words = _outcomes.get(key) or _kept(key)
    if not words:
        if not may_run:
            return f"cuDNN {version} has not been tried yet: the first call that would take it tries it"
        try:
            words = outcome(device)
        except torch.OutOfMemoryError:
            return f"there is no memory to try cuDNN {version}"
        # Whole or not at all; where nothing can be written, the next process tries again.
        if cache_enabled():
            store.write(_file(key), json.dumps({"outcome": words}).encode())
    _outcomes[key] = words
    return "" if words == RIGHT else f"cuDNN {version} {words}"


_outcomes: dict[str, str] = {}


@functools.cache
def cudnn_version() -> str:
    """Returns the versions of torch's cuDNN and of torch, such as `9.19.0 with torch 2.11`; "" without cuDNN."""
    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    if not number:
        return ""
    torchs = ".".join(torch.__version__.split(".")[:2])
    return f"{number // 10000}.{number // 100 % 100}.{number % 100} with torch {torchs}"


@torch.no_grad()
def outcome(device: torch.device) -> str:
    """Tries cuDNN beside FlashAttention-2, and returns RIGHT, or in words what is wrong. It takes some seconds."""
    for *sizes, causal, level in TRIED:
        for of_rows in (False, True):
            if wrong := tried(*sizes, causal=causal, level=level, of_rows=of_rows, device=device):
                return f"{wrong} at {sizes[0]} queries, {sizes[1]} keys, head_dim {sizes[4]}, LSE near {level:g}"
    return RIGHT


def tried(
    seq_q: int, seq_kv: int, heads: int, heads_kv: int, size: int, *, causal: bool, level: float, of_rows: bool,
    device: torch.device,
) -> str:  # fmt: skip
    """Computes cuDNN's gradients of one input, and returns in words what is wrong with them, "" if nothing is.

    With `of_rows` output and gradient lie as (batch, seq, heads, head_dim) does, while q, k and v do not.
    """
    q, k, v, grad = inputs(seq_q, seq_kv, heads, heads_kv, size, level, device)
    scale = size**-0.5
    keys, values = (x.float().repeat_interleave(heads // heads_kv, dim=1) for x in (k, v))
    scores = scale * q.float() @ keys.mT
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    lse = scores.logsumexp(dim=3)
    output = ((scores - lse[..., None]).exp() @ values).to(q.dtype)
    if of_rows:
        output, grad = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (output, grad))
    given = Saved(grad, q, k, v, output, lse.contiguous())
    wanted = aten.flash2(given.but(lambda x: x.transpose(1, 2)), CAUSAL if causal else FULL, scale)
    try:
        gradients = aten.cudnn(given, causal, scale)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return f"says {str(error).strip().partition(chr(10))[0]!r}"
    for name, one, other in zip(("dQ", "dK", "dV"), gradients, wanted):
        other = other.transpose(1, 2).float()
        if not (one.float() - other).norm() <= MOST_APART * other.norm():
            return f"gives {'another' if one.isfinite().all() else 'a NaN in'} {name}"
    return ""


def inputs(
    seq_q: int, seq_kv: int, heads: int, heads_kv: int, size: int, level: float, device: torch.device
) -> list[Tensor]:
    """Draws q, k, v and the output's gradient in bf16, (2, heads, seq, size), whose rows have LSEs near a level."""
    draw = torch.Generator(device).manual_seed(7)
    lengths = ((heads, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv), (heads, seq_q))
    q, k, v, grad = (torch.randn(2, *of, size, generator=draw, device=device) / 2 for of in lengths)
    # All scores lie around the level by one column, the same in every key.
    k[..., 0], q[..., 0] = 10.0, level * size**0.5 / 10
    return [x.to(torch.bfloat16) for x in (q, k, v, grad)]


def _file(key: str) -> Path:
    """Returns the file of an outcome, in a folder beside those of kernels."""
    return cache_folder() / "tl_attention-cudnn" / f"{key}.json"


def _kept(key: str) -> str:
    """Returns the outcome that an earlier process has kept; "" if there is none, or its file is damaged."""
    try:
        kept = json.loads(_file(key).read_text("utf-8"))["outcome"] if cache_enabled() else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return kept if isinstance(kept, str) else ""
