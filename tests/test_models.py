"""Transformers' models, tiny and with random weights, run on the kernels: on a Hopper GPU, or by the reference on the CPU."""

from typing import Any

import pytest
import torch
from counted import count_launches
from on_cpu import Kernels, take_for_a_gpu

from tl_attention import register_transformers
from tl_attention.integrations import hugging_face
from tl_attention.problem.mask import CAUSAL, FULL

pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore:.*`torch_dtype` is deprecated")]
LAYERS = 2
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


def tokens(device: str, *shape: int) -> torch.Tensor:
    return torch.randint(1, 97, shape, generator=torch.Generator().manual_seed(2)).to(device)


def logits(model: Any, implementation: str, *inputs: Any, **options: Any) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(*inputs, **options).logits.double()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_as_near_to_fp64_as_with_transformers_own(launches, device, family):
    model = model_of(family, device)
    ids = tokens(device, 2, 21)
    ours = logits(model, "tl_attention", ids)
    assert len(launches) == LAYERS
    theirs = logits(model, "eager" if family == "Gemma2" else "sdpa", ids)
    assert len(launches) == LAYERS
    exact = logits(model.double(), "eager", ids)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm() < 0.2 * exact.norm()
    if family != "Llama":
        windows = [variant.mask for variant in launches]
        assert windows == [windows[0], windows[0] if family == "Mistral" else CAUSAL] and windows[0].left == 7


def test_the_kernels_see_no_later_token(launches, device):
    model = model_of("Llama", device)
    ids = tokens(device, 1, 20)
    changed = ids.clone()
    changed[:, 12:] = 1
    first, second = (logits(model, "tl_attention", x) for x in (ids, changed))
    assert first[:, :12].equal(second[:, :12]) and not first[:, 12:].equal(second[:, 12:])
    assert len(launches) == 2 * LAYERS


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_generation_with_a_cache(launches, device, family):
    model = model_of(family, device)
    ids = tokens(device, 2, 11)
    model.set_attn_implementation("tl_attention")
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, min_new_tokens=6, do_sample=False
    )
    assert found.shape == (2, 17) and len(launches) == 6 * LAYERS
    # What each step gave is what the whole sequence gives.
    whole = logits(model, "tl_attention", found)
    with torch.no_grad():
        cache = model(found[:, :9], use_cache=True).past_key_values
        behind = model(found[:, 9:14], past_key_values=cache, use_cache=True)
        last = model(found[:, 14:15], past_key_values=behind.past_key_values).logits
    for part, rows in ((behind.logits, slice(9, 14)), (last, slice(14, 15))):
        assert (part - whole[:, rows]).norm() <= 0.05 * whole[:, rows].norm()
    assert len(launches) == 10 * LAYERS


def test_padding_runs_on_sdpa_and_is_said(launches, device):
    model = model_of("Llama", device)
    ids = tokens(device, 2, 13)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with pytest.warns(UserWarning, match="tl_attention: SDPA runs instead: the mask is a tensor: padding") as said:
        ours = logits(model, "tl_attention", ids, attention_mask=mask)
    assert len([w for w in said if "tl_attention" in str(w.message)]) == 1 and not launches
    assert ours.equal(logits(model, "sdpa", ids, attention_mask=mask))


def test_a_static_cache_runs_on_sdpa_and_is_right(launches, device):
    model = model_of("Llama", device)
    ids = tokens(device, 1, 9)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "disable_compile": True}
    found = []
    with pytest.warns(UserWarning, match="tl_attention: SDPA runs instead: the mask is a tensor"):
        for implementation in ("tl_attention", "sdpa"):
            model.set_attn_implementation(implementation)
            found.append(model.generate(ids, cache_implementation="static", **options))
    assert found[0].equal(found[1])


def test_an_encoder_sees_all_tokens(launches, device):
    import transformers

    torch.manual_seed(5)
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, vocab_size=97, initializer_range=0.15)
    model = transformers.BertModel(config, add_pooling_layer=False).to(device, torch.bfloat16).eval()
    found = []
    for implementation in ("tl_attention", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(tokens(device, 2, 15)).last_hidden_state.double())
    assert (found[0] - found[1]).norm() <= 0.05 * found[1].norm()
    assert [variant.mask for variant in launches] == [FULL] * LAYERS


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_training_step_has_sdpas_gradients(launches, device):
    """The step runs on the kernels where these have a backward, and on SDPA, with a warning, where they have none."""
    model = model_of("Llama", device).train()
    ids = tokens(device, 2, 19)
    steps = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hugging_face, "_warn", lambda case: steps.setdefault("said", case))
        for implementation in ("tl_attention", "sdpa"):
            model.set_attn_implementation(implementation)
            loss = model(ids, labels=ids).loss
            steps[implementation] = torch.autograd.grad(loss, list(model.parameters()))
    assert bool(launches) != ("requires a gradient" in steps.get("said", ""))
    for ours, theirs in zip(steps["tl_attention"], steps["sdpa"], strict=True):
        assert (ours.double() - theirs.double()).norm() <= 0.05 * theirs.double().norm()
