"""`attention` has a gradient: tests check its plumbing on the CPU with stand-ins, and a Hopper GPU's against fp64."""

from itertools import product

import pytest
import torch
from gradients import OPEN, exact, flash_on_cpu, no_pair, visible, visible_to_flash
from on_cpu import Kernels, on_cpu
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tl_attention import InputError, attention
from tl_attention.op.backward import force_operator
from tl_attention.op.rows import Rows
from tl_attention.problem.mask import fitted, masked, sides
from tl_attention.schedule.files.backward import FLASH2, masks_alike

__all__ = ["flash_on_cpu", "no_pair", "on_cpu"]

# Batch, heads, heads_kv, seq_q, seq_kv, head_dim, and V's if it is another; window (left, right).
CASES = {
    "full": ((2, 3, 3, 5, 9, 64), (OPEN, OPEN)),
    "causal": ((1, 2, 2, 7, 7, 72), (OPEN, 0)),
    "causal, more keys": ((2, 2, 2, 4, 9, 64), (OPEN, 0)),
    "grouped": ((2, 6, 2, 6, 9, 128), (OPEN, 0)),
    "MQA": ((1, 4, 1, 6, 9, 64), (OPEN, OPEN)),
    "window": ((1, 2, 1, 8, 9, 64), (3, 0)),
    "both sides": ((1, 2, 2, 8, 9, 64), (2, 1)),
    "left": ((1, 2, 2, 8, 9, 64), (2, OPEN)),
    "right": ((1, 2, 2, 8, 9, 64), (OPEN, 2)),
    "empty rows": ((2, 4, 2, 9, 5, 64), (OPEN, 0)),
    "empty rows of a window": ((1, 2, 2, 9, 4, 64), (1, 2)),
    "no keys": ((1, 2, 2, 3, 0, 64), (OPEN, OPEN)),
    "no queries": ((1, 2, 2, 0, 3, 64), (OPEN, 0)),
    "no batch": ((0, 2, 2, 3, 3, 64), (OPEN, 0)),
    "smaller heads of V": ((1, 4, 2, 6, 9, 96, 64), (OPEN, 0)),
    "larger heads of V": ((2, 2, 2, 9, 5, 64, 128), (OPEN, 0)),
    "sinks": ((2, 6, 2, 6, 9, 64), (3, 0)),
    "sinks of empty rows": ((2, 4, 2, 9, 5, 64), (OPEN, 0)),
    "sinks, no keys": ((1, 2, 2, 3, 0, 64), (OPEN, OPEN)),
    "sinks, no queries": ((1, 2, 2, 0, 3, 64), (OPEN, OPEN)),
}


def drawn(sizes: tuple[int, ...], layout: str, device: str = "cpu", dtype=torch.float16) -> list[Tensor]:
    """Draws q, k, v, and a gradient of the output, in the layout; q, k and v require a gradient."""
    batch, heads, heads_kv, seq_q, seq_kv, head_dim, *of_v = sizes
    generator = torch.Generator(device).manual_seed(7)
    lengths = ((heads, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv), (heads, seq_q))
    columns = head_dim, head_dim, *2 * (of_v or [head_dim])
    shapes = [(batch, *(n if layout == "bhsd" else n[::-1]), d) for n, d in zip(lengths, columns)]
    *inputs, grad = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
    return [*(x.requires_grad_() for x in inputs), grad]


def bhsd(tensors, layout: str) -> list[Tensor]:
    return [x if layout == "bhsd" else x.transpose(1, 2) for x in tensors]


def found_and_exact(
    q, k, v, grad, window, layout, scale=None, call=attention, sinks=None, softcap=0.0
) -> tuple[list[Tensor], tuple]:
    output = call(q, k, v, window_size=window, layout=layout, scale=scale, sinks=sinks, softcap=softcap)
    found = torch.autograd.grad(output, [x for x in (q, k, v, sinks) if x is not None], grad)
    q, k, v, grad, *of_inputs = bhsd((q, k, v, grad, *found[:3]), layout)
    seen = visible(q.shape[2], k.shape[2], *window)
    return [*of_inputs, *found[3:]], exact(q, k, v, grad, seen, scale or q.shape[3] ** -0.5, sinks, softcap=softcap)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_case(name, layout, on_cpu: Kernels, flash_on_cpu) -> None:
    sizes, window = CASES[name]
    tensors = drawn(sizes, layout)
    sinks = torch.linspace(-2, 3, sizes[1], requires_grad=True) if "sinks" in name else None
    found, expected = found_and_exact(*tensors, window, layout, sinks=sinks)
    for gradient, value, given in zip(found, expected, [*tensors[:3], sinks]):
        assert gradient.shape == value.shape and gradient.dtype == given.dtype
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)
    hidden = Rows.of(masked(False, window), sizes[3], sizes[4]).hidden
    assert not found[0][:, :, :hidden].any() and len(found) == len(expected)


def test_a_sink_that_weighs_nothing_has_a_gradient_of_0(on_cpu: Kernels, flash_on_cpu) -> None:
    *tensors, grad = drawn((1, 2, 2, 9, 5, 64), "bhsd")
    sinks = torch.tensor([float("-inf"), 1.0], requires_grad=True)
    attention(*tensors, causal=True, sinks=sinks).backward(grad)
    assert sinks.grad is not None and sinks.grad[0] == 0 and sinks.grad[1].isfinite() and sinks.grad[1] != 0


def test_scale_causal_and_strides_reach_the_backward(on_cpu: Kernels, flash_on_cpu) -> None:
    *_, grad = drawn((2, 2, 2, 6, 6, 64), "bshd")
    packed = torch.randn(2, 6, 3, 2, 64, dtype=torch.float16, requires_grad=True)
    q, k, v = packed.unbind(dim=2)
    call = lambda *inputs, window_size, **options: attention(*inputs, causal=True, **options)  # noqa: E731
    found, expected = found_and_exact(q, k, v, grad, (OPEN, 0), "bshd", 0.3, call)
    for gradient, value in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), value, atol=1e-2, rtol=1e-2)
    attention(q, k, v, layout="bshd").sum().backward()
    assert packed.grad is not None and packed.grad.shape == packed.shape and packed.grad.isfinite().all()


def test_one_input_may_require_a_gradient_alone(on_cpu: Kernels, flash_on_cpu) -> None:
    *given, grad = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    given.append(torch.tensor([0.5, -1.0], requires_grad=True))
    whole = torch.autograd.grad(attention(*given[:3], sinks=given[3]), given, grad)
    for index, expected in enumerate(whole):
        inputs = [x.detach().requires_grad_(position == index) for position, x in enumerate(given)]
        attention(*inputs[:3], sinks=inputs[3]).backward(grad)
        assert [x.grad is None for x in inputs] == [position != index for position in range(4)]
        assert torch.equal(inputs[index].grad, expected)


def test_without_a_gradient_no_lse_is_asked_for_and_with_one_it_is(on_cpu: Kernels, flash_on_cpu) -> None:
    q, k, v, _ = drawn((1, 2, 2, 4, 6, 64), "bhsd")
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad
    assert [variant.optional for _, variant in on_cpu.asked] == [frozenset()]
    assert attention(q, k, v).requires_grad
    assert {variant.optional for _, variant in on_cpu.asked} == {frozenset(), frozenset({"LSE"})}


def test_flash_masks_as_we_do_wherever_there_is_a_backward() -> None:
    refused = []
    for seq_q, seq_kv, left, right in product(range(1, 9), range(1, 6), range(-1, 8), range(-1, 8)):
        mask = masked(False, (left, right))
        rows = Rows.of(mask, seq_q, seq_kv)
        same = torch.equal(
            visible_to_flash(rows.count, seq_kv, *sides(fitted(mask, rows.count, seq_kv))),
            visible(seq_q, seq_kv, left, right)[rows.hidden :],
        )
        if masks_alike(mask, seq_q, seq_kv):
            assert same, (seq_q, seq_kv, left, right)
        else:
            refused.append(same)
    assert not all(refused)


REFUSED = {
    "softcap": ({"softcap": 30.0}, "with softcap 30.0 there is no backward"),
    "return_lse": ({"return_lse": True}, "with return_lse there is no backward"),
    "a window": ({"window_size": (0, -1)}, r"with window_size \(0, -1\), 6 queries and 4 keys there is no backward"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_backward_says_so_and_what_to_do(name, on_cpu: Kernels, no_pair) -> None:
    q, k, v, _ = drawn((1, 2, 2, 6, 4, 64), "bhsd")
    options, words = REFUSED[name]
    arguments = {"q": q, "k": k, "v": v} | options
    with pytest.raises(InputError, match=words + r".*: call it under torch.no_grad\(\), or with") as error:
        attention(**arguments)
    assert "\n" not in str(error.value) and not on_cpu.asked
    with torch.no_grad():
        attention(**arguments)
    assert on_cpu.asked


ON_GPU = {
    "full": ((2, 4, 4, 300, 300, 64), (OPEN, OPEN)),
    "causal": ((1, 4, 4, 515, 515, 128), (OPEN, 0)),
    "causal, more keys": ((2, 3, 3, 200, 777, 128), (OPEN, 0)),
    "grouped": ((2, 8, 2, 333, 400, 128), (OPEN, 0)),
    "head_dim 72": ((1, 2, 2, 200, 200, 72), (OPEN, 0)),
    "head_dim 256": ((1, 2, 2, 200, 200, 256), (OPEN, 0)),
    "heads of V": ((1, 2, 2, 300, 300, 192, 128), (OPEN, 0)),
    "sinks": ((1, 4, 2, 300, 300, 128), (OPEN, 0)),
    "sinks and a window": ((2, 4, 2, 500, 400, 64), (70, 0)),
    "window": ((1, 4, 2, 600, 600, 128), (100, 0)),
    "both sides": ((1, 2, 2, 300, 500, 64), (70, 50)),
    "left": ((1, 2, 2, 300, 500, 64), (70, OPEN)),
    "right": ((1, 2, 2, 300, 500, 64), (OPEN, 50)),
    "empty rows": ((2, 4, 2, 500, 150, 128), (OPEN, 0)),
    "empty rows of a window": ((1, 2, 2, 500, 150, 64), (30, 20)),
    "no keys": ((1, 2, 2, 3, 0, 64), (OPEN, OPEN)),
    "no queries": ((1, 2, 2, 0, 3, 64), (OPEN, 0)),
}


def sdpas(q, k, v, grad, window, layout) -> list[Tensor]:
    """Returns gradients of PyTorch's fused attention, (batch, heads, seq, head_dim): of flash if it has the mask."""
    inputs = [x.detach().requires_grad_() for x in bhsd((q, k, v), layout)]
    group = inputs[0].shape[1] // inputs[1].shape[1]
    seen = visible(inputs[0].shape[2], inputs[1].shape[2], *window).cuda()
    some = seen.any(dim=1)
    square = seen.shape[0] == seen.shape[1]
    causal = square and window == (OPEN, 0)
    options = {"is_causal": causal} if causal or seen.all() else {"attn_mask": seen[some]}
    repeated = (x.repeat_interleave(group, dim=1) for x in inputs[1:])
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        output = torch.nn.functional.scaled_dot_product_attention(inputs[0][:, :, some], *repeated, **options)
    return list(torch.autograd.grad(output, inputs, bhsd((grad,), layout)[0][:, :, some]))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ON_GPU)
def test_gradients_err_by_at_most_twice_what_sdpas_do(name, dtype, layout) -> None:
    sizes, window = ON_GPU[name]
    tensors = drawn(sizes, layout, "cuda", dtype)
    sinks = torch.linspace(-2, 3, sizes[1], device="cuda", requires_grad=True) if "sinks" in name else None
    hidden = Rows.of(masked(False, window), sizes[3], sizes[4]).hidden
    for operator in (FLASH2, None):
        with force_operator(operator):
            found, expected = found_and_exact(*tensors, window, layout, sinks=sinks)
        assert not found[0][:, :, :hidden].any()
        if sinks is not None:
            # SDPA has no sinks; what rounding the result to half a unit errs by at most.
            allowed = [torch.finfo(dtype).eps / 2 * value.norm() for value in expected]
        else:
            theirs = sdpas(*tensors, window, layout) if sizes[3] and sizes[4] else expected
            allowed = [(x.double() - value).norm() for x, value in zip(theirs, expected)]
        for gradient, value, most in zip(found, expected, allowed, strict=True):
            error = (gradient.double() - value).norm()
            assert gradient.isfinite().all() and error <= 2 * most, f"{error} of {value.norm()}, SDPA's {most}"
