"""An eager call that needs a gradient is one node of autograd's graph, whose later calls are not checked again."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from gradients import flash_on_cpu, no_pair
from on_cpu import Kernels, on_cpu
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tl_attention import InputError, attention, attention_varlen
from tl_attention.op import checks as of_checks
from tl_attention.op import run
from tl_attention.op.call import Call

__all__ = ["flash_on_cpu", "no_pair", "on_cpu"]
pytestmark = pytest.mark.usefixtures("on_cpu", "flash_on_cpu")
CU = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 4, 7], dtype=torch.int32)
NAMES = ("q", "k", "v", "sinks")


def dense(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, **options: Any) -> Tensor:
    return attention(q, k, v, sinks=sinks, causal=True, layout="bshd", **options)


def packed(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, **options: Any) -> Tensor:
    rows = (x.flatten(0, 1) for x in (q, k, v))
    return attention_varlen(*rows, *CU, 3, 4, sinks=sinks, causal=True, **options).view(1, 5, 4, v.shape[3])


BOTH = pytest.mark.parametrize("call", [dense, packed])


def drawn(*needed: str) -> list[Tensor]:
    """Draws q, k, v (1, rows, heads, head_dim) and sinks, of which these need a gradient, all of them by default."""
    draw = torch.Generator().manual_seed(7)
    sizes = (1, 5, 4, 64), (1, 7, 2, 64), (1, 7, 2, 64), (4,)
    found = [torch.randn(size, generator=draw) for size in sizes]
    found = [*(x.half() for x in found[:3]), found[3]]
    return [x.requires_grad_(name in (needed or NAMES)) for x, name in zip(found, NAMES)]


def node_of(output: Tensor) -> str:
    """Returns the name of the node that computed the output, which may be a view."""
    node = output.grad_fn
    assert node is not None
    return type(node.next_functions[0][0] if "View" in type(node).__name__ else node).__name__


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets the name of each function whose call is checked in full."""
    found: list[str] = []

    check = of_checks.checked

    def counted(call: Call) -> Any:
        found.append(call.where.function)
        return check(call)

    monkeypatch.setattr(of_checks, "checked", counted)
    return found


@BOTH
def test_a_second_call_of_the_same_kind_is_not_checked_again(call, checks: list[str]) -> None:
    first = call(*drawn())
    number, of_both = len(checks), len(run.plans)
    # One plan makes the node, the other launches the kernel.
    assert number == 1 and of_both == 2
    again = drawn()
    assert torch.equal(call(*again), first)
    call(*again, scale=0.3).sum().backward()
    assert len(checks) == number and all(x.grad is not None for x in again)
    with pytest.raises(InputError, match="scale is -1.0"):
        call(*drawn(), scale=-1.0)
    # Another kind: only sinks need a gradient, and then nothing does.
    for needed in ("sinks", "nothing"):
        assert call(*drawn(needed)).requires_grad == (needed == "sinks")
    assert len(checks) > number


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_a_call_behind_one_without_a_gradient_has_one(call, name) -> None:
    plain = call(*drawn("nothing"))
    with torch.no_grad():
        call(*drawn())
    output = call(*drawn(name))
    assert node_of(output) == "NodeBackward" and not plain.requires_grad and torch.equal(output, plain)


@BOTH
def test_what_has_no_gradient_is_refused_behind_calls_that_have_one(call, no_pair) -> None:
    call(*drawn())
    for options, words in (({"softcap": 3.0}, "softcap 3.0"), ({"return_lse": True}, "return_lse")):
        with pytest.raises(InputError, match=f"with {words} there is no backward"):
            call(*drawn(), **options)
    with torch.no_grad():
        assert not call(*drawn(), softcap=3.0).requires_grad


def test_a_window_that_packed_sequences_of_some_lengths_lack_is_refused_behind_others(no_pair) -> None:
    q, k, v, _ = (x[0] for x in drawn("q"))
    for _ in range(2):
        attention_varlen(q, k, v, *CU, 3, 9, window_size=(2, 5))
        with pytest.raises(InputError, match=r"with window_size \(2, 5\) there is no backward"):
            attention_varlen(q, k, v, *CU, 3, 4, window_size=(2, 5))


def test_a_window_of_packed_sequences_is_checked_once_where_a_pair_serves(checks: list[str]) -> None:
    q, k, v, _ = (x[0] for x in drawn("q"))
    attention_varlen(q, k, v, *CU, 3, 9, window_size=(2, 5))
    number = len(checks)
    attention_varlen(q, k, v, *CU, 3, 4, window_size=(2, 5)).sum().backward()
    assert len(checks) == number


def test_a_scale_goes_with_the_softcap_behind_a_call_whose_scale_does() -> None:
    q, k, v, _ = drawn("q")
    for scale in (0.5, 1e-19):
        dense(q, k, v, softcap=1e-18, scale=scale)
    with pytest.raises(InputError, match=r"scale / softcap is .*, expected"):
        dense(q, k, v, softcap=1e-18, scale=1e30)


def test_longest_lengths_may_be_any_numbers() -> None:
    inputs = [x[0].detach().requires_grad_() for x in drawn()[:3]]
    found = [
        torch.autograd.grad(attention_varlen(*inputs, *CU, most, most, causal=True).sum(), inputs)
        for most in (4, 10**30)
    ]
    assert all(map(torch.equal, *found))


@BOTH
def test_the_operator_has_the_same_gradients(call, monkeypatch) -> None:
    """Traced calls take it."""
    *given, grad = *drawn(), drawn()[0].detach()
    output = call(*given)
    assert node_of(output) == "NodeBackward"
    found = torch.autograd.grad(output, given, grad)
    monkeypatch.setattr("tl_attention.op.attend.is_traced", lambda tensor: torch.is_grad_enabled())
    run.plans.clear()
    output = call(*given)
    assert node_of(output) != "NodeBackward"
    assert all(map(torch.equal, torch.autograd.grad(output, given, grad), found))


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_one_input_may_need_a_gradient_alone(call, name) -> None:
    inputs, others = drawn(name), drawn()
    for of in (inputs, others):
        call(*of).backward(drawn()[0].detach())
    for one, other, of in zip(inputs, others, NAMES):
        assert (one.grad is None) == (of != name)
        assert one.grad is None or (torch.equal(one.grad, other.grad) and one.grad.dtype == one.dtype)


@BOTH
@pytest.mark.parametrize("place", [*range(4), "output"])
def test_a_tensor_that_was_changed_in_place_is_pytorchs_error(call, place) -> None:
    inputs = drawn()
    output = call(*inputs)
    loss = output.sum()
    with torch.no_grad():
        (output if place == "output" else inputs[place]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@BOTH
def test_a_graph_that_is_kept_gives_the_same_gradients_twice(call) -> None:
    inputs = drawn()
    loss = call(*inputs).float().square().sum()
    first, again = (torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, again)) and all(x.any() for x in first)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@BOTH
@pytest.mark.parametrize("how", ["again", "again, within another backward", "kept on the CPU"])
def test_what_is_computed_or_copied_again_for_the_backward_gives_the_same_gradients(call, how) -> None:
    inputs = drawn()
    expected = torch.autograd.grad(call(*inputs).sum(), inputs)
    if how == "kept on the CPU":
        with torch.autograd.graph.save_on_cpu():
            output = call(*inputs)
    else:
        output = checkpoint(call, *inputs, use_reentrant="within" in how)
    output.sum().backward()
    assert all(torch.equal(x.grad, value) for x, value in zip(inputs, expected))


@BOTH
@pytest.mark.parametrize("behind", [0, 2])
def test_selective_checkpointing_keeps_what_the_operator_computes(call, behind, on_cpu: Kernels) -> None:
    """It sees operators alone, and takes none for another that was called by another way the second time."""
    for _ in range(behind):
        call(*drawn())
    launches: list[dict[str, Any]] = []
    on_cpu.fault = launches.append
    names = torch.ops.tl_attention.forward.default, torch.ops.tl_attention.forward_varlen.default
    contexts = partial(create_selective_checkpoint_contexts, [*names])
    inputs, plain = drawn(), drawn()
    checkpoint(call, *inputs, use_reentrant=False, context_fn=contexts).sum().backward()
    assert sum("Output" in tensors for tensors in launches) == 1
    call(*plain).sum().backward()
    assert all(torch.equal(x.grad, other.grad) for x, other in zip(inputs, plain))


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_is_refused(call, name) -> None:
    inputs = drawn()
    of = NAMES.index(name)
    (first,) = torch.autograd.grad(call(*inputs).sum(), inputs[of], create_graph=True)
    with pytest.raises(InputError, match="^attention: the gradient of a gradient is asked for, and there is none$"):
        first.sum().backward()


def test_transforms_of_functions_have_no_gradient_before_or_behind_a_plan() -> None:
    """PyTorch says so of the operator."""
    q, k, v, _ = drawn("nothing")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="functorch"):
            torch.func.grad(lambda q: dense(q, k, v).sum())(q)
        dense(q.clone().requires_grad_(), k, v).sum().backward()


class Nothing(torch.autograd.Function):
    """This is a loss without a gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        return None


@BOTH
def test_an_output_without_a_gradient_gives_its_inputs_none(call) -> None:
    inputs = drawn()
    Nothing.apply(call(*inputs)).backward()
    assert [x.grad for x in inputs] == [None] * 4
