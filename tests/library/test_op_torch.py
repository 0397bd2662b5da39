"""The operator works on a Hopper GPU with opcheck, torch.compile, torch.export, CUDA graphs, streams and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from tl_attention import attention

OPERATOR = torch.ops.tl_attention.forward.default
pytestmark = pytest.mark.gpu


def drawn(batch: int, heads: int, heads_kv: int, seq_q: int, seq_kv: int, **options: Any) -> list[Tensor]:
    """Draws q, k and v (batch, heads, seq, 128) in fp16."""
    options = {"device": "cuda", "dtype": torch.float16, **options}
    return [
        torch.randn(batch, h, n, 128, **options) for h, n in ((heads, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv))
    ]


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("seq_q, seq_kv", [(130, 200), (200, 130)])
def test_opcheck_with_gradients(seq_q, seq_kv) -> None:
    inputs = drawn(1, 4, 2, seq_q, seq_kv, requires_grad=True)
    # Two runs of the backward add dQ in another order, so numbers are held to fp64 in test_backward.py instead.
    torch.library.opcheck(OPERATOR, (*inputs, None), {"causal": True, "return_lse": True}, atol=2e-2, rtol=2e-2)


def test_opcheck_without_gradients() -> None:
    sinks = torch.zeros(4, device="cuda")
    inputs = drawn(1, 4, 2, 130, 200)
    torch.library.opcheck(OPERATOR, (*inputs, sinks), {"softcap": 20.0, "window_size": [30, 5], "return_lse": True})
    torch.library.opcheck(OPERATOR, (*inputs, None), {"specialize": True, "schedule": "seed"})


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_break_for_all_lengths(backend) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q * 2, k, v, causal=True).relu()

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for batch, seq_q, seq_kv in ((3, 130, 200), (2, 64, 64), (5, 300, 1000)):
        inputs = drawn(batch, 4, 2, seq_q, seq_kv)
        assert torch.equal(compiled(*inputs), block(*inputs))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_gradients_are_those_of_the_call(backend) -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q * 2, k, v, causal=True, window_size=(100, 0)).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=backend)
    for seq_q, seq_kv in ((130, 200), (300, 300), (200, 130)):
        inputs = drawn(2, 4, 2, seq_q, seq_kv, requires_grad=True)
        found, expected = (torch.autograd.grad(call(*inputs), inputs) for call in (compiled, loss))
        for gradient, value in zip(found, expected, strict=True):
            # dQ is added up in an order that differs from run to run.
            assert (gradient.double() - value.double()).norm() <= 2e-3 * value.double().norm()


def test_exported_for_all_lengths() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, causal=True)

    seq = Dim("seq", min=2, max=8192)
    program = torch.export.export(Module(), tuple(drawn(2, 4, 2, 64, 64)), dynamic_shapes=({2: seq},) * 3)
    inputs = drawn(2, 4, 2, 333, 333)
    assert torch.equal(program.module()(*inputs), attention(*inputs, causal=True))


def test_a_cuda_graph_replays_on_new_data() -> None:
    inputs = drawn(1, 8, 2, 500, 700)
    call = lambda: OPERATOR(*inputs, None, causal=True, return_lse=True)  # noqa: E731
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for x, new in zip(inputs, drawn(1, 8, 2, 500, 700), strict=True):
        x.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, call()))


def test_compiled_with_cuda_graphs() -> None:
    block = lambda q, k, v: attention(q, k, v, causal=True) + 1  # noqa: E731
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        inputs = drawn(1, 8, 2, 500, 700)
        assert torch.equal(compiled(*inputs).clone(), block(*inputs))


def test_forward_and_backward_run_on_the_current_stream() -> None:
    q, k, v = drawn(1, 8, 2, 512, 512, requires_grad=True)
    values, grad = torch.zeros_like(v), torch.zeros_like(q)
    late, grad_late = torch.randn_like(v), torch.randn_like(q)
    expected = torch.autograd.grad(attention(q, k, late.requires_grad_()), (q, k, late), grad_late)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # What they read arrives late on the side stream: launches on another one would read zeros.
        torch.cuda._sleep(200_000_000)
        values.copy_(late.detach())
        grad.copy_(grad_late)
        found = torch.autograd.grad(attention(q, k, values.requires_grad_()), (q, k, values), grad)
    side.synchronize()
    for gradient, value in zip(found, expected, strict=True):
        assert (gradient.double() - value.double()).norm() <= 2e-3 * value.double().norm()


def test_eight_threads_each_on_a_stream_of_its_own() -> None:
    cases = [drawn(1, 4, 2, 100 + 37 * index, 300, requires_grad=True) for index in range(8)]
    expected = [attention(*inputs, causal=True).detach() for inputs in cases]
    torch.cuda.synchronize()

    def work(index: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            outputs = [attention(*cases[index], causal=True) for _ in range(20)]
            gradients = torch.autograd.grad(outputs[-1].float().sum(), cases[index])
        stream.synchronize()
        return all(torch.equal(x, expected[index]) for x in outputs) and all(x.isfinite().all() for x in gradients)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
