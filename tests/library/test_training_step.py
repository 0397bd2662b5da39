"""A step of training through attention has the gradients of its step in fp64, however it is run.

It runs on the CPU with stand-ins for the kernels and for FlashAttention-2, and on a Hopper GPU with both operators.
"""

import pytest
import torch
from gradients import operators
from steps import (
    BY_RULES,
    EACH_ON_CPU,
    ON_CPU,
    ON_GPU,
    WAYS,
    Block,
    Place,
    check_close,
    counted,
    drawn,
    exact_gradients,
    gradients,
    place,
)
from torch.utils.checkpoint import checkpoint

from tl_attention.op import aten, pair
from tl_attention.op.integrations import sdpa

__all__ = ["operators", "place"]
everywhere = pytest.mark.parametrize("place", [*EACH_ON_CPU, *ON_GPU], indirect=True, ids="-".join)
# How far gradients may lie from those in fp64, as a part of their norm: what 16 bits leave.
ROUNDED = 0.02


@everywhere
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["plain", "frozen_v", "autocast"])
def test_a_step_has_the_gradients_of_fp64(kind: str, way: str, place: Place) -> None:
    dtype = torch.float32 if kind == "autocast" else torch.bfloat16
    block = Block(way, place.device, dtype, frozen_v=kind == "frozen_v")
    x = drawn(1, place.device, dtype)
    with torch.autocast(place.device, torch.bfloat16, enabled=kind == "autocast"):
        found = gradients(block, x)
    assert all(grad.dtype == dtype for name, grad in found.items() if name != "sinks")
    check_close(found, exact_gradients(block, x), ROUNDED)


@everywhere
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reentrant", [False, True], ids=["stored", "reentrant"])
def test_checkpoints_have_the_gradients_of_the_plain_step(reentrant: bool, way: str, place: Place) -> None:
    block, x = Block(way, place.device), drawn(1, place.device)
    wanted = gradients(block, x)
    found = gradients(block, x, lambda given: checkpoint(block, given, use_reentrant=reentrant))
    # On a GPU dQ is added up in another order each time.
    check_close(found, wanted, 0.0 if place.device == "cpu" else ROUNDED / 2)


@pytest.mark.parametrize("place", [ON_CPU, BY_RULES], indirect=True, ids=lambda place: place.device)
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_step_has_no_break_and_the_gradients_of_the_eager_one(way: str, place: Place) -> None:
    torch._dynamo.reset()
    block, x = Block(way, place.device), drawn(1, place.device)
    backend = "aot_eager" if place.device == "cpu" else "inductor"
    found = gradients(block, x, torch.compile(block, fullgraph=True, backend=backend))
    check_close(found, gradients(block, x), ROUNDED / 2)


@pytest.mark.parametrize("place", [BY_RULES], indirect=True)
@pytest.mark.parametrize("way", ["sinks", "packed", "sdpa"])
def test_a_compiled_step_in_graphs_has_the_gradients_of_the_eager_one(way: str, place: Place, monkeypatch) -> None:
    torch._dynamo.reset()
    block = Block(way, place.device)
    call = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    ways = ((aten, "flash2"), (aten, "cudnn"), (pair, "packed_gradients"))
    calls = [counted(monkeypatch, *of) for of in ways]
    # The first steps run and are captured; the last is replayed, and calls nothing.
    for seed in range(1, 5):
        called = [*map(len, calls)]
        torch.compiler.cudagraph_mark_step_begin()
        found = gradients(block, drawn(seed, place.device), call)
    assert called == [*map(len, calls)] != [0, 0, 0]
    check_close(found, gradients(block, drawn(4, place.device)), ROUNDED / 2)


@everywhere
def test_gradients_of_sdpa_do_not_lead_back_to_sdpa(place: Place, monkeypatch) -> None:
    """The operators that compute them stay PyTorch's own while SDPA runs on the kernels."""
    ours, flash2, cudnn = (counted(monkeypatch, *of) for of in ((sdpa, "dense"), (aten, "flash2"), (aten, "cudnn")))
    block, x = Block("sdpa", place.device), drawn(1, place.device)
    found = gradients(block, x)
    by_cudnn = place.operator == "cudnn"
    assert (len(ours), len(flash2), len(cudnn)) == (1, not by_cudnn, by_cudnn)
    check_close(found, exact_gradients(block, x), ROUNDED)
