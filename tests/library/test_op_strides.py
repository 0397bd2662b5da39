"""`attention(q, k, v)` takes tensors that are not contiguous, in both layouts and into `out=`, on a Hopper GPU."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from mutations import SCHEDULES
from on_gpu import check, fresh

from tl_attention import InputError, attention

pytestmark = pytest.mark.gpu


def like(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Returns the tensor's values in a view of this kind, with NaN all around them."""
    batch, heads, seq, columns = x.shape
    shapes = {
        "transposed": (batch, seq, heads, columns),
        "padded rows": (batch, heads, seq, columns + 8),
        "every second row": (batch, heads, 2 * seq, columns),
        "every third head": (batch, 3 * heads, seq, columns),
        "packed": (batch, seq, 3, heads, columns),
        "sequence first": (seq, batch, heads, columns),
        "heads first": (heads, seq, batch, columns + 64),
    }
    whole = torch.full(shapes[kind], float("nan"), dtype=x.dtype, device=x.device)
    view = {
        "transposed": lambda: whole.transpose(1, 2),
        "padded rows": lambda: whole[..., 8:],
        "every second row": lambda: whole[:, :, 1::2],
        "every third head": lambda: whole[:, 2::3],
        "packed": lambda: whole[:, :, 1].transpose(1, 2),
        "sequence first": lambda: whole.permute(1, 2, 0, 3),
        "heads first": lambda: whole.permute(2, 0, 1, 3)[..., :columns],
    }[kind]()
    view.copy_(x)
    return view


KINDS = ("transposed", "padded rows", "every second row", "every third head", "packed", "sequence first", "heads first")


def test_one_strided_tensor_beside_contiguous_ones():
    for kind, which in product(KINDS, range(3)):
        tensors = list(fresh(2, 3, 130, 250, 128))
        tensors[which] = like(tensors[which], kind)
        output = attention(*tensors)
        assert output.is_contiguous() and output.shape == tensors[0].shape
        check(output, *tensors)


@pytest.mark.parametrize("name", ["best", "seed", "experiments/output_tma"])
def test_the_parts_of_packed_q_k_and_v_in_layout_bshd(name):
    options = {"layout": "bshd", "schedule": SCHEDULES / f"{name}.yaml"}
    for batch, heads, seq in ((2, 3, 517), (1, 1, 64), (3, 2, 1)):
        packed = torch.randn(batch, seq, 3, heads, 128, device="cuda", dtype=torch.bfloat16) + 0.5
        q, k, v = packed.unbind(2)
        output = attention(q, k, v, **options)
        assert output.shape == (batch, seq, heads, 128) and output.is_contiguous()
        check(*(x.transpose(1, 2) for x in (output, q, k, v)))
        # Into a part of another packed tensor, beside what it is of.
        four = torch.randn(batch, seq, 4, heads, 128, device="cuda", dtype=torch.bfloat16) + 0.5
        q, k, v, out = four.unbind(2)
        assert attention(q, k, v, out=out, **options) is out
        check(*(x.transpose(1, 2) for x in (out, q, k, v)))


def test_layout_bshd_of_contiguous_tensors():
    q, k, v = (x.transpose(1, 2).contiguous() for x in fresh(2, 3, 333, 500, 64))
    output = attention(q, k, v, layout="bshd")
    assert output.is_contiguous()
    check(*(x.transpose(1, 2) for x in (output, q, k, v)))
    assert torch.equal(attention(q, k, v, layout="bshd", specialize=True), output)


def test_dimensions_of_length_1_may_have_any_stride():
    for sizes in ((1, 1, 1, 1), (1, 3, 1, 1), (1, 1, 100, 200), (2, 1, 1, 77), (1, 2, 65, 65)):
        tensors = fresh(*sizes, 128)
        for odd in (0, 1, 3, 8, 1 << 40):
            views = []
            for x in tensors:
                padded = like(x, "padded rows")
                strides = [odd if n == 1 else s for n, s in zip(padded.shape, padded.stride())]
                views.append(padded.as_strided(padded.shape, strides))
            check(attention(*views), *tensors)


def test_strides_beyond_32_bits():
    batch_stride = (1 << 31) + 128 * 8
    q, k, v = fresh(2, 2, 200, 300, 128)
    space = torch.empty(batch_stride + (1 << 17), dtype=torch.float16, device="cuda")

    def far(x: torch.Tensor) -> torch.Tensor:
        view = space.as_strided(x.shape, (batch_stride, 128 * x.shape[2], 128, 1))
        return view.copy_(x)

    for name in ("best", "seed", "experiments/output_direct"):
        schedule = SCHEDULES / f"{name}.yaml"
        check(attention(q, far(k), v, schedule=schedule), q, k, v)
        out = space.as_strided(q.shape, (batch_stride, 128 * 200, 128, 1))
        check(attention(q, k, v, schedule=schedule, out=out), q, k, v)


def test_rows_that_overlap_are_read_where_they_lie():
    q, k, v = fresh(1, 2, 64, 200, 64)
    windows = (torch.randn(2, 8 * 200 + 56, device="cuda", dtype=torch.float16) + 0.5).unfold(1, 64, 8)[None]
    assert windows.shape == k.shape and windows.stride(2) == 8
    check(attention(q, windows, v), q, windows, v)


def test_nothing_is_copied():
    packed = torch.randn(2, 1024, 3, 8, 128, device="cuda", dtype=torch.float16)
    q, k, v = packed.unbind(2)
    out = torch.empty_like(q)
    attention(q, k, v, layout="bshd", out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    attention(q, k, v, layout="bshd", out=out)
    assert torch.cuda.max_memory_allocated() == before
    attention(q, k, v, layout="bshd")
    assert torch.cuda.max_memory_allocated() - before <= out.numel() * 2 + 512


def test_repetitions_are_bitwise_equal():
    q, k, v = (like(x, "packed") for x in fresh(2, 20, 1000, 1100, 128, dtype="bfloat16"))
    first = attention(q, k, v)
    assert all(torch.equal(attention(q, k, v), first) for _ in range(50))


def test_what_cannot_run_where_it_lies_is_refused_before_it_runs():
    q, k, v = fresh(2, 3, 64, 64, 128)
    for name, tensor in {"k": k[:, :1].expand(k.shape), "v": v.transpose(2, 3).contiguous().transpose(2, 3)}.items():
        with pytest.raises(InputError, match=rf"{name} has strides .*: pass {name}\.contiguous\(\)$"):
            attention(**{"q": q, "k": k, "v": v, name: tensor})
    for out, words in {
        q: "out overlaps q in memory",
        torch.empty_like(q)[:, :, :32]: "out is .*, expected",
        torch.empty_like(q).float(): "out is .*float32",
        torch.empty_like(q, device="cpu"): "out is .* on cpu, expected .* on cuda",
        torch.empty_like(q)[:1].expand(q.shape): "out has strides .* may overlap each other",
        torch.empty(2, 3, 64, 130, dtype=q.dtype, device="cuda")[..., :128]: r"out has strides .*out\.contiguous\(\)",
        q[0]: "out is .*, expected a tensor",
    }.items():
        with pytest.raises(InputError, match=words) as error:
            attention(q, k, v, out=out)
        assert "\n" not in str(error.value)
