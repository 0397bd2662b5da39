"""Training on a GPU: a captured step, the same bits twice, and cuDNN's plans beside PyTorch's own calls of cuDNN."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from steps import (
    BY_RULES,
    HEADS,
    LENGTHS,
    SEQ,
    SIZE,
    Block,
    Place,
    check_close,
    counted,
    drawn,
    exact,
    gradients,
    place,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel

from tl_attention import attention, attention_varlen, register_sdpa
from tl_attention.op import aten, backward, trial
from tl_attention.schedule.files.backward import backward_rules

__all__ = ["place"]
pytestmark = pytest.mark.gpu


@pytest.fixture
def with_cudnn() -> None:
    """Leaves a test out where cuDNN computes no gradient. Another version than the rules' is tried here, once."""
    versions = tuple({version for rule in backward_rules().rules for version in rule.versions})
    if why := trial.why_not(torch.device("cuda"), versions):
        pytest.skip(why)


@pytest.mark.parametrize("place", [BY_RULES], indirect=True)
@pytest.mark.parametrize("way", ["dense", "sinks", "sdpa"])
def test_a_step_captured_behind_a_warm_up_aside_takes_cudnn_and_has_the_eager_gradients(
    way: str, place: Place, with_cudnn, monkeypatch
) -> None:
    """A graph holds forward, backward and the optimiser, though the shape has come three times only."""
    flash2, cudnn = (counted(monkeypatch, aten, name) for name in ("flash2", "cudnn"))
    block, x, grad = Block(way, place.device), drawn(1, "cuda"), drawn(7, "cuda")
    x.requires_grad_()
    # No step changes a weight, so that eager steps have the same gradients; the optimiser is in the graph all the same.
    optimizer = torch.optim.SGD(block.parameters(), lr=0.0)

    def step() -> None:
        block(x).backward(grad)
        optimizer.step()

    def forget() -> None:
        optimizer.zero_grad(set_to_none=True)
        x.grad = None

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forget()
            step()
    torch.cuda.current_stream().wait_stream(side)
    assert (len(flash2), len(cudnn)) == (0, 3)
    forget()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    assert (len(flash2), len(cudnn)) == (0, 4)
    captured = {"x": x.grad} | {name: weight.grad for name, weight in block.named_parameters()}
    replayed = []
    for seed in (4, 5):
        with torch.no_grad():
            x.copy_(drawn(seed, "cuda"))
        graph.replay()
        replayed.append({name: value.clone() for name, value in captured.items() if value is not None})
    # Replaying called no operator.
    assert (len(flash2), len(cudnn)) == (0, 4)
    for seed, found in zip((4, 5), replayed):
        check_close(found, gradients(block, drawn(seed, "cuda")), 0.01)
    assert (len(flash2), len(cudnn)) == (0, 6)


@pytest.mark.parametrize("place", [BY_RULES], indirect=True)
def test_a_captured_step_of_packed_sequences_may_be_replayed_with_others(place: Place) -> None:
    block, x, grad = Block("packed", place.device), drawn(1, "cuda"), drawn(7, "cuda")
    x.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            x.grad = None
            block(x).backward(grad)
    torch.cuda.current_stream().wait_stream(side)
    x.grad = None
    block.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        block(x).backward(grad)
    block.bounds.copy_(torch.tensor([0, *LENGTHS[::-1]]).cumsum(0).int())
    graph.replay()
    found = {"x": x.grad} | {name: weight.grad for name, weight in block.named_parameters()}
    found = {name: value.clone() for name, value in found.items() if value is not None}
    check_close(found, gradients(block, x), 0.01)


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize("way", ["dense", "sinks", "packed"])
def test_deterministic_algorithms_give_all_gradients_the_same_bits(way: str, deterministic, monkeypatch) -> None:
    """Many blocks of keys add to each row of dQ, in an order that is free otherwise."""
    draw = torch.Generator("cuda").manual_seed(5)
    shapes = [(2, 4096, heads, SIZE) for heads in (8, 2, 2, 8)]
    *inputs, grad = (torch.randn(shape, generator=draw, device="cuda").bfloat16() for shape in shapes)
    sinks = torch.linspace(-1, 2, 8, device="cuda")
    cudnn = counted(monkeypatch, aten, "cudnn")
    if way == "packed":
        inputs, grad = [x.flatten(0, 1) for x in inputs], grad.flatten(0, 1)
    inputs = [x.requires_grad_() for x in (*inputs, sinks)]
    bounds = torch.tensor([0, 3000, 3000, 3001, 8192], dtype=torch.int32, device="cuda")

    def step() -> tuple[Tensor, ...]:
        q, k, v, sinks = inputs
        if way == "packed":
            output = attention_varlen(q, k, v, bounds, bounds, 5191, 5191, causal=True, sinks=sinks)
        else:
            output = attention(q, k, v, causal=True, layout="bshd", sinks=sinks if way == "sinks" else None)
        return torch.autograd.grad(output, inputs if way != "dense" else inputs[:3], grad)

    with backward.force_operator():
        first = step()
        for _ in range(4):
            assert all(map(torch.equal, step(), first))
    assert not cudnn


# --- cuDNN's plans ---------------------------------------------------------------------------------------------------

PLANS = [
    (order, by, lies)
    for order in ("ours first", "ours last")
    for by in ("attention", "sdpa")
    for lies in ("rows", "heads")
]


def by_ours(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, by: str) -> tuple[Tensor, ...]:
    """Returns the gradients of (batch, heads, seq, head_dim) through our kernel and cuDNN."""
    with backward.force_operator("cudnn"):
        if by == "attention":
            return torch.autograd.grad(attention(q, k, v, causal=True), (q, k, v), grad)
        activate_flash_attention_impl(register_sdpa())
        try:
            output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return torch.autograd.grad(output, (q, k, v), grad)
        finally:
            restore_flash_attention_impl()


def by_pytorch(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, by: str) -> tuple[Tensor, ...]:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(output, (q, k, v), grad)


@pytest.mark.parametrize("order, by, lies", PLANS)
def test_our_plans_of_cudnn_and_pytorchs_are_not_mistaken(order: str, by: str, lies: str, with_cudnn) -> None:
    """PyTorch 2.11 keeps a plan without the strides of the output and of its gradient, which differ here.

    The inputs are views of a projection. Each case has a length of its own, so that no case finds another's plans.
    """
    seq = 3 * SEQ + 8 * PLANS.index((order, by, lies))
    draw = torch.Generator("cuda").manual_seed(seq)
    rows = torch.randn(2, seq, 3, HEADS, SIZE, generator=draw, device="cuda").bfloat16()
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in rows.unbind(2))
    grads = {"heads": torch.randn(2, HEADS, seq, SIZE, generator=draw, device="cuda").bfloat16()}
    grads["rows"] = grads["heads"].transpose(1, 2).contiguous().transpose(1, 2)
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    output = exact(*(x.transpose(1, 2) for x in doubles)).transpose(1, 2)
    wanted = dict(zip("qkv", torch.autograd.grad(output, doubles, grads["heads"].double())))
    # The gradient lies in one way in the first call, and in both ways behind it.
    turns = [by_ours, by_pytorch] if order == "ours first" else [by_pytorch, by_ours]
    other = "heads" if lies == "rows" else "rows"
    for turn, of in [(turns[0], lies), *((turn, of) for of in (lies, other) for turn in turns[::-1])]:
        if turn is by_pytorch and of != lies:
            # That hazard is PyTorch's own: its plan has the gradient's strides of its first call.
            continue
        found = turn(q, k, v, grads[of], by)
        check_close(dict(zip("qkv", found)), wanted, 0.02)
