"""Calls of attention() here differ in one thing, and each says which kernel it launches and how, or its error."""

from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from on_cpu import launched, take_for_a_gpu
from torch import Tensor

from tl_attention import attention
from tl_attention.op import compiled
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

Options = dict[str, Any]
SMS = {"cpu": 132, "meta": 114}


def half(*size: int, **options: Any) -> Tensor:
    return torch.zeros(*size, **{"dtype": torch.float16, **options})


def padded(*size: int) -> Tensor:
    """Makes a tensor of these sizes with rows that are further apart."""
    return half(*size[:-1], size[-1] + 8)[..., : size[-1]]


def odd(batch: int, heads: int, columns: int, stride: int = 8) -> Tensor:
    """Makes a tensor with one row for each head; the stride of rows says nothing, and is an unusual one."""
    return half(batch * heads * columns).as_strided((batch, heads, 1, columns), (heads * columns, columns, stride, 1))


def three(*size: int, **options: Any) -> Options:
    return {name: half(*size, **options) for name in "qkv"}


def wrapped(tensor: Tensor) -> Tensor:
    return torch.nn.Parameter(tensor, requires_grad=True)


SIZE = (2, 4, 64, 64)
# Memory that an output of SIZE is all of, and sinks are a part of.
MEMORY = half(2 * 4 * 64 * 64)
# Calls of one kind: every other call here differs from one of them in what is named.
BASES: dict[str, Options] = {
    "plain": three(*SIZE),
    "strided": {name: padded(*SIZE) for name in "qkv"},
    "all": {
        **three(*SIZE),
        "sinks": torch.zeros(4),
        "causal": True,
        "window_size": (9, 0),
        "softcap": 1,
        "return_lse": True,
    },
    "into out": {**three(*SIZE), "out": half(*SIZE)},
    "with sinks into out": {**three(*SIZE), "sinks": MEMORY[:8].view(torch.float32), "out": half(*SIZE)},
    "odd query": {**three(*SIZE), "q": odd(2, 4, 64), "out": padded(2, 4, 1, 64)},
    "one query": {**three(*SIZE), "q": half(2, 4, 1, 64), "out": half(2, 8, 1, 64)[:, ::2]},
}
# For each argument: (a base, what the argument is instead). `...` leaves the argument out.
OTHER: dict[str, list[tuple[str, Any]]] = {
    **{
        name: [
            ("plain", half(2, 4, 65, 64)),
            ("plain", half(2, 4, 64, 64, dtype=torch.bfloat16)),
            ("plain", half(*SIZE, device="meta")),
            ("plain", padded(*SIZE)),
            ("strided", half(*SIZE)),
            ("strided", half(2, 64, 4, 64).transpose(1, 2)),
            ("strided", half(2, 4, 64, 128)[..., ::2]),
            ("one query", odd(2, 4, 64)),
            ("plain", half(2 * 4 * 64 * 64 + 1)[1:].view(SIZE)),
            ("plain", half(2, 4, 64, 64, requires_grad=True)),
            ("all", half(2, 4, 64, 64, requires_grad=True)),
            ("all", wrapped(half(*SIZE))),
            ("plain", half(4, 64, 64)),
            ("plain", "q"),
        ]
        for name in "qkv"
    },
    "causal": [("plain", True), ("all", False)],
    "scale": [
        ("plain", 0.3),
        ("plain", 2),
        ("plain", 0.0),
        ("plain", "a"),
        ("all", -1.0),
        ("plain", True),
        ("all", 1e-60),
    ],
    "window_size": [
        *(("plain", window) for window in ((3, 2), (3.0, 2), (-2, 0), (True, 0), [3, 2], (1, 2, 3), None)),
        *(("all", window) for window in ((8, 0), (9.0, 0), [9, 0], (9, False), (9, 1))),
    ],
    "softcap": [("plain", 20.0), ("plain", -1.0), ("all", 2.0), ("all", 0), ("all", Decimal(1)), ("all", "1")],
    "sinks": [
        ("plain", torch.zeros(4)),
        ("all", None),
        ("all", torch.zeros(3)),
        ("all", half(4)),
        ("all", torch.zeros(4, device="meta")),
        ("all", torch.zeros(8)[::2]),
        ("all", torch.zeros(4, requires_grad=True)),
        ("all", 0),
    ],
    "layout": [("plain", "bshd"), ("plain", "sbhd"), ("plain", None), ("strided", "bshd"), ("plain", [])],
    "return_lse": [("plain", True), ("plain", 0), ("all", False), ("all", 1), ("all", 1.0)],
    "out": [
        ("plain", half(*SIZE)),
        ("into out", None),
        ("into out", half(2, 4, 65, 64)),
        ("into out", half(3, 4, 64, 64)),
        ("one query", half(2, 4, 1, 64)),
        ("one query", odd(2, 4, 64)),
        ("into out", padded(*SIZE)),
        ("into out", half(*SIZE, dtype=torch.bfloat16)),
        ("into out", half(*SIZE, device="meta")),
        ("into out", half(*SIZE, requires_grad=True)),
        ("into out", half(2 * 4 * 64 * 64 + 1)[1:].view(SIZE)),
        ("into out", BASES["into out"]["k"]),
        ("into out", half(1).expand(SIZE)),
        ("into out", 1),
        ("with sinks into out", MEMORY.view(SIZE)),
    ],
    "schedule": [
        *(("plain", schedule) for schedule in ("seed", Path("seed"), resolve("seed").schedule, "bets", 1, [])),
        ("all", "seed"),
    ],
    "specialize": [("plain", True), ("all", True)],
    "invariant": [("plain", True), ("all", True)],
    "backward": [("plain", pair) for pair in (("dq", "dkdv"), ("dkdv", "dq"), ["dq", "seed"], ("dq", 1), "dq", ())],
}
# These calls differ in all tensors, or in several things at once.
TOGETHER: dict[str, tuple[str, Options]] = {
    "dtype": ("plain", three(*SIZE, dtype=torch.bfloat16)),
    "device": ("plain", three(*SIZE, device="meta")),
    "device of all": ("all", {**three(*SIZE, device="meta"), "sinks": torch.zeros(4, device="meta")}),
    "batch": ("plain", three(3, 4, 64, 64)),
    "heads": ("plain", three(2, 6, 64, 64)),
    "heads of keys": ("plain", {name: half(2, 2, 64, 64) for name in "kv"}),
    "lengths": ("plain", three(2, 4, 65, 64)),
    "head_dim": ("plain", three(2, 4, 64, 72)),
    "no queries": ("plain", {"q": half(2, 4, 0, 64)}),
    "no keys": ("plain", {name: half(2, 4, 0, 64) for name in "kv"}),
    "hidden rows": ("all", {name: half(2, 4, 9, 64) for name in "kv"}),
    "one row, with a stride": ("strided", {"q": odd(2, 4, 64)}),
    "rows with strides": ("strided", {name: odd(2, 4, 64, 24) for name in "qkv"}),
    "one row, bshd": ("plain", {**three(2, 1, 4, 64), "q": odd(2, 4, 64).transpose(1, 2), "layout": "bshd"}),
    "strides": ("strided", {name: half(2, 64, 4, 64).transpose(1, 2) for name in "qkv"}),
    "bshd sizes": ("plain", {**three(2, 64, 4, 64), "layout": "bshd"}),
}
PAIRS: dict[str, tuple[Options, Options]] = {
    **{
        f"{name} {number}": (BASES[base], {**BASES[base], name: value})
        for name, values in OTHER.items()
        for number, (base, value) in enumerate(values)
    },
    **{f"all: {name}": (BASES[base], {**BASES[base], **others}) for name, (base, others) in TOGETHER.items()},
}


class Recorder:
    """A recorder has kernels that do nothing, and keeps what they are launched with."""

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def kernel_of(self, schedule: Schedule, variant: Variant) -> Any:
        return launched(
            schedule,
            variant,
            lambda **given: self.launches.append((schedule, variant, described(given, variant.strided))),
        )

    def seen(self, call: Callable[[], Any]) -> Any:
        """Returns all that can be seen of a call: its launches, and what it returns or its error."""
        self.launches.clear()
        try:
            found = call()
        except Exception as error:
            return [*self.launches], type(error), str(error)
        found = found if isinstance(found, tuple) else (found,)
        return [*self.launches], [(place(x), x.requires_grad, x.grad_fn is None) for x in found]


def place(tensor: Tensor, exactly: bool = False) -> Any:
    """Says how a tensor lies in memory, without the strides that say nothing unless `exactly`."""
    strides = tuple(stride for stride, length in zip(tensor.stride(), tensor.shape) if length > 1 or exactly)
    return type(tensor), tuple(tensor.shape), strides, tensor.dtype, tensor.device


def described(given: dict[str, Any], strided: bool) -> Any:
    """Describes the arguments of a launch, with the addresses of inputs."""
    known = {}
    for name, value in given.items():
        known[name] = place(value, strided) if isinstance(value, Tensor) else value
        if name in ("Q", "K", "V", "Sinks"):
            known[f"start of {name}"] = value.data_ptr()
    return known


def call(options: Options) -> Any:
    return attention(**options)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Makes `attention` take CPU and meta tensors for those of two GPUs that differ in SMs, and launch nothing."""
    found = Recorder()
    take_for_a_gpu(monkeypatch, found.kernel_of)
    monkeypatch.setattr(compiled, "sms_of", lambda device: SMS[device.type])
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return found
