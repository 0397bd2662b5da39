"""`torch.ops.tl_attention.forward` works with torch.compile, torch.export and opcheck, on the CPU with stand-ins."""

from __future__ import annotations

import threading
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import flash_on_cpu, no_pair
from mutations import SCHEDULES
from on_cpu import Graphs, Kernels, both, on_cpu
from tiers import sampled
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.export import Dim

from tl_attention import InputError, attention
from tl_attention.schedule.files.schedule_file import load

__all__ = ["flash_on_cpu", "no_pair", "on_cpu"]

# What eager traces, aot_eager traces too.
BACKENDS = sampled(("eager", "aot_eager"), ["aot_eager"])
OPERATOR = torch.ops.tl_attention.forward.default
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "scale": 0.3},
    "window and softcap": {"window_size": (3, 1), "softcap": 20.0},
    "sinks and LSE": {"sinks": torch.linspace(-2, 2, 4), "return_lse": True},
    "bshd": {"layout": "bshd", "return_lse": True},
    "a schedule for fixed sizes": {"schedule": "seed", "specialize": True},
}


def half(*size: int, **options: Any) -> Tensor:
    return torch.randn(*size, dtype=torch.float16, **options)


def drawn(options: dict[str, Any], seq_q: int = 5, seq_kv: int = 9, batch: int = 2, **more: Any) -> list[Tensor]:
    """Draws q, k and v in the layout of the options, with four heads on two, and another head size for V."""
    lengths = ((4, seq_q, 64), (2, seq_kv, 64), (2, seq_kv, 72))
    swapped = options.get("layout") == "bshd"
    return [half(batch, *((n, h) if swapped else (h, n)), d, **more) for h, n, d in lengths]


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_call_has_no_break_and_gives_what_the_call_gives(name, backend, on_cpu: Kernels) -> None:
    options = CASES[name]
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, **options), fullgraph=True, backend=backend)
    inputs = drawn(options)
    for found, expected in zip(both(compiled(*inputs)), both(attention(*inputs, **options)), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_one_graph_serves_all_lengths(layout, on_cpu: Kernels) -> None:
    options = {"causal": True, "layout": layout, "return_lse": True}
    graphs = Graphs()
    call = torch.compile(lambda *inputs: attention(*inputs, **options), fullgraph=True, dynamic=True, backend=graphs)
    # Sizes that are equal in the first call are one symbol to PyTorch.
    for lengths in ((5, 9, 3), (7, 7, 2), (12, 300, 4), (9, 5, 3)):
        inputs = drawn(options, *lengths)
        assert all(map(torch.equal, call(*inputs), attention(*inputs, **options)))
    assert len(graphs) == 1


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_call_is_one_operator_for_all_lengths(strict, on_cpu: Kernels) -> None:
    # Dynamo does not trace a path's string from Python 3.13 on.
    schedule = "seed" if strict else Path("seed")

    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, causal=True, layout="bshd", schedule=schedule)

    batch, seq_q, seq_kv = (Dim(name, min=2, max=4096) for name in ("batch", "seq_q", "seq_kv"))
    sizes = ({0: batch, 1: seq_q}, {0: batch, 1: seq_kv}, {0: batch, 1: seq_kv})
    inputs = drawn({"layout": "bshd"})
    program = torch.export.export(Module(), tuple(inputs), dynamic_shapes=sizes, strict=strict)
    assert [node.target for node in program.graph.nodes if "tl_attention" in str(node.target)] == [OPERATOR]
    inputs = drawn({"layout": "bshd"}, 11, 23, 3)
    assert torch.equal(program.module()(*inputs), attention(*inputs, causal=True, layout="bshd"))


@pytest.mark.parametrize("name", CASES)
def test_opcheck_without_a_gradient(name, on_cpu: Kernels) -> None:
    options = {**CASES[name]}
    sinks = options.pop("sinks", None)
    torch.library.opcheck(OPERATOR, (*drawn(options), sinks), options)


LENGTHS = ((5, 9), (9, 5), (0, 3), (3, 0))
LAYOUTS = ("bhsd", "bshd")


@pytest.mark.parametrize("lengths, layout", sampled(product(LENGTHS, LAYOUTS), [*zip(LENGTHS, cycle(LAYOUTS))]))
def test_opcheck_with_a_gradient_and_of_the_backward(lengths, layout, on_cpu: Kernels, flash_on_cpu) -> None:
    options = {"causal": True, "layout": layout}
    q, k, v = drawn(options, *lengths, requires_grad=True)
    sinks = torch.linspace(-2, 2, 4, requires_grad=True)
    torch.library.opcheck(OPERATOR, (q, k, v, sinks), {**options, "return_lse": True})
    with torch.no_grad():
        output, lse = attention(q, k, v, return_lse=True, sinks=sinks, **options)
        inputs = (torch.ones_like(output), *(x.detach() for x in (q, k, v)), output, lse, sinks.detach())
    torch.library.opcheck(
        torch.ops.tl_attention.backward.default, inputs, {**options, "scale": None, "window_size": [-1, -1]}
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_compiled_calls_are_those_of_the_call(backend, on_cpu: Kernels, flash_on_cpu) -> None:
    sinks = torch.linspace(-2, 2, 4, requires_grad=True)

    def loss(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        return attention(2 * q, k, v, causal=True, window_size=(4, 0), sinks=sinks).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=backend)
    for lengths in ((5, 9), (9, 5), (7, 7)):
        inputs = (*drawn({}, *lengths, requires_grad=True), sinks)
        found, expected = (torch.autograd.grad(call(*inputs), inputs) for call in (compiled, loss))
        assert all(map(torch.equal, found, expected))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"k": half(2, 3, 9, 64), "v": half(2, 3, 9, 64)}, "q has 4 heads, expected a multiple of the 3"),
    "head_dim": ({name: half(1, 1, 5, 100) for name in "qkv"}, "head_dim 100 is not supported"),
    "lengths": ({"v": half(2, 2, 8, 64)}, "do not match"),
    "window": ({"window_size": (-2, 0)}, r"window_size is \(-2, 0\)"),
    "layout": ({"layout": "sbhd"}, "layout is 'sbhd'"),
    "sinks": ({"sinks": torch.zeros(3)}, r"sinks is contiguous \(3,\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_without_data_too(name, on_cpu: Kernels) -> None:
    options, words = WRONG[name]
    q, k, v = drawn({})
    arguments = {"q": q, "k": k, "v": v} | options
    with FakeTensorMode() as mode:
        fake = {key: mode.from_tensor(x) if isinstance(x, Tensor) else x for key, x in arguments.items()}
        with pytest.raises((InputError, RuntimeError), match=f"attention: .*{words}"):
            attention(**fake)
    with pytest.raises(InputError, match=words):
        attention(**arguments)
    with pytest.raises(Exception, match=words):
        torch.compile(lambda: attention(**arguments), fullgraph=True, backend="eager")()
    assert not on_cpu.asked


@pytest.mark.parametrize("name", ["out", "schedule"])
def test_out_and_schedule_objects_are_refused_under_compile(name, on_cpu: Kernels) -> None:
    q, k, v = drawn({})
    given = {"out": half(2, 4, 5, 72)} if name == "out" else {"schedule": load(SCHEDULES / "seed.yaml")}
    with pytest.raises(InputError, match=f"attention: {name} is .* under torch.compile, torch.export or a gradient"):
        torch.compile(lambda: attention(q, k, v, **given), backend="eager")()
    assert not on_cpu.asked
    attention(q, k, v, **given)


def test_what_has_no_backward_is_refused_under_compile(on_cpu: Kernels, no_pair) -> None:
    q, k, v = drawn({}, requires_grad=True)
    with pytest.raises(Exception, match="with softcap 30.0 there is no backward: call it under torch.no_grad"):
        torch.compile(attention, fullgraph=True, backend="aot_eager")(q, k, v, softcap=30.0)
    with pytest.raises(InputError, match="expected return_lse=True"):
        OPERATOR(q, k, v, None)


def test_eager_calls_without_a_gradient_do_not_touch_the_operator(on_cpu: Kernels, monkeypatch) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> None:
            pytest.fail("the operator was called")

    monkeypatch.setattr(torch.ops, "tl_attention", Untouched())
    q, k, v = drawn({})
    attention(q, k, v)
    attention(torch.nn.Parameter(q, requires_grad=False), k, v)
    with torch.no_grad():
        attention(q.requires_grad_(), k, v)


def test_a_call_beside_a_thread_that_compiles_runs(on_cpu: Kernels) -> None:
    inputs = drawn({})
    expected = attention(*inputs)
    found: list[Tensor] = []

    def compiling(graph: Any, example: Any) -> Any:
        beside = threading.Thread(target=lambda: found.append(attention(*inputs)))
        beside.start()
        beside.join()
        return graph

    torch.compile(attention, fullgraph=True, backend=compiling)(*inputs)
    assert len(found) == 1 and torch.equal(found[0], expected)
