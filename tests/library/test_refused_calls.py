"""`attention` refuses calls in one line each, in the words of docs/pytorch-reference.md, before a kernel is compiled.

No test here needs a GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from calls import half
from conftest import ROOT
from on_cpu import take_for_a_gpu
from torch._subclasses import FakeTensorMode

from tl_attention import InputError, ScheduleRefused, attention
from tl_attention.compiler import generation, store
from tl_attention.op import checks
from tl_attention.op.attention import Options
from tl_attention.op.compiled import kernel_of

PAGE = (ROOT / "docs/pytorch-reference.md").read_text()


def call(of_q: tuple[int, ...] = (1, 8, 64, 64), of_k: tuple[int, ...] = (), **others: Any) -> None:
    """Calls `attention` on zeros of these sizes; `others` are further arguments, which may replace q, k and v."""
    tensors = {"q": half(*of_q), "k": half(*(of_k or of_q)), "v": half(*(of_k or of_q))}
    attention(**(tensors | others))


def onto_q() -> None:
    q = half(1, 8, 64, 64)
    call(q=q, out=q)


def onto_sinks() -> None:
    memory = half(8 * 64 * 64)
    call(sinks=memory[:16].view(torch.float32), out=memory.view(1, 8, 64, 64))


def unread(*size: int) -> torch.Tensor:
    """Makes a tensor of any size, without memory."""
    return half(*size, device="meta")


def graded(*size: int) -> torch.Tensor:
    """Makes a tensor that requires a gradient."""
    return half(*size, requires_grad=True)


def onto_later_keys() -> None:
    cache = half(1, 8, 128, 64)
    call(k=cache[:, :, :64], out=cache[:, :, 32:96])


# Calls in the order of the page, which has the words of their errors, where CPU stands for the GPU, meta for the CPU.
CALLS: dict[str, Callable[[], None]] = {
    "q has 8 heads, k and v have 3": lambda: call((1, 8, 64, 64), (1, 3, 64, 64)),
    "head_dim 100": lambda: call((1, 8, 64, 100)),
    "head_dim 260": lambda: call((1, 8, 64, 260)),
    "v with another length than k": lambda: call(v=half(1, 8, 65, 64)),
    "fp32": lambda: call(**{name: half(1, 8, 64, 64, dtype=torch.float32) for name in "qkv"}),
    "k in bf16, q in fp16": lambda: call(k=half(1, 8, 64, 64, dtype=torch.bfloat16)),
    "v on the CPU": lambda: call(v=half(1, 8, 64, 64, device="meta")),
    "three dimensions": lambda: call(q=half(8, 64, 64)),
    "a layout that is none": lambda: call(layout="sbhd"),
    "a window below -1": lambda: call(window_size=(-2, 0)),
    "a softcap below 0": lambda: call(softcap=-1.0),
    "a scale of 0": lambda: call(scale=0.0),
    "a scale that fp32 rounds to 0": lambda: call(scale=1e-60),
    "a scale that is too large for its softcap": lambda: call(scale=1e20, softcap=1e-19),
    "a fourth argument without its name": lambda: attention(*(half(1, 8, 64, 64) for _ in "qkv"), True),  # type: ignore
    "causal that is a text": lambda: call(causal="False"),
    "sinks for other heads": lambda: call(sinks=torch.zeros(4)),
    "sinks in fp16": lambda: call(sinks=half(8)),
    "out of another shape": lambda: call(out=half(1, 8, 65, 64)),
    "out of another dtype": lambda: call(out=half(1, 8, 64, 64, dtype=torch.bfloat16)),
    "out is q": onto_q,
    "out shares elements with k": onto_later_keys,
    "out over the memory of sinks": onto_sinks,
    "out with overlapping rows": lambda: call(out=half(8 * 64 * 64).as_strided((1, 8, 64, 64), (64, 64, 8, 1))),
    "keys that are expanded": lambda: call(k=half(1, 1, 64, 64).expand(1, 8, 64, 64)),
    "a last dimension with strides": lambda: call(q=half(1, 8, 64, 64).transpose(2, 3)),
    "q behind an odd address": lambda: call(q=half(8 * 64 * 64 + 1)[1:].view(1, 8, 64, 64)),
    "a sparse tensor": lambda: call(k=half(1, 8, 64, 64).to_sparse()),
    "more keys than 32 bits count": lambda: call(
        q=unread(1, 8, 64, 64), **{name: unread(1, 8, 2**31 + 5, 64) for name in "kv"}
    ),
    "more row tiles than 32 bits count": lambda: call(
        q=unread(46341, 46341, 1, 8), **{name: unread(46341, 1, 1, 8) for name in "kv"}
    ),
    # No pair of schedules has gradients of such heads.
    "a gradient with a softcap": lambda: call((1, 8, 64, 192), q=graded(1, 8, 64, 192), softcap=30.0),
    "a gradient with return_lse": lambda: call((1, 8, 64, 192), q=graded(1, 8, 64, 192), return_lse=True),
    "a gradient with 32 keys and a window that hides earlier ones alone": lambda: call(
        (1, 8, 64, 192), (1, 8, 32, 192), q=graded(1, 8, 64, 192), window_size=(9, -1)
    ),
    "a gradient with out": lambda: call(q=graded(1, 8, 64, 64), out=half(1, 8, 64, 64)),
    "a schedule that is none": lambda: call(schedule="bets"),
}
TILE = "a schedule whose tile does not fit"
STAND_IN = {"cpu": "meta", "cuda:0": "cpu"}
# Calls that the page leaves out, and words of their errors.
NOT_ON_THE_PAGE: dict[str, tuple[Callable[[], None], str]] = {
    "a batch beyond the grid": (lambda: call((70_000, 1, 1, 64)), "at most 65535"),
    "fewer heads of q": (
        lambda: call((1, 2, 4, 64), (1, 4, 4, 64)),
        "q has 2 heads, expected a multiple of the 4 that",
    ),
    "no heads of k": (lambda: call((1, 2, 4, 64), (1, 0, 4, 64)), "q has 2 heads, expected a multiple of the 0 that"),
    "another batch of k and v": (
        lambda: call((2, 2, 4, 64), (1, 2, 4, 64)),
        "do not match, expected q .* and k, v .batch, heads_kv, seq_kv, head_dim",
    ),
    "no queries, of head_dim 100": (lambda: call((1, 2, 0, 100), (1, 2, 4, 100)), "head_dim 100 is not supported"),
    "sinks with gaps": (lambda: call(sinks=torch.zeros(16)[::2]), r"sinks is not contiguous \(8,\) torch.float32"),
    "sinks on the CPU": (
        lambda: call(sinks=torch.zeros(8, device="meta")),
        r"sinks is contiguous \(8,\) torch.float32 on meta, expected q's \(8,\) .* on cpu",
    ),
}

# Values that no call takes, by argument: its own class in the place of another, and numbers of any size.
VALUES: dict[str, tuple[Any, ...]] = {
    "scale": (1e39, 1e-60, 5e-324, math.nan, True, 10**400, 10**5000, -(10**400), "1", torch.tensor(0.1), 1j, [0] * 99),
    "softcap": (
        1e300,
        1e-300,
        1e-30,
        math.nan,
        math.inf,
        True,
        False,
        10**400,
        10**5000,
        "30",
        torch.tensor(30.0),
        None,
    ),
    "window_size": (None, "ab", 3, (True, 0), (1.0, 2), (2**63, 0), (10**400, 0), (1, 2, 3), torch.tensor([1, 2])),
    "causal": ("False", 1, None, torch.tensor([True, False])),
    "specialize": ("no", 1, None, torch.tensor([True, False])),
    "return_lse": ("no", 1, None, torch.tensor([True, False])),
    "layout": (None, "x" * 500, b"bhsd", np.array(["bhsd"])),
    "sinks": (0, [0.0] * 8, torch.zeros(8).to_sparse(), torch.zeros(()), half(8)),
    "k": (None, np.zeros((1, 8, 64, 64)), half(1, 8, 64, 64).to_sparse(), torch.zeros(1, 8, 64, 64).to_mkldnn()),
}
# Not without data: PyTorch cannot make the one, and names of schedules are looked up where a kernel is.
OTHERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "q": lambda: (half(64, 64).to_sparse_csr(), torch.nested.nested_tensor([half(8, 64, 64)])),
    # PyTorch loads its compiler for it.
    "v": lambda: (torch.nested.nested_tensor([half(64, 8, 64)], layout=torch.jagged),),
    "out": lambda: (half(1, 8, 64, 64).to_sparse(), "out", 1),
    "schedule": lambda: (1, True, b"best", "x" * 500, "", "\0"),
}


def rows_of_the_page() -> dict[str, str]:
    """Reads the page's list of errors, which are in the order of the calls here: the words of each."""
    block = PAGE.partition("## What is refused")[2].partition("```text\n")[2].partition("```")[0]
    return dict(zip([*CALLS, *DEVICES, TILE], filter(None, block.splitlines()), strict=True))


@pytest.fixture
def no_kernel(monkeypatch) -> None:
    """Makes CPU tensors pass for a GPU's; a kernel that would be compiled, or is found finished, is a failure."""

    def compiled(*_: object) -> None:
        pytest.fail("it was not refused before its kernel is compiled")

    take_for_a_gpu(monkeypatch, kernel_of)
    monkeypatch.setattr(generation, "use_nvcc", compiled)
    read = store.read
    monkeypatch.setattr(store, "read", lambda file: read(file) and compiled())


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_in_the_words_of_the_page(name, no_kernel) -> None:
    with pytest.raises(ValueError) as error:
        CALLS[name]()
    words = re.sub(r"cpu|cuda:0", lambda found: STAND_IN[found[0]], rows_of_the_page()[name])
    assert isinstance(error.value, InputError) and str(error.value) == words and "\n" not in words


@pytest.mark.parametrize("name", NOT_ON_THE_PAGE)
def test_a_call_that_the_page_leaves_out_is_refused_in_one_line(name, no_kernel) -> None:
    refused, words = NOT_ON_THE_PAGE[name]
    with pytest.raises(InputError, match=words) as error:
        refused()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", ["plain", "with a gradient", "without data"])
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_no_call_takes_is_refused_in_one_line(name, how, no_kernel) -> None:
    for value in VALUES[name]:
        given: dict[str, Any] = {"q": half(1, 8, 64, 64, requires_grad=how == "with a gradient"), name: value}
        with FakeTensorMode() if how == "without data" else nullcontext() as mode, pytest.raises(InputError) as error:
            call(
                **{key: mode.from_tensor(x) if mode and isinstance(x, torch.Tensor) else x for key, x in given.items()}
            )
        message = str(error.value)
        assert message.startswith(f"attention: {name} is "), message
        assert "\n" not in message and len(message) < 200, message


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_strides_or_is_no_name_is_refused_in_one_line(name, no_kernel) -> None:
    for value in OTHERS[name]():
        with pytest.raises(InputError) as error:
            call(**{name: value})
        assert "\n" not in str(error.value) and len(str(error.value)) < 200


DEVICES = {"tensors on the CPU": (0, 0), "another GPU": (8, 7)}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_that_is_no_known_card_is_refused(name, monkeypatch) -> None:
    # Empty ones too, and arguments that are right are no fault.
    sizes = [((1, 2, 0, 64), (1, 2, 4, 64)), ((1, 2, 4, 64), (1, 2, 0, 64)), ((1, 0, 4, 64),), ((1, 8, 4, 64),)]
    calls = [lambda of=of: call(*of, softcap=30, sinks=torch.zeros(of[0][1])) for of in sizes]
    if name == "another GPU":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: DEVICES[name])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Orin")
        calls = [lambda: checks.checked_card(torch.device("cuda", 0))]
    for refused in calls:
        with pytest.raises(InputError) as error:
            refused()
        assert str(error.value) == rows_of_the_page()[name]


def test_a_schedule_whose_tile_does_not_fit_is_refused_by_its_limit(no_kernel) -> None:
    with pytest.raises(ScheduleRefused) as error:
        call((1, 8, 64, 256), schedule="best")
    assert str(error.value) == rows_of_the_page()[TILE]


@pytest.mark.parametrize(
    "name,words",
    [
        ("is_causal", "is_causal: did you mean causal?"),
        ("softmax_scale", "softmax_scale: did you mean scale?"),
        ("windowsize", "windowsize: did you mean window_size?"),
        ("return_softmax_lse", "return_softmax_lse: did you mean return_lse?"),
        ("attn_mask", "attn_mask: masks are causal and window_size"),
        ("dropout_p", "dropout_p: there is no dropout"),
        ("xyzzy", f"xyzzy, expected some of {', '.join(Options.__annotations__)}, return_lse"),
    ],
)
def test_a_keyword_that_there_is_not_is_told_with_the_one_that_may_be_meant(name, words) -> None:
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16)
    # As Python's own error for it, and as all bad input here.
    for kind in (TypeError, InputError, ValueError):
        with pytest.raises(kind) as error:
            attention(q, q, q, **{name: True})
        assert str(error.value).startswith(f"attention: no argument is named {words}")
        assert "\n" not in str(error.value)
