"""`torch.ops.tl_attention.forward_varlen` works with torch.compile, torch.export and opcheck, on stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients import exact, flash_on_cpu, no_pair, visible
from on_cpu import Graphs, Kernels, both, on_cpu
from test_packed import half, offsets
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.export import Dim

from tl_attention import InputError, attention_varlen

__all__ = ["flash_on_cpu", "no_pair", "on_cpu"]

OPERATOR = torch.ops.tl_attention.forward_varlen.default
CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "scale": 0.3},
    "window, softcap and sinks": {"window_size": (3, 1), "softcap": 20.0, "sinks": torch.linspace(-2, 2, 4)},
    "used rows, zeros and LSE": {"seqused_q": offsets(2, 0, 6), "return_lse": True, "zero_unused": True},
}


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


def drawn(*lengths: tuple[int, int], **more: Any) -> list[Tensor]:
    """Draws q, k, v and the offsets of sequences of these lengths, (0, 7) among them."""
    q_of, k_of = zip(*lengths)
    cu_q, cu_k = (offsets(0, *torch.tensor(of).cumsum(0)) for of in (q_of, k_of))
    q, k, v = (half(sum(of), heads, 64).requires_grad_(bool(more)) for of, heads in ((q_of, 4), (k_of, 2), (k_of, 2)))
    return [q, k, v, cu_q, cu_k]


LENGTHS = (5, 9), (0, 7), (6, 3)


def used(found: Any, options: dict[str, Any]) -> list[Tensor]:
    """Returns what a call computed, without rows that are left as they were."""
    return [*both(found)] if options.get("zero_unused") or "seqused_q" not in options else []


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_call_has_no_break_and_gives_what_the_call_gives(name, on_cpu: Kernels) -> None:
    options = CASES[name]
    call = torch.compile(
        lambda *given: attention_varlen(*given, 6, 9, **options), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    inputs = drawn(*LENGTHS)
    for found, expected in zip(both(call(*inputs)), both(attention_varlen(*inputs, 6, 9, **options)), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_one_graph_serves_all_batches(on_cpu: Kernels) -> None:
    graphs = Graphs()
    call = torch.compile(
        lambda q, k, v, cu_q, cu_k, most_q, most_k: attention_varlen(q, k, v, cu_q, cu_k, most_q, most_k, causal=True),
        fullgraph=True,
        dynamic=True,
        backend=graphs,
    )
    # Sizes that are equal in the first call are one symbol to PyTorch, and there are 4 heads.
    for lengths in ((*LENGTHS, (8, 1)), ((7, 8), (2, 3)), ((30, 40), (12, 11), (9, 10), (3, 4)), ((70, 90), (5, 6))):
        inputs = drawn(*lengths)
        most = [max(of) for of in zip(*lengths)]
        assert torch.equal(call(*inputs, *most), attention_varlen(*inputs, *most, causal=True))
    assert len(graphs) == 1


def test_a_gpus_tensors_without_data_are_traced_on_a_machine_without_cuda() -> None:
    with FakeTensorMode():
        q, k = (torch.empty(total, 4, 64, dtype=torch.float16, device="cuda") for total in (11, 19))
        cu = torch.empty(4, dtype=torch.int32, device="cuda")
        output, lse = attention_varlen(
            q, k, k, cu, cu, 6, 9, sinks=q.new_empty(4, dtype=torch.float32), return_lse=True
        )
    assert (output.shape, lse.shape, output.device.type) == (q.shape, (4, 11), "cuda")


def test_an_exported_call_is_one_operator_for_all_totals(on_cpu: Kernels) -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
            return attention_varlen(q, k, v, cu_q, cu_k, 100, 100, causal=True)

    total_q, total_k, bounds = (Dim(name, min=2, max=4096) for name in ("total_q", "total_k", "bounds"))
    sizes = ({0: total_q}, {0: total_k}, {0: total_k}, {0: bounds}, {0: bounds})
    program = torch.export.export(Module(), tuple(drawn(*LENGTHS)), dynamic_shapes=sizes, strict=False)
    assert [node.target for node in program.graph.nodes if "tl_attention" in str(node.target)] == [OPERATOR]
    inputs = drawn((11, 20), (3, 3))
    assert torch.equal(program.module()(*inputs), attention_varlen(*inputs, 100, 100, causal=True))


@pytest.mark.parametrize("name", CASES)
def test_opcheck_without_a_gradient(name, on_cpu: Kernels) -> None:
    options = {**CASES[name]}
    used_q, sinks = options.pop("seqused_q", None), options.pop("sinks", None)
    torch.library.opcheck(OPERATOR, (*drawn(*LENGTHS), 6, 9, used_q, None, sinks), options | {"zero_unused": True})


def test_opcheck_with_a_gradient_and_of_the_backward(on_cpu: Kernels, flash_on_cpu) -> None:
    q, k, v, cu_q, cu_k = drawn((5, 9), (4, 7), grad=True)
    options, sinks = {"causal": True, "return_lse": True}, torch.linspace(-2, 2, 4, requires_grad=True)
    torch.library.opcheck(OPERATOR, (q, k, v, cu_q, cu_k, 5, 9, None, None, sinks), options)
    with torch.no_grad():
        output, lse = attention_varlen(q, k, v, cu_q, cu_k, 5, 9, sinks=sinks, **options)
        inputs = (torch.ones_like(output), *(x.detach() for x in (q, k, v)), output, lse, sinks.detach())
        inputs += (cu_q, cu_k, None, None, 5, 9)
    own = {"causal": True, "scale": None, "window_size": [-1, -1]}
    torch.library.opcheck(torch.ops.tl_attention.backward_varlen.default, inputs, own)


def test_gradients_of_a_compiled_call_are_those_of_the_call(on_cpu: Kernels, flash_on_cpu) -> None:
    def loss(*given: Any) -> Tensor:
        *given, sinks = given
        return attention_varlen(2 * given[0], *given[1:], 9, 9, causal=True, sinks=sinks).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in (((5, 9), (4, 7)), ((3, 3), (2, 6), (1, 8))):
        inputs = [*drawn(*lengths, grad=True), torch.linspace(-2, 2, 4, requires_grad=True)]
        wanted = [x for x in inputs if x.requires_grad]
        found, expected = (torch.autograd.grad(call(*inputs), wanted) for call in (compiled, loss))
        assert all(map(torch.equal, found, expected))


def test_gradients_are_those_of_each_sequence_and_0_elsewhere(on_cpu: Kernels, flash_on_cpu) -> None:
    """Sequences are empty, lack keys and lie among other rows, V has smaller heads, and there are sinks."""
    cu_q, cu_k = offsets(1, 6, 6, 15, 19), offsets(2, 11, 18, 23, 23)
    q, k, v = half(22, 4, 64), half(25, 2, 64), half(25, 2, 32)
    given = [*(x.requires_grad_() for x in (q, k, v)), torch.tensor([0.5, -1.0, 2.0, -30.0], requires_grad=True)]

    def spoil(tensors: dict[str, Any]) -> None:
        """Puts into rows that are no sequence's what memory may hold."""
        for rows in (tensors["Output"], tensors["LSE"].t()):
            rows[:1], rows[19:] = torch.nan, torch.nan

    on_cpu.fault = spoil
    output = attention_varlen(*given[:3], cu_q, cu_k, 9, 9, causal=True, sinks=given[3], scale=0.2)
    on_cpu.fault = lambda tensors: None
    grad = half(*output.shape)
    found = torch.autograd.grad(output, given, grad)
    wanted = [torch.zeros_like(x, dtype=torch.float64) for x in given]
    for (q_begin, q_end), (k_begin, k_end) in zip(*(zip(cu.tolist(), cu.tolist()[1:]) for cu in (cu_q, cu_k))):
        of = slice(q_begin, q_end), *2 * [slice(k_begin, k_end)]
        parts = [x[rows].transpose(0, 1)[None] for x, rows in zip((*given[:3], grad), (*of, of[0]))]
        seen = visible(q_end - q_begin, k_end - k_begin, right=0)
        *of_inputs, of_sinks = exact(*parts, seen, 0.2, given[3])
        for whole, rows, part in zip(wanted, of, of_inputs):
            whole[rows] = part[0].transpose(0, 1)
        wanted[3] += of_sinks
    for gradient, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)
        assert not gradient[value == 0].any()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a window that is open on the right": (
        {"window_size": (3, -1)},
        r"with window_size \(3, -1\) there is no backward",
    ),
    "a right side as long as the keys": ({"window_size": (3, 9)}, r"with window_size \(3, 9\) there is no backward"),
    "used rows": ({"seqused_k": offsets(1, 2, 3)}, "with seqused there is no backward"),
    "softcap": ({"softcap": 30.0}, "with softcap 30.0 there is no backward"),
    "the LSE": ({"return_lse": True}, "with return_lse there is no backward"),
    "out": ({"out": half(11, 4, 64)}, "with out there is no backward"),
    "check": ({"check": True}, "with check there is no backward"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_is_refused_in_a_line(name, on_cpu: Kernels, no_pair) -> None:
    options, said = REFUSED[name]
    with pytest.raises(InputError, match=said) as refusal:
        attention_varlen(*drawn(*LENGTHS, grad=True), 6, 9, **options)
    assert "\n" not in str(refusal.value) and not on_cpu.asked
