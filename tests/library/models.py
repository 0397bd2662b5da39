"""Tests share tiny models of Transformers with random weights, on a Hopper GPU or with the reference on the CPU."""

from typing import Any

import pytest
import torch
from counted import count_launches
from on_cpu import Kernels, take_for_a_gpu

from tl_attention import register_transformers
from tl_attention.op.integrations import hugging_face

LAYERS = 2
wait = torch.cuda.Event.synchronize
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 8},
    "Gemma2": {"sliding_window": 8, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 32},
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch) -> str:
    monkeypatch.setattr(hugging_face, "_said", set())
    if request.param == "cpu":
        take_for_a_gpu(monkeypatch, Kernels().kernel_of)
    register_transformers()
    return request.param


@pytest.fixture
def launches(device, monkeypatch) -> list:
    return count_launches(monkeypatch)


def model_of(family: str, device: str) -> Any:
    """Makes a model with scores that are far from equal, and two heads of queries for each head of keys."""
    import transformers

    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": LAYERS, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.15}
    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, **FAMILIES[family], pad_token_id=0)
    return getattr(transformers, f"{family}ForCausalLM")(config).to(device, torch.bfloat16).eval()


def gpt_oss(device: str) -> Any:
    """Makes a model with sinks, whose layers have a window and all keys in turn; each token takes both experts."""
    import transformers

    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": LAYERS, "vocab_size": 97, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8, "initializer_range": 0.15}
    torch.manual_seed(5)
    config = transformers.GptOssConfig(
        **sizes, **heads, num_local_experts=2, num_experts_per_tok=2, pad_token_id=0, experts_implementation="eager"
    )
    assert config.layer_types == ["sliding_attention", "full_attention"]
    return transformers.GptOssForCausalLM(config).to(device, torch.bfloat16).eval()


def tokens(device: str, *shape: int) -> torch.Tensor:
    return torch.randint(1, 97, shape, generator=torch.Generator().manual_seed(2)).to(device)


def logits(model: Any, implementation: str, *inputs: Any, **options: Any) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(*inputs, **options).logits.double()


LENGTHS = (13, 4, 1, 9)


def padded(device: str, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes (tokens, attention mask) of sequences that padding on this side makes equally long."""
    ids = tokens(device, len(LENGTHS), max(LENGTHS))
    mask = torch.arange(max(LENGTHS), device=device) < torch.tensor(LENGTHS, device=device)[:, None]
    mask = mask.flip(1) if side == "left" else mask
    return ids.masked_fill(~mask, 0), mask.long()


def each(model: Any, implementation: str, sequences: list[torch.Tensor]) -> torch.Tensor:
    """Returns the logits of sequences, each alone, one behind the other."""
    return torch.cat([logits(model, implementation, ids[None])[0] for ids in sequences])


def check_logits(model: Any, ours: torch.Tensor, sequences: list[torch.Tensor]) -> None:
    """Compares logits with eager ones of each sequence alone, by their distance from fp64."""
    theirs = each(model, "eager", sequences)
    exact = each(model.double(), "eager", sequences)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm() < 0.2 * exact.norm()


def packed(device: str, with_arguments: bool) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Makes a packed batch as Transformers' collator does, and the sequences in it."""
    import transformers

    sequences = [*tokens(device, sum(LENGTHS)).split(LENGTHS)]
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=with_arguments, return_position_ids=True)
    batch = collate([{"input_ids": ids.tolist()} for ids in sequences])
    batch.pop("labels")
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in batch.items()}, sequences
