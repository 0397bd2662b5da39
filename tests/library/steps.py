"""Tests share a step of training: a module with attention, the gradients of its step, and these gradients in fp64."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from on_cpu import Kernels, take_for_a_gpu
from torch import Tensor, nn
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

from tl_attention import attention, attention_varlen, register_sdpa
from tl_attention.op import backward
from tl_attention.op.integrations import sdpa

# How a Block's attention is computed.
WAYS = ("dense", "grouped", "sinks", "packed", "sdpa")
BATCH, SEQ, HEADS, SIZE, WIDTH = 2, 96, 4, 64, 48
# The sequences among a packed step's rows.
LENGTHS = (40, 96, 1, 55)
Gradients = dict[str, Tensor]


class Block(nn.Module):
    """A Block is causal attention between two projections; `frozen_v` takes V as it is, without a gradient."""

    def __init__(self, way: str, device: str = "cpu", dtype: torch.dtype = torch.bfloat16, frozen_v: bool = False):
        super().__init__()
        self.way, self.frozen_v, self.exact = way, frozen_v, False
        self.heads_kv = HEADS if way in ("dense", "sdpa") else 2
        torch.manual_seed(3)
        self.into = nn.Linear(WIDTH, (HEADS + 2 * self.heads_kv) * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        # Scores that are far from equal.
        nn.init.normal_(self.into.weight, std=1.5 * WIDTH**-0.5)
        self.to(device, dtype)
        # Sinks are fp32 whatever the weights are.
        self.sinks = nn.Parameter(torch.linspace(-1, 2, HEADS, device=device)) if way == "sinks" else None
        bounds = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        self.register_buffer("bounds", bounds.to(device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.into(x).unflatten(-1, (-1, SIZE))
        q, k, v = rows.split((HEADS, self.heads_kv, self.heads_kv), dim=2)
        v = v.detach() if self.frozen_v else v
        return self.out((self._exact if self.exact else self._attend)(q, k, v).flatten(2))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.way == "packed":
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            found = attention_varlen(q, k, v, self.bounds, self.bounds, max(LENGTHS), max(LENGTHS), causal=True)
            return found.unflatten(0, (BATCH, SEQ))
        if self.way != "sdpa":
            return attention(q, k, v, causal=True, layout="bshd", sinks=self.sinks)
        return sdpa_of(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    def _exact(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.way != "packed":
            return exact(q, k, v, self.sinks)
        parts = zip(*(x.flatten(0, 1)[None].split(LENGTHS, dim=1) for x in (q, k, v)))
        return torch.cat([exact(*of) for of in parts], dim=1).unflatten(1, (BATCH, SEQ))[0]


def sdpa_of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes causal SDPA; on the CPU as PyTorch does on a GPU, where it chooses flash."""
    if q.device.type == "cuda":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    found: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    return found


def exact(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Computes causal attention of (batch, seq, heads, head_dim) by its definition."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * q.shape[3] ** -0.5
    scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    if sinks is not None:
        # One more key, without a value.
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], dim=3)
    return (scores.softmax(dim=3)[..., : v.shape[2]] @ v).transpose(1, 2)


def drawn(seed: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Draws hidden states, or a gradient of the same size."""
    found = torch.randn(BATCH, SEQ, WIDTH, generator=torch.Generator().manual_seed(seed))
    return found.to(device, dtype)


def gradients(block: Block, x: Tensor, call: Callable[[Tensor], Tensor] | None = None) -> Gradients:
    """Returns the gradients of one step: of the hidden states and of all weights; `call` runs in the module's place."""
    block.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    output = block(x) if call is None else call(x)
    output.backward(drawn(7, x.device.type, output.dtype))
    found = {"x": x.grad} | {name: weight.grad for name, weight in block.named_parameters()}
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def exact_gradients(block: Block, x: Tensor) -> Gradients:
    """Returns the gradients of the same step in fp64."""
    of = copy.deepcopy(block).double()
    of.exact = True
    return gradients(of, x.double())


def check_close(found: Gradients, wanted: Gradients, most: float) -> None:
    """Compares gradients by the norm of what they differ by."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert value.norm() > 0 and found[name].shape == value.shape
        apart = ((found[name].double() - value.double()).norm() / value.double().norm()).item()
        # Of a sink's sum the terms cancel.
        assert apart <= most * (3 if "sinks" in name else 1), f"{name}: {apart}"


class Place(NamedTuple):
    """A Place is where a step runs, and which operator computes its gradients; None leaves that to the rules."""

    device: str
    operator: str | None = None


ON_CPU = Place("cpu")
EACH_ON_CPU = [Place("cpu", "flash2"), Place("cpu", "cudnn")]
ON_GPU = [
    pytest.param(Place("cuda", operator), marks=pytest.mark.gpu, id=f"cuda-{operator}")
    for operator in ("flash2", "cudnn")
]
BY_RULES = pytest.param(Place("cuda"), marks=pytest.mark.gpu, id="cuda")


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Makes steps run at the test's Place, SDPA on the kernels included; on the CPU stand-ins compute."""
    found: Place = request.param
    monkeypatch.setattr(backward, "_shapes", {})
    with backward.force_operator(found.operator) if found.operator else nullcontext():
        if found.device == "cpu":
            take_for_a_gpu(monkeypatch, Kernels().kernel_of)
            request.getfixturevalue("operators")
            ours = sdpa.register_kernels("CPU")
            yield found
            ours._destroy()
            return
        activate_flash_attention_impl(register_sdpa())
        try:
            yield found
        finally:
            restore_flash_attention_impl()


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[str]:
    """Returns a list that gets the function's name at each of its calls."""
    calls: list[str] = []
    function = getattr(where, name)

    def call(*given: Any, **options: Any) -> Any:
        calls.append(name)
        return function(*given, **options)

    monkeypatch.setattr(where, name, call)
    return calls
