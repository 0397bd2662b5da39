"""`attention_varlen(..., backward=(dq, dkdv))`: on the CPU, with stand-ins, each sequence has the gradients of fp64."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from gradients import OPEN, exact, visible
from on_cpu import Kernels, on_cpu
from test_packed import half, offsets
from test_pair import PAIR, REFUSED, SCHEDULES, loops_of
from torch import Tensor

from tl_attention import InputError, attention, attention_varlen
from tl_attention.op import pair

__all__ = ["on_cpu"]

FULL_WINDOW, CAUSAL_WINDOW = (OPEN, OPEN), (OPEN, 0)
Lengths = Sequence[tuple[int, int]]
# (queries, keys) of each sequence; heads, heads_kv, head_dim; window (left, right).
CASES: dict[str, tuple[Lengths, tuple[int, int, int], tuple[int, int]]] = {
    "full": ([(5, 9), (130, 70), (64, 128)], (2, 2, 64), FULL_WINDOW),
    "causal": ([(131, 131), (1, 1), (7, 200)], (2, 2, 128), CAUSAL_WINDOW),
    "grouped": ([(33, 40), (20, 3), (128, 129)], (6, 2, 64), CAUSAL_WINDOW),
    "empty ones between others": (
        [(0, 0), (5, 9), (0, 7), (6, 0), (0, 140), (3, 4), (0, 0)],
        (4, 2, 64),
        CAUSAL_WINDOW,
    ),
    "no queries first and last": ([(0, 130), (9, 5), (0, 3)], (2, 1, 64), FULL_WINDOW),
    "no keys first and last": ([(150, 0), (9, 5), (3, 0)], (2, 2, 64), FULL_WINDOW),
    "one query each": ([(1, 70), (1, 1), (1, 129)], (2, 2, 128), CAUSAL_WINDOW),
    "rows without a key": ([(140, 5), (9, 9)], (2, 2, 64), CAUSAL_WINDOW),
    "one sequence": ([(70, 90)], (2, 2, 64), CAUSAL_WINDOW),
    "a window": ([(140, 150), (33, 20), (5, 0)], (4, 2, 64), (20, 3)),
    "head_dim 72, softcap": ([(33, 40), (20, 3)], (2, 2, 72), CAUSAL_WINDOW),
    "one row": ([(1, 1)], (1, 1, 64), FULL_WINDOW),
}


def begins(lengths: Lengths, first: tuple[int, int] = (0, 0)) -> list[Tensor]:
    """Returns the offsets of queries and keys of sequences, of which the first begins at these rows."""
    return [offsets(*torch.tensor([at, *of]).cumsum(0)) for at, of in zip(first, zip(*lengths))]


def drawn(lengths: Lengths, heads: int, heads_kv: int, size: int, unused: int = 0) -> tuple[list[Tensor], Tensor]:
    """Draws q, k, v and the gradient of the output, with unused rows behind the sequences' rows."""
    total_q, total_k = (sum(of) + unused for of in zip(*lengths))
    inputs = [half(total, n, size).requires_grad_() for total, n in ((total_q, heads), *[(total_k, heads_kv)] * 2)]
    return inputs, half(total_q, heads, size)


def by_pair(*given: Any, window: tuple[int, int] = CAUSAL_WINDOW, **options: Any) -> Tensor:
    q, k, *_ = given
    return attention_varlen(*given, q.shape[0], k.shape[0], **{"backward": PAIR, "window_size": window} | options)


def wanted(
    inputs: Sequence[Tensor], grad: Tensor, cu: Sequence[Tensor], window: tuple[int, int], softcap: float = 0.0
) -> list[Tensor]:
    """Returns the gradients in fp64, sequence by sequence, 0 in rows that are no sequence's."""
    found = [torch.zeros_like(x, dtype=torch.float64) for x in inputs]
    for bounds in zip(*(zip(of.tolist(), of.tolist()[1:]) for of in cu)):
        of_q, of_k = (slice(*of) for of in bounds)
        parts = [x[rows].transpose(0, 1)[None] for x, rows in zip((*inputs, grad), (of_q, of_k, of_k, of_q))]
        seen = visible(parts[0].shape[2], parts[1].shape[2], *window)
        of_one = exact(*parts, seen, parts[0].shape[3] ** -0.5, softcap=softcap)
        for whole, rows, part in zip(found, (of_q, of_k, of_k), of_one):
            whole[rows] = part[0].transpose(0, 1)
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_sequence_has_its_gradients(name, on_cpu: Kernels) -> None:
    lengths, sizes, window = CASES[name]
    inputs, grad = drawn(lengths, *sizes)
    cu = begins(lengths)
    softcap = 1.5 if "softcap" in name else 0.0
    found = torch.autograd.grad(by_pair(*inputs, *cu, window=window, softcap=softcap), inputs, grad)
    expected = wanted(inputs, grad, cu, window, softcap)
    for gradient, value, given, side in zip(found, expected, inputs, (0, 1, 1), strict=True):
        assert (gradient.shape, gradient.dtype, gradient.is_contiguous()) == (given.shape, given.dtype, True)
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)
        of_each = gradient.split([of[side] for of in lengths])
        assert not any(part.any() for part, of in zip(of_each, lengths) if 0 in of)
    assert loops_of(on_cpu) == ["dkdv", "dq"]
    assert {variant.packed for _, variant in on_cpu.asked} == {True}


def test_rows_of_no_sequence_have_gradients_of_0_whatever_they_hold(on_cpu: Kernels) -> None:
    lengths, first = [(5, 9), (0, 7), (130, 6)], (2, 3)
    inputs, grad = drawn(lengths, 2, 2, 64, unused=11)
    cu = begins(lengths, first)
    with torch.no_grad():
        for x, of in zip((*inputs, grad), (cu[0], cu[1], cu[1], cu[0])):
            x[: of[0]], x[of[-1] :] = torch.nan, torch.inf
    found = torch.autograd.grad(by_pair(*inputs, *cu), inputs, grad)
    for gradient, value in zip(found, wanted(inputs, grad, cu, CAUSAL_WINDOW)):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("sides", ["qk", "q", "k"])
def test_rows_that_do_not_count_have_gradients_of_0_whatever_they_hold(sides, on_cpu: Kernels) -> None:
    lengths, used = [(9, 20), (3, 7), (140, 6), (5, 70)], {"q": (5, 0, 130, 5), "k": (9, 7, 0, 64)}
    inputs, grad = drawn(lengths, 4, 2, 64)
    sinks, cu = torch.linspace(-2, 2, 4).requires_grad_(), begins(lengths)
    options = {f"seqused_{side}": offsets(*used[side]) for side in sides}
    # The same sequences without these rows.
    shorter = [tuple(used[s][n] if s in sides else of["qk".index(s)] for s in "qk") for n, of in enumerate(lengths)]
    counts = [
        torch.cat([torch.arange(at, at + of[side]) for at, of in zip(cu[side].tolist(), shorter)]) for side in (0, 1)
    ]
    own = [x.detach()[counts[side]].requires_grad_() for x, side in zip(inputs, (0, 1, 1))]
    with torch.no_grad():
        for x, side in zip((*inputs, grad), (0, 1, 1, 0)):
            x[torch.ones(len(x), dtype=torch.bool).index_fill_(0, counts[side], False)] = torch.nan
    found = torch.autograd.grad(by_pair(*inputs, *cu, sinks=sinks, **options), [*inputs, sinks], grad)
    alone = torch.autograd.grad(by_pair(*own, *begins(shorter), sinks=sinks), [*own, sinks], grad[counts[0]])
    for whole, part, side in zip(found[:3], alone, (0, 1, 1)):
        assert torch.equal(whole, torch.zeros_like(whole).index_copy_(0, counts[side], part))
    torch.testing.assert_close(found[3], alone[3])


def test_a_sequence_has_the_same_bits_in_any_order_and_alone(on_cpu: Kernels) -> None:
    lengths = [(5, 9), (0, 7), (130, 70), (64, 130), (9, 0)]
    inputs, grad = drawn(lengths, 4, 2, 64)
    parts = [x.detach().split([of[side] for of in lengths]) for x, side in zip((*inputs, grad), (0, 1, 1, 0))]

    def gradients(order: Sequence[int]) -> dict[int, list[Tensor]]:
        *given, of_output = (torch.cat([part[n] for n in order]) for part in parts)
        given = [x.requires_grad_() for x in given]
        taken = [lengths[n] for n in order]
        found = torch.autograd.grad(by_pair(*given, *begins(taken)), given, of_output)
        split = zip(*(x.split([of[side] for of in taken]) for x, side in zip(found, (0, 1, 1))))
        return dict(zip(order, map(list, split)))

    whole = gradients(range(5))
    for order in ((4, 3, 2, 1, 0), (2, 0, 4, 1, 3), (2,), (3,), (0,)):
        for number, found in gradients(order).items():
            assert all(map(torch.equal, found, whole[number]))


def test_a_sequence_has_the_bits_of_a_batch_of_one(on_cpu: Kernels) -> None:
    inputs, grad = drawn([(70, 90)], 4, 2, 64)
    found = torch.autograd.grad(by_pair(*inputs, *begins([(70, 90)])), inputs, grad)
    dense = [x.detach().transpose(0, 1)[None].contiguous().requires_grad_() for x in inputs]
    output = attention(*dense, causal=True, backward=PAIR)
    alone = torch.autograd.grad(output, dense, grad.transpose(0, 1)[None])
    assert all(torch.equal(x, y[0].transpose(0, 1)) for x, y in zip(found, alone))


@pytest.mark.parametrize("lies", ["together", "heads first", "odd", "expanded"])
def test_inputs_and_gradients_may_lie_anyhow(lies, on_cpu: Kernels) -> None:
    lengths = [(5, 9), (12, 8)]
    inputs, grad = drawn(lengths, 2, 2, 64)
    expected = torch.autograd.grad(by_pair(*inputs, *begins(lengths)), inputs, grad)
    q, k, v = (x.detach() for x in inputs)
    memory = torch.empty(grad.numel() + 1, dtype=grad.dtype)
    if lies == "together":
        q, k, v = torch.stack([q, k, v], dim=1).unbind(1)
    elif lies == "heads first":
        q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v))
    elif lies == "odd":
        grad = memory[1:].view(grad.shape).copy_(grad)
    else:
        grad = grad[:1, :, :1].expand(grad.shape)
        expected = torch.autograd.grad(by_pair(*inputs, *begins(lengths)), inputs, grad.contiguous())
    given = [x.requires_grad_() for x in (q, k, v)]
    found = torch.autograd.grad(by_pair(*given, *begins(lengths)), given, grad)
    assert all(map(torch.equal, found, expected))
    # As the operator says that they lie.
    assert [x.stride() for x in found] == [torch.empty_like(x).stride() for x in given]


def test_the_pair_of_schedules_is_named_as_for_a_batch(on_cpu: Kernels) -> None:
    lengths = [(5, 9), (12, 8)]
    inputs, grad = drawn(lengths, 2, 2, 64)
    first, *others = (
        torch.autograd.grad(by_pair(*inputs, *begins(lengths), backward=named), inputs, grad)
        for named in (PAIR, ("backward/dq", "backward/dkdv"), SCHEDULES, [*PAIR], PAIR)
    )
    assert all(all(map(torch.equal, first, other)) for other in others)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_torch_compile_takes_the_pair(dynamic, on_cpu: Kernels) -> None:
    torch._dynamo.reset()
    traced = torch.compile(
        lambda *given: attention_varlen(*given, 70, 70, causal=True, backward=PAIR),
        fullgraph=True, backend="aot_eager", dynamic=dynamic,
    )  # fmt: skip
    for lengths in ([(5, 9), (12, 8)], [(70, 31), (0, 3)]):
        inputs, grad = drawn(lengths, 4, 2, 64)
        found, expected = (
            torch.autograd.grad(call(*inputs, *begins(lengths)), inputs, grad) for call in (traced, by_pair)
        )
        assert loops_of(on_cpu) == ["dkdv", "dq"] and all(map(torch.equal, found, expected))


def test_opcheck_with_a_pair(on_cpu: Kernels) -> None:
    lengths = [(5, 9), (12, 8)]
    inputs, _ = drawn(lengths, 4, 2, 64)
    options = {"causal": True, "return_lse": True, "backward": [*PAIR]}
    given = *inputs, *begins(lengths), 12, 9
    torch.library.opcheck(torch.ops.tl_attention.forward_varlen.default, given, options, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("of_lse", [False, True], ids=["output", "LSE"])
def test_sinks_and_the_lse_have_gradients(of_lse, on_cpu: Kernels) -> None:
    """Of a batch of one sequence each, the same pair has these gradients."""
    lengths = [(70, 90), (9, 3), (130, 130)]
    inputs, grad = drawn(lengths, 4, 2, 64)
    sinks, weight = torch.linspace(-2, 2, 4).requires_grad_(), torch.randn(4, grad.shape[0])

    def loss(call: Any, at: slice, *given: Any, **more: Any) -> Tensor:
        output, lse = call(*given, sinks=sinks, causal=True, backward=PAIR, return_lse=True, **more)
        found = (output.float() * grad[at].float().view(output.shape)).sum()
        return found + (lse * weight[:, at].view(lse.shape)).sum() if of_lse else found

    cu = begins(lengths)
    found = torch.autograd.grad(loss(attention_varlen, slice(None), *inputs, *cu, 130, 130), [*inputs, sinks])
    wanted = [torch.zeros_like(x) for x in (*inputs, sinks)]
    for bounds in zip(*(zip(of.tolist(), of.tolist()[1:]) for of in cu)):
        of_q, of_k = (slice(*of) for of in bounds)
        alone = [x[at][None].detach().requires_grad_() for x, at in zip(inputs, (of_q, of_k, of_k))]
        given = [x.transpose(1, 2).contiguous() for x in alone]

        def one(*given: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
            output, lse = attention(*given, **more)
            return output.transpose(1, 2), lse

        gradients = torch.autograd.grad(loss(one, of_q, *given), [*alone, sinks])
        for whole, at, part in zip(wanted, (of_q, of_k, of_k), gradients):
            whole[at] = part[0]
        wanted[3] += gradients[3]
    for gradient, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, value, atol=1e-5, rtol=1e-4)


NOT_HERE = {"bshd", "sinks", "another head_dim of V", "head_dim"}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "operator"])
@pytest.mark.parametrize("name", sorted({*REFUSED} - NOT_HERE))
def test_what_a_pair_does_not_serve_is_one_line(name, traced, on_cpu: Kernels, monkeypatch) -> None:
    options, words = REFUSED[name]
    inputs, _ = drawn([(5, 9), (12, 8)], 2, 2, 64)
    if traced:
        monkeypatch.setattr("tl_attention.op.attend.is_plain", lambda: False)
    for _ in range(2):
        with pytest.raises(InputError, match=words.replace("attention: backward", ".*: backward")) as error:
            by_pair(*inputs, *begins([(5, 9), (12, 8)]), **{"window": FULL_WINDOW} | options)
        assert "\n" not in str(error.value)
    assert loops_of(on_cpu) == []


def test_calls_without_rows_keys_or_sequences_launch_no_kernel(on_cpu: Kernels, monkeypatch) -> None:
    monkeypatch.setattr(pair, "_launch", lambda *given: pytest.fail("a launch"))
    for lengths in ([(0, 7)], [(3, 0)], [(0, 0)]):
        inputs, grad = drawn(lengths, 2, 2, 64)
        found = torch.autograd.grad(by_pair(*inputs, *begins(lengths)), inputs, grad)
        assert not any(x.any() for x in found)
