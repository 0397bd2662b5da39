"""`attention(..., backward=(dq, dkdv))`: on the CPU, with stand-ins for both kernels, gradients are those of fp64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import OPEN, exact, no_pair, visible
from on_cpu import Kernels, on_cpu
from test_backward import bhsd, drawn, found_and_exact
from test_gradient_loops import changed
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tl_attention import InputError, attention, load_schedule
from tl_attention.errors import ScheduleRefused
from tl_attention.op import compiled
from tl_attention.op.operator import GRADIENTS
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

__all__ = ["no_pair", "on_cpu"]

PAIR = ("dq", "dkdv")
SCHEDULES = tuple(map(load_schedule, PAIR))
FILES = tuple(Path(__file__).parents[2] / "schedules/backward" / f"{name}.yaml" for name in PAIR)
FULL_WINDOW, CAUSAL_WINDOW = (OPEN, OPEN), (OPEN, 0)

# Batch, heads, heads_kv, seq_q, seq_kv, head_dim; window (left, right).
CASES = {
    "full": ((2, 3, 3, 128, 128, 64), FULL_WINDOW),
    "ragged": ((2, 3, 3, 130, 77, 128), FULL_WINDOW),
    "causal": ((1, 2, 2, 131, 131, 64), CAUSAL_WINDOW),
    "causal, more keys": ((2, 2, 2, 33, 150, 128), CAUSAL_WINDOW),
    "causal, rows without a key": ((2, 2, 2, 140, 5, 64), CAUSAL_WINDOW),
    "grouped": ((2, 6, 2, 33, 40, 64), CAUSAL_WINDOW),
    "one query": ((2, 2, 2, 1, 70, 64), CAUSAL_WINDOW),
    "one key": ((1, 2, 2, 70, 1, 128), FULL_WINDOW),
    "one key, causal": ((1, 2, 2, 3, 1, 64), CAUSAL_WINDOW),
    "one of both": ((3, 1, 1, 1, 1, 64), FULL_WINDOW),
    "a window that hides nothing": ((1, 2, 2, 40, 60, 64), (60, 40)),
    "a window": ((1, 2, 2, 140, 150, 64), (70, 3)),
    "a window to the left": ((2, 4, 2, 33, 150, 128), (20, OPEN)),
    "a window to the right": ((1, 2, 2, 150, 40, 64), (OPEN, 9)),
    "a causal window, rows without a key": ((1, 2, 2, 140, 40, 64), (17, 0)),
    "head_dim 96": ((1, 2, 2, 33, 70, 96), CAUSAL_WINDOW),
    "head_dim 72, V of 40, a window": ((1, 4, 2, 33, 70, 72, 40), (20, 0)),
    "softcap": ((2, 4, 2, 33, 70, 64), FULL_WINDOW),
    "softcap, a window": ((1, 2, 2, 90, 70, 128), (20, 3)),
    "softcap, sinks": ((1, 2, 2, 33, 70, 64), CAUSAL_WINDOW),
    "sinks": ((2, 6, 2, 33, 40, 64), CAUSAL_WINDOW),
    "sinks of rows without a key": ((2, 2, 2, 140, 5, 64), CAUSAL_WINDOW),
    "sinks, no keys": ((1, 2, 2, 3, 0, 64), FULL_WINDOW),
    "no keys": ((1, 2, 2, 3, 0, 64), FULL_WINDOW),
    "no queries": ((1, 2, 2, 0, 3, 64), CAUSAL_WINDOW),
    "no batch": ((0, 2, 2, 3, 3, 64), CAUSAL_WINDOW),
}


def by_pair(*inputs: Tensor, **options: object) -> Tensor:
    return attention(*inputs, **{"backward": PAIR} | options)


def loops_of(kernels: Kernels) -> list[str]:
    return sorted(variant.loop for _, variant in kernels.asked if variant.loop != "forward")


@pytest.mark.parametrize("dtype, layout", [(torch.float16, "bhsd"), (torch.bfloat16, "bshd")], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_case(name, dtype, layout, on_cpu: Kernels) -> None:
    sizes, window = CASES[name]
    tensors = drawn(sizes, layout, dtype=dtype)
    sinks = torch.linspace(-2, 3, sizes[1], requires_grad=True) if "sinks" in name else None
    softcap = 1.5 if "softcap" in name else 0.0
    found, expected = found_and_exact(*tensors, window, layout, call=by_pair, sinks=sinks, softcap=softcap)
    assert len(found) == len(expected) == 3 + (sinks is not None)
    for gradient, value, given in zip(found, expected, [*bhsd(tensors[:3], layout), sinks]):
        assert (gradient.shape, gradient.dtype, gradient.stride()) == (given.shape, given.dtype, given.stride())
        close = 1e-2 if dtype == torch.float16 else 4e-2
        torch.testing.assert_close(gradient.double(), value, atol=close, rtol=close)
    assert loops_of(on_cpu) == ["dkdv", "dq"]
    hides = "window" in name and "nothing" not in name
    assert {bool(variant.mask.names) for _, variant in on_cpu.asked if variant.loop == "dq"} <= {hides}


@pytest.mark.parametrize("heads, seq", [(1, 40), (3, 1)], ids=["one head", "one row"])
def test_a_layout_whose_tensors_lie_as_those_of_bhsd_is_served(heads, seq, on_cpu: Kernels) -> None:
    tensors = drawn((2, heads, heads, seq, seq, 64), "bshd")
    found, expected = found_and_exact(*tensors, CAUSAL_WINDOW, "bshd", scale=0.3, call=by_pair)
    for gradient, value in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)
    assert loops_of(on_cpu) == ["dkdv", "dq"]


def test_sinks_leave_the_kernels_as_they_are_and_one_that_weighs_nothing_has_a_gradient_of_0(on_cpu: Kernels) -> None:
    *tensors, grad = drawn((1, 2, 2, 9, 5, 64), "bhsd")
    sinks = torch.tensor([float("-inf"), 1.0], requires_grad=True)
    by_pair(*tensors, causal=True, sinks=sinks).backward(grad)
    assert sinks.grad is not None and sinks.grad[0] == 0 and sinks.grad[1].isfinite() and sinks.grad[1] != 0
    assert all(x.grad is not None and x.grad.isfinite().all() for x in tensors)
    assert [variant.optional for _, variant in on_cpu.asked if variant.loop != "forward"] == [frozenset()] * 2


def test_one_input_may_require_a_gradient_alone(on_cpu: Kernels) -> None:
    *given, grad = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    given.append(torch.tensor([0.5, -1.0], requires_grad=True))
    whole = torch.autograd.grad(by_pair(*given[:3], sinks=given[3]), given, grad)
    for index, expected in enumerate(whole):
        inputs = [x.detach().requires_grad_(position == index) for position, x in enumerate(given)]
        by_pair(*inputs[:3], sinks=inputs[3]).backward(grad)
        assert [x.grad is None for x in inputs] == [position != index for position in range(4)]
        assert torch.equal(inputs[index].grad, expected)


def test_the_same_call_has_the_same_bits_and_no_other_operator_takes_part(on_cpu: Kernels) -> None:
    """PyTorch's operators have no kernel for CPU tensors here."""
    *inputs, grad = drawn((2, 2, 2, 70, 90, 64), "bhsd")
    first, *others = [torch.autograd.grad(by_pair(*inputs), inputs, grad) for _ in range(4)]
    assert all(map(torch.equal, first * 3, (x for of_call in others for x in of_call)))
    with pytest.raises(NotImplementedError):
        torch.autograd.grad(attention(*inputs), inputs, grad)


@pytest.mark.parametrize("lies", ["expanded", "transposed", "odd"])
def test_the_outputs_gradient_may_lie_anyhow(lies, on_cpu: Kernels) -> None:
    *inputs, grad = drawn((2, 2, 2, 5, 9, 64), "bhsd")
    memory = torch.empty(grad.numel() + 1, dtype=grad.dtype)
    given = {
        "expanded": grad[:, :1, :, :1].expand(grad.shape),
        "transposed": grad.transpose(1, 2).contiguous().transpose(1, 2),
        "odd": memory[1:].view(grad.shape).copy_(grad),
    }[lies]
    found = torch.autograd.grad(by_pair(*inputs), inputs, given)
    expected = torch.autograd.grad(by_pair(*inputs), inputs, given.clone(memory_format=torch.contiguous_format))
    assert all(map(torch.equal, found, expected))


def test_a_pair_is_named_by_names_files_labels_and_schedules(on_cpu: Kernels, tmp_path: Path) -> None:
    *inputs, grad = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    expected = torch.autograd.grad(by_pair(*inputs), inputs, grad)
    labels = tuple(schedule.label for schedule in SCHEDULES)
    for named in (("backward/dq", "backward/dkdv"), FILES, tuple(map(str, FILES)), labels, SCHEDULES, [*PAIR]):
        for _ in range(2):
            found = torch.autograd.grad(by_pair(*inputs, backward=named), inputs, grad)
            assert all(map(torch.equal, found, expected))
    assert {schedule for schedule, variant in on_cpu.asked if variant.loop != "forward"} == {*SCHEDULES}
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: dkdv\nkernel:\n  q_stages: 3\n")
    by_pair(*inputs, backward=("dq", mine))
    assert load_schedule(mine) in {schedule for schedule, _ in on_cpu.asked}


def test_only_a_call_that_needs_a_gradient_needs_the_kernels(on_cpu: Kernels) -> None:
    q, k, v, _ = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    with torch.no_grad():
        by_pair(q, k, v, window_size=(1, 1))
        with pytest.raises(InputError, match="it orders loop dkdv, expected a schedule of loop dq$"):
            by_pair(q, k, v, backward=PAIR[::-1])
    assert loops_of(on_cpu) == []


def test_a_step_with_checkpoints_and_autocast_has_the_same_gradients(on_cpu: Kernels) -> None:
    *inputs, grad = drawn((2, 2, 2, 5, 9, 64), "bhsd")
    expected = torch.autograd.grad(by_pair(*inputs), inputs, grad)
    with torch.autocast("cpu", torch.bfloat16):
        output = checkpoint(by_pair, *inputs, use_reentrant=False)
    assert all(map(torch.equal, torch.autograd.grad(output, inputs, grad), expected))


# --- the LSE's gradient ----------------------------------------------------------------------------------------------

OF_LSE = ["ragged", "causal, rows without a key", "grouped", "one key", "no keys", *(x for x in CASES if "sinks" in x)]


def of_both(
    tensors: list[Tensor], window: tuple[int, int], sinks: Tensor | None = None, call: Callable[..., Any] = by_pair
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Returns the gradients of a call whose output and LSE both have one, and fp64's."""
    q, k, v, grad = tensors
    inputs = [x for x in (q, k, v, sinks) if x is not None]
    output, lse = call(q, k, v, window_size=window, sinks=sinks, return_lse=True)
    d_lse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((output, lse), inputs, (grad, d_lse))
    seen = visible(q.shape[2], k.shape[2], *window)
    return [*found], exact(q, k, v, grad, seen, q.shape[3] ** -0.5, sinks, d_lse)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "operator"])
@pytest.mark.parametrize("name", OF_LSE)
def test_the_lse_has_a_gradient(name, traced, on_cpu: Kernels, monkeypatch) -> None:
    if traced:
        monkeypatch.setattr("tl_attention.op.attend.is_plain", lambda: False)
    sizes, window = CASES[name]
    sinks = torch.linspace(-2, 3, sizes[1], requires_grad=True) if "sinks" in name else None
    found, expected = of_both(drawn(sizes, "bhsd"), window, sinks)
    assert len(found) == len(expected) == 3 + (sinks is not None)
    for gradient, value in zip(found, expected):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)
    of_loops = {variant.loop: variant.optional for _, variant in on_cpu.asked if variant.loop != "forward"}
    # Without a key no kernel is launched, but an eager call has found both.
    assert of_loops in ({"dq": {"dLSE"}, "dkdv": set()}, {} if traced and "no keys" in name else None)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "operator"])
def test_output_and_lse_may_have_a_gradient_alone(traced, on_cpu: Kernels, monkeypatch) -> None:
    if traced:
        monkeypatch.setattr("tl_attention.op.attend.is_plain", lambda: False)
    *inputs, grad = drawn((1, 2, 2, 33, 40, 64), "bhsd")
    sinks = torch.tensor([0.5, -1.0], requires_grad=True)
    given, seen = [*inputs, sinks], visible(33, 40)
    d_lse = torch.ones(1, 2, 33)
    for of_output, of_lse in ((grad, None), (None, d_lse)):
        results = by_pair(*inputs, sinks=sinks, return_lse=True)
        pairs = [(result, of) for result, of in zip(results, (of_output, of_lse)) if of is not None]
        found = torch.autograd.grad([result for result, _ in pairs], given, [of for _, of in pairs])
        zeros = torch.zeros_like(grad)
        expected = exact(*inputs, zeros if of_output is None else grad, seen, 0.125, sinks, of_lse)
        for gradient, value in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)


def test_a_gradient_of_an_lse_of_minus_infinity_counts_for_nothing(on_cpu: Kernels) -> None:
    *inputs, grad = drawn((1, 2, 2, 9, 5, 64), "bhsd")
    found = []
    for value in (0.0, float("nan"), float("inf")):
        output, lse = by_pair(*inputs, causal=True, return_lse=True)
        d_lse = torch.ones_like(lse).masked_fill(lse.isneginf(), value)
        found.append(torch.autograd.grad((output, lse), inputs, (grad, d_lse)))
    assert all(x.isfinite().all() for x in found[0])
    assert all(all(map(torch.equal, found[0], others)) for others in found[1:])


def test_torch_compile_takes_the_gradient_of_the_lse(on_cpu: Kernels) -> None:
    torch._dynamo.reset()
    traced = torch.compile(by_pair, fullgraph=True, backend="aot_eager")
    found, expected = of_both(drawn((1, 2, 2, 33, 40, 64), "bhsd"), CAUSAL_WINDOW, call=traced)
    for gradient, value in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)


def test_without_a_pair_the_lse_has_no_gradient(on_cpu: Kernels, no_pair) -> None:
    q, k, v, _ = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    with pytest.raises(InputError, match="with return_lse there is no backward: .*: the LSE has no gradient$"):
        attention(q, k, v, return_lse=True)
    # The operator has to return it, and a traced call is the operator.
    _, lse = torch.ops.tl_attention.forward(q, k, v, return_lse=True)
    with pytest.raises(InputError, match="neither PyTorch nor a pair .* has gradients of .*64\\) float16, LSE$"):
        lse.sum().backward()


# --- the operator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_torch_compile_takes_the_pair(dynamic, on_cpu: Kernels) -> None:
    torch._dynamo.reset()
    traced = torch.compile(by_pair, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for seq in (5, 70):
        *inputs, grad = drawn((2, 2, 2, seq, seq + 3, 64), "bhsd")
        found = torch.autograd.grad(traced(*inputs, causal=True), inputs, grad)
        assert loops_of(on_cpu) == ["dkdv", "dq"]
        assert all(map(torch.equal, found, torch.autograd.grad(by_pair(*inputs, causal=True), inputs, grad)))


def test_the_operator_takes_no_schedules(on_cpu: Kernels, monkeypatch) -> None:
    inputs = drawn((1, 2, 2, 5, 8, 64), "bhsd")[:3]
    words = "attention: backward has a Schedule under .*, expected names, files or labels"
    traced = torch.compile(lambda *given: by_pair(*given, backward=SCHEDULES), fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        traced(*inputs)
    monkeypatch.setattr("tl_attention.op.attend.is_plain", lambda: False)
    with pytest.raises(InputError, match=f"^{words}$"):
        by_pair(*inputs, backward=SCHEDULES)


def test_opcheck_with_a_pair(on_cpu: Kernels) -> None:
    *inputs, grad = drawn((1, 2, 2, 5, 9, 64), "bhsd")
    options = {"causal": True, "return_lse": True, "backward": [*PAIR]}
    torch.library.opcheck(torch.ops.tl_attention.forward.default, (*inputs, None), options, atol=1e-2, rtol=1e-2)
    with torch.no_grad():
        output, lse = attention(*inputs, causal=True, return_lse=True)
    own = {"causal": True, "scale": None, "window_size": [-1, -1], "layout": "bhsd", "backward": [*PAIR]}
    _, operator = next(iter(GRADIENTS.values()))
    found = operator(grad, *(x.detach() for x in inputs), output, lse, None, **own)
    expected = exact(*bhsd((*inputs, grad), "bhsd"), visible(5, 9, *CAUSAL_WINDOW), 64**-0.5)
    for gradient, value in zip(found, expected):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)


def test_a_gradient_of_a_gradient_is_refused(on_cpu: Kernels) -> None:
    *inputs, grad = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    for named in (PAIR, SCHEDULES):
        for results in ([by_pair(*inputs, backward=named)], by_pair(*inputs, backward=named, return_lse=True)):
            grads = [grad, torch.ones(1, 2, 4)][: len(results)]
            [dq] = torch.autograd.grad(results, inputs[:1], grads, create_graph=True)
            with pytest.raises(InputError, match="the gradient of a gradient is asked for, and there is none"):
                dq.sum().backward()


# --- what is refused -------------------------------------------------------------------------------------------------

LACKS = "which lowering warp_specialized does not compute$"
REFUSED = {
    "no pair": ({"backward": "dq"}, "attention: backward is 'dq', expected a pair \\(dq, dkdv\\), each a name, a file"),
    "one": ({"backward": ("dq",)}, "attention: backward is \\('dq',\\), expected a pair"),
    "numbers": ({"backward": (1, 2)}, "attention: backward is \\(1, 2\\), expected a pair"),
    "unknown": ({"backward": ("dq", "dkdw")}, "dkdw"),
    "exchanged": ({"backward": PAIR[::-1]}, "it orders loop dkdv, expected a schedule of loop dq$"),
    "the forward's": ({"backward": ("dq", "best")}, "it orders loop forward, expected a schedule of loop dkdv$"),
    "head_dim": ({"sizes": (1, 2, 2, 8, 8, 192)}, f"head_dim 192, {LACKS}"),
    "another head_dim of V": ({"sizes": (1, 2, 2, 8, 8, 128, 136)}, f"head_dim 128/136, {LACKS}"),
}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "operator"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_pair_does_not_serve_is_one_line(name, traced, on_cpu: Kernels, monkeypatch) -> None:
    options, words = REFUSED[name]
    options = dict(options)
    inputs = drawn(options.pop("sizes", (1, 2, 2, 8, 8, 64)), options.get("layout", "bhsd"))[:3]
    if traced:
        monkeypatch.setattr("tl_attention.op.attend.is_plain", lambda: False)
    for _ in range(2):
        with pytest.raises(InputError, match=words) as error:
            by_pair(*inputs, **options)
        assert "\n" not in str(error.value)
    assert loops_of(on_cpu) == []


def test_blocks_of_rows_that_no_tile_of_dq_has_written_are_refused(on_cpu: Kernels) -> None:
    """A tile of 64 queries leaves D and LSE of the rows behind it unwritten, which a block of 128 would read."""
    inputs = drawn((1, 2, 2, 8, 8, 64), "bhsd")[:3]
    dq, dkdv = changed("dq", block_M=64, threads=128), changed("dkdv", block_N=128)
    with pytest.raises(InputError, match="dkdv reads 128 rows at once .* divisor of the 64 that a tile of dq has"):
        by_pair(*inputs, backward=(dq, dkdv))
    by_pair(*inputs, backward=(dq, SCHEDULES[1]))


def test_a_kernel_that_is_not_proved_is_refused_when_the_call_is_made(on_cpu: Kernels, monkeypatch) -> None:
    def refuse(schedule: Schedule, variant: Variant) -> None:
        raise ScheduleRefused("it is not proved")

    inputs = drawn((1, 4, 2, 8, 8, 64), "bhsd")[:3]
    monkeypatch.setattr(compiled, "kernel_of", refuse)
    for named, start in ((PAIR, r"\S*dq.yaml:?\d*: "), (SCHEDULES, r"warp_specialized_\S+: ")):
        with pytest.raises(InputError, match=f"^{start}refused: it is not proved$"):
            by_pair(*inputs, backward=named)
