"""Tensors may lie in memory in many ways: strides, layouts, and shared elements. Nothing here needs a GPU."""

import itertools
import random

import pytest
import torch

from tl_attention import InputError, attention
from tl_attention.op.in_memory import as_bhsd, check_layout, check_out, overlaps_itself, placed, share_memory


def half(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.float16)


def base(elements: int, offset: int = 0) -> torch.Tensor:
    """Makes a tensor of elements that begins `offset` elements behind a multiple of 16 bytes."""
    return half(elements + offset)[offset:]


PACKED = half(2, 5, 3, 4, 64)
ACCEPTED = {
    "transposed": half(2, 5, 4, 64).transpose(1, 2),
    "rows left out": half(2, 4, 10, 64)[:, :, ::2],
    "columns left out": half(2, 4, 5, 128)[..., 64:],
    "heads left out": half(2, 8, 5, 64)[:, 1::3],
    "a part of packed q, k and v": PACKED[:, :, 1].transpose(1, 2),
    "packed by heads": half(2, 5, 4, 192)[..., 64:128].transpose(1, 2),
    "rows that overlap": base(64 + 8 * 4).as_strided((1, 1, 5, 64), (64, 64, 8, 1)),
    "padded by 16 bytes": half(2, 4, 5, 72)[..., 8:],
    "one row, whatever its stride": base(640).as_strided((1, 4, 1, 64), (3, 128, 5, 1)),
    "one batch of stride 0": half(1, 5, 4, 64).transpose(1, 2).as_strided((1, 4, 5, 64), (0, 64, 256, 1)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_has_strides_that_a_kernel_can_read_is_taken_where_it_lies(name):
    view = ACCEPTED[name]
    strided, found = placed({"q": view, "k": half(*view.shape)}, "bhsd")
    assert strided
    assert found["q"].data_ptr() == view.data_ptr() and found["q"].shape == view.shape
    # Only what says nothing has changed.
    for length, mine, given in zip(view.shape, found["q"].stride(), view.stride()):
        assert mine == given or length == 1
    *outer, last = found["q"].stride()
    assert last == 1 and all(stride and stride % 8 == 0 for stride in outer)
    assert torch.equal(found["q"], view)


def test_contiguous_tensors_are_left_as_they_are():
    # torch calls it contiguous, for what the strides of dimensions of length 1 say.
    one = base(640).as_strided((1, 4, 1, 64), (3, 64, 5, 1))
    tensors = {"q": half(2, 4, 5, 64), "k": one, "out": half(0, 4, 5, 64)}
    strided, found = placed(tensors, "bhsd")
    assert not strided and all(found[name] is tensor for name, tensor in tensors.items())
    # With any other that is not, all go by their strides.
    strided, found = placed({**tensors, "v": ACCEPTED["transposed"]}, "bhsd")
    assert strided and found["k"].stride() == (256, 64, 64, 1)


REFUSED = {
    "last dimension": half(2, 4, 64, 5).transpose(2, 3),
    "row of 65 elements": half(2, 4, 5, 65)[..., :64],
    "heads 8 bytes apart": base(4 * 4 + 5 * 64).as_strided((1, 4, 5, 64), (640, 4, 64, 1)),
    "expanded batch": half(1, 4, 5, 64).expand(2, 4, 5, 64),
    "expanded heads": half(2, 1, 5, 64).expand(2, 4, 5, 64),
    "expanded rows": half(2, 4, 1, 64).expand(2, 4, 5, 64),
    "expanded columns": half(2, 4, 5, 1).expand(2, 4, 5, 64),
}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("argument", ["q", "k", "v", "out"])
def test_other_strides_are_refused_with_the_tensor_its_strides_and_what_to_do(name, argument, layout):
    tensor = REFUSED[name]
    with pytest.raises(InputError) as error:
        placed({argument: as_bhsd(tensor, layout)}, layout)
    words = str(error.value)
    assert f"{argument} has strides {tuple(tensor.stride())}, expected" in words
    assert f"{argument}.contiguous()" in words and "\n" not in words


@pytest.mark.parametrize("offset", [1, 7, 8])
def test_a_tensor_that_does_not_start_at_16_bytes_is_told_by_name(offset):
    view = base(2 * 64, offset).view(1, 1, 2, 64)
    if offset == 8:
        assert placed({"v": view}, "bhsd") == (False, {"v": view})
        return
    words = rf"v starts {2 * offset} bytes after a multiple of 16, expected a multiple: pass v\.clone\(\)"
    with pytest.raises(InputError, match=words) as error:
        placed({"v": view}, "bhsd")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=rf"v, with strides \(.*\), starts {2 * offset} bytes .*v\.contiguous\(\)"):
        placed({"v": base(512, offset).view(1, 2, 2, 128)[..., :64]}, "bhsd")


def test_layouts():
    bshd = half(2, 5, 4, 64)
    assert as_bhsd(bshd, "bshd").shape == (2, 4, 5, 64) and as_bhsd(bshd, "bhsd") is bshd
    for layout in ("bhsd", "bshd"):
        check_layout(layout)
    for layout in ("sbhd", "", None, 3, ["bhsd"]):
        with pytest.raises(InputError, match="layout is .*, expected 'bhsd' or 'bshd'"):
            attention(bshd, bshd, bshd, layout=layout)


SHAPE = (2, 4, 5, 64)
INPUTS = {"q": half(*SHAPE), "k": half(*SHAPE), "v": half(*SHAPE)}


def out_refused(out: torch.Tensor, inputs: dict[str, torch.Tensor], words: str, layout: str = "bhsd") -> None:
    with pytest.raises(InputError, match=words) as error:
        check_out(out, SHAPE, inputs, layout)
    assert "\n" not in str(error.value)


def test_out_is_of_the_shape_dtype_and_device_of_the_output():
    check_out(half(*SHAPE), SHAPE, INPUTS, "bhsd")
    check_out(half(2, 5, 4, 64).transpose(1, 2), SHAPE, INPUTS, "bshd")
    out_refused(half(2, 4, 6, 64), INPUTS, r"out is \(2, 4, 6, 64\) .*, expected \(2, 4, 5, 64\)")
    out_refused(half(2, 4, 6, 64), INPUTS, r"out is \(2, 6, 4, 64\) .*, expected \(2, 5, 4, 64\)", "bshd")
    out_refused(half(*SHAPE).bfloat16(), INPUTS, "out is .*bfloat16 on cpu, expected .*float16 on cpu")
    out_refused(torch.empty(SHAPE, dtype=torch.float16, device="meta"), INPUTS, "float16 on meta, expected .* on cpu")


def test_out_has_a_place_for_each_of_its_elements():
    for out in (half(2, 1, 5, 64).expand(SHAPE), base(2000).as_strided(SHAPE, (960, 240, 48, 1))):
        out_refused(out, INPUTS, r"out has strides \(.*\), with which its elements may overlap each other")


def test_out_overlaps_no_input():
    for name in INPUTS:
        whole = half(2, 4, 10, 64)
        out_refused(whole[:, :, 5:], {**INPUTS, name: whole[:, :, 4:9]}, f"out overlaps {name} in memory")
        check_out(whole[:, :, 5:], SHAPE, {**INPUTS, name: whole[:, :, :5]}, "bhsd")
    # A part of one packed tensor that no other is.
    parts = half(2, 5, 4, 4, 64).permute(2, 0, 3, 1, 4)
    check_out(parts[3], SHAPE, dict(zip("qkv", parts)), "bhsd")
    out_refused(parts[1], dict(zip("qkv", parts)), "out overlaps k in memory")


def test_what_overlaps_is_what_has_a_common_element():
    rng = random.Random(11)
    shared = own = 0
    for _ in range(300):
        views, elements = [], []
        for _ in range(2):
            shape = [rng.randint(1, 3) for _ in "bhs"] + [rng.choice((1, 4))]
            strides = [rng.choice((0, 1, 3, 4, 8, 12, 16, 24)) for _ in "bhs"] + [1]
            offset = rng.randint(0, 40)
            views.append(SPACE.as_strided(shape, strides, offset))
            steps = [range(n) for n in shape]
            elements.append([offset + sum(map(int.__mul__, at, strides)) for at in itertools.product(*steps)])
        assert share_memory(*views) == bool({*elements[0]} & {*elements[1]})
        shared += share_memory(*views)
        for view, places in zip(views, elements):
            # Some that have a place for each element are refused, none that have not are accepted.
            assert overlaps_itself(view) or len({*places}) == len(places)
            own += not overlaps_itself(view)
    assert 50 < shared < 250 and own > 50


SPACE = half(300)


def test_nothing_is_refused_of_tensors_without_elements():
    none = half(2, 0, 4, 64).transpose(1, 2)
    assert placed({"q": none[..., ::2]}, "bhsd")[1]["q"].shape == (2, 4, 0, 32)
    assert not share_memory(none, none)
