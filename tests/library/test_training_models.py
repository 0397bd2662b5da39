"""Transformers' models train on the kernels, on a Hopper GPU, or with stand-ins on the CPU."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gradients import flash_on_cpu
from models import LAYERS, LENGTHS, device, gpt_oss, launches, model_of, packed, padded, tokens
from torch import Tensor

from tl_attention.op import backward
from tl_attention.problem.mask import CAUSAL, Mask

__all__ = ["device", "flash_on_cpu", "launches"]
pytestmark = [
    pytest.mark.transformers,
    pytest.mark.filterwarnings("ignore:.*`torch_dtype` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*`gradient_checkpointing_enable` is deprecated"),
]
# Eager attention in bf16 says how far bf16 may lie from fp32.
Gradients = dict[str, Tensor]
IMPLEMENTATIONS = {
    "ours": ("tl_attention", torch.bfloat16),
    "bf16": ("eager", torch.bfloat16),
    "fp32": ("eager", torch.float32),
}


@pytest.fixture(autouse=True)
def by_rules(device: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets the rules' operator serve from the first call on; on the CPU stand-ins do."""
    if device == "cpu":
        request.getfixturevalue("flash_on_cpu")
    with backward.force_operator():
        yield


def loss_of(model: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    return model(ids, labels=labels, attention_mask=mask, use_cache=False).loss


def trained(
    model: Any,
    steps: int,
    ids: Tensor,
    implementation: str,
    dtype: torch.dtype,
    mask: Tensor | None = None,
    autocast: bool = False,
) -> tuple[Tensor, Gradients]:
    """Trains a copy, whose weights are fp32 and rounded for each step.

    Returns the losses, and the gradients of the first step in fp64.
    """
    model = copy.deepcopy(model).to(dtype)
    model.set_attn_implementation(implementation)
    weights = dict(model.named_parameters())
    masters = {name: weight.detach().float().clone() for name, weight in weights.items()}
    optimizer = torch.optim.AdamW([*masters.values()], lr=2e-3)
    losses, first = [], Gradients()
    for step in range(steps):
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=autocast):
            loss = loss_of(model, ids, mask)
        model.zero_grad(set_to_none=True)
        loss.backward()
        losses.append(loss.item())
        for name, weight in weights.items():
            if weight.grad is None:
                continue
            masters[name].grad = weight.grad.float()
            if not step:
                first[name] = weight.grad.double()
        optimizer.step()
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(masters[name])
    return torch.tensor(losses).double(), first


def all_of(found: Gradients, words: str) -> Tensor:
    """Returns the gradients of all weights with these words in their name as one row."""
    return torch.cat([grad.flatten() for name, grad in found.items() if words in name])


def made(family: str, device: str) -> Any:
    """Makes a tiny model of a family, to be trained."""
    return gpt_oss(device).train() if family == "GptOss" else model_of(family, device).train()


def check_as_near_as_eager(found: dict[str, Gradients]) -> None:
    """Compares gradients of kinds of weights by their distance from eager fp32, beside that of eager bf16.

    It may be twice as large; of sinks, which are few, four times.
    """
    assert found["ours"].keys() == found["fp32"].keys()
    names = [*["sinks"] * any("sinks" in name for name in found["fp32"]), "q_proj", "k_proj", "v_proj", ""]
    for words in names:
        ours, theirs, exact = (all_of(found[name], words) for name in IMPLEMENTATIONS)
        error, allowed = (ours - exact).norm(), (4 if words == "sinks" else 2) * (theirs - exact).norm()
        assert error <= allowed < exact.norm(), f"{words}: {error} of {exact.norm()}, expected up to {allowed}"


def test_a_model_with_sinks_trains_as_with_eager_attention(launches: list, device: str) -> None:
    model, steps = gpt_oss(device).train(), 50 if device == "cuda" else 4
    ids = tokens(device, 2, 80)
    losses, found = {}, {}
    for name, (implementation, dtype) in IMPLEMENTATIONS.items():
        losses[name], found[name] = trained(model, steps, ids, implementation, dtype)
    assert [variant.mask for variant in launches[:LAYERS]] == [Mask(7, 0).runtime, CAUSAL]
    assert len(launches) == steps * LAYERS and all("Sinks" in variant.optional for variant in launches)
    check_as_near_as_eager(found)
    ours, allowed = ((losses[name] - losses["fp32"]).norm() for name in ("ours", "bf16"))
    assert ours <= 2 * allowed < 0.1 * losses["fp32"].norm(), f"{ours}, eager bf16 {allowed}"
    assert losses["ours"][-1] < losses["ours"][0] / 2


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2", "GptOss"])
def test_a_padded_step_has_gradients_as_near_as_eager_ones(family: str, launches: list, device: str) -> None:
    model = made(family, device)
    ids, mask = padded(device, "right")
    found = {name: trained(model, 1, ids, *of, mask)[1] for name, of in IMPLEMENTATIONS.items()}
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_as_near_as_eager(found)


@pytest.mark.parametrize("with_arguments", [True, False], ids=["cu_seq_lens", "positions"])
@pytest.mark.parametrize("family", ["Llama", "GptOss"])
def test_a_packed_step_has_the_gradients_of_its_sequences_alone(
    family: str, with_arguments: bool, launches: list, device: str
) -> None:
    model = made(family, device)
    batch, sequences = packed(device, with_arguments)
    weights = torch.randn(sum(LENGTHS), 97, generator=torch.Generator().manual_seed(4)).to(device)
    found: dict[str, Gradients] = {}
    for name, (implementation, dtype) in IMPLEMENTATIONS.items():
        copied = copy.deepcopy(model).to(dtype)
        copied.set_attn_implementation(implementation)
        if name == "ours":
            logits = copied(use_cache=False, **batch).logits[0]
        else:
            logits = torch.cat([copied(ids[None], use_cache=False).logits[0] for ids in sequences])
        (logits * weights).sum().backward()
        found[name] = {
            word: weight.grad.double() for word, weight in copied.named_parameters() if weight.grad is not None
        }
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_as_near_as_eager(found)


@pytest.mark.parametrize("family", ["Llama", "GptOss"])
def test_fp32_weights_train_under_autocast_on_the_kernels(family: str, launches: list, device: str) -> None:
    """Queries and keys are fp32 there, as they are multiplied by fp32 cosines."""
    model = made(family, device)
    found = {}
    for name, (implementation, _) in IMPLEMENTATIONS.items():
        of = implementation, torch.float32, None, name != "fp32"
        found[name] = trained(model, 1, tokens(device, 2, 80), *of)[1]
    assert len(launches) == LAYERS
    check_as_near_as_eager(found)


@pytest.mark.parametrize("reentrant", [False, True], ids=["stored", "reentrant"])
@pytest.mark.parametrize("family", ["Llama", "GptOss"])
def test_a_model_with_checkpoints_has_the_gradients_of_one_without(
    family: str, reentrant: bool, launches: list, device: str
) -> None:
    model = made(family, device)
    ids, found = tokens(device, 2, 80), []
    for with_checkpoints in (False, True):
        if with_checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        found.append(trained(model, 1, ids, "tl_attention", torch.bfloat16)[1])
    # The forward of each layer has run once without checkpoints, and twice with them.
    assert len(launches) == 3 * LAYERS and found[0].keys() == found[1].keys()
    for name, grad in found[0].items():
        # On a GPU dQ is added up in another order each time.
        assert (found[1][name] - grad).norm() <= (0.0 if device == "cpu" else 0.05) * grad.norm(), name
