"""Transformers' models, tiny and with random weights, run on the kernels on a Hopper GPU, or on the CPU's reference."""

import pytest
import torch
from models import FAMILIES, LAYERS, check_logits, device, each, launches, logits, model_of, padded, tokens

from tl_attention import InputError
from tl_attention.op.integrations import hugging_face
from tl_attention.problem.mask import CAUSAL, FULL, Mask

__all__ = ["device", "launches"]
pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore:.*`torch_dtype` is deprecated")]


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
        window = Mask(7, 0).runtime
        assert [variant.mask for variant in launches] == [window, window if family == "Mistral" else CAUSAL]


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
        _, cache = model(found[:, :9], use_cache=True).to_tuple()
        behind, cache = model(found[:, 9:14], None, None, cache, use_cache=True).to_tuple()
        last = model(found[:, 14:15], None, None, cache).logits
    for part, rows in ((behind, slice(9, 14)), (last, slice(14, 15))):
        assert (part - whole[:, rows]).norm() <= 0.05 * whole[:, rows].norm()
    assert len(launches) == 10 * LAYERS


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_is_what_each_sequence_is_alone(launches, device, family, side):
    model = model_of(family, device)
    ids, mask = padded(device, side)
    found = logits(model, "tl_attention", ids, attention_mask=mask)
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_logits(model, found[mask.bool()], [row[of.bool()] for row, of in zip(ids, mask)])
    assert found.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_generates_what_each_sequence_generates(launches, device, family):
    model = model_of(family, device)
    ids, mask = padded(device, "left")
    steps = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    model.set_attn_implementation("tl_attention")
    found = model.generate(ids, attention_mask=mask, **steps)[:, ids.shape[1] :]
    # Behind a window's length of tokens a window sees no padding any more.
    assert len(launches) == 12 * LAYERS and launches[0].packed
    whole = [torch.cat([row[of.bool()], ours]) for row, of, ours in zip(ids, mask, found)]
    theirs, exact = each(model, "eager", whole), each(model.double(), "eager", whole)
    # Each token has the largest logit of its place in the sequence alone, or one as large within eager's own error.
    error, end = (theirs - exact).abs().max(), 0
    assert error < 0.1 * exact.abs().max()
    for ours, sequence in zip(found, whole):
        end += len(sequence)
        of_steps = exact[end - 13 : end - 1]
        # No step may end the sequence.
        of_steps[:, model.config.eos_token_id] = float("-inf")
        chosen = of_steps.gather(1, ours[:, None])[:, 0]
        assert (of_steps.max(1).values - chosen).max() <= 2 * error


def test_a_mask_without_padding_changes_no_kernel(launches, device):
    model = model_of("Llama", device)
    ids = tokens(device, 2, 13)
    found = logits(model, "tl_attention", ids, attention_mask=torch.ones_like(ids))
    assert not any(variant.packed for variant in launches)
    assert found.equal(logits(model, "tl_attention", ids)) and len(launches) == 2 * LAYERS


def test_padding_between_tokens(launches, device):
    """Prompts with padding behind them generate: a causal mask does not mind, a window does."""
    ids, mask = padded(device, "right")
    behind = torch.cat([ids, tokens(device, len(ids), 3)], 1)
    whole = torch.cat([mask, torch.ones_like(mask[:, :3])], 1)
    model = model_of("Llama", device)
    found = logits(model, "tl_attention", behind, attention_mask=whole, position_ids=whole.cumsum(1) - 1)
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_logits(model, found[whole.bool()], [row[of.bool()] for row, of in zip(behind, whole)])
    model = model_of("Mistral", device)
    words = "tl_attention: SDPA runs instead: a window over padding that lies between the tokens of a sequence"
    with pytest.warns(UserWarning, match=words):
        ours = logits(model, "tl_attention", behind, attention_mask=whole)
    assert len(launches) == LAYERS
    assert (ours - logits(model, "sdpa", behind, attention_mask=whole))[whole.bool()].norm() < 1e-2 * ours.norm()
    with pytest.raises(InputError, match="transformers: a window over padding.*, has no softcap"):
        logits(model_of("Gemma2", device), "tl_attention", behind, attention_mask=whole)


@pytest.mark.parametrize("is_padded", [False, True])
def test_an_encoder_sees_all_tokens_and_no_padding(launches, device, is_padded):
    import transformers

    torch.manual_seed(5)
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, vocab_size=97, initializer_range=0.15)
    model = transformers.BertModel(config, add_pooling_layer=False).to(device, torch.bfloat16).eval()
    ids, mask = padded(device, "right") if is_padded else (tokens(device, 2, 15), None)
    found = []
    for implementation in ("tl_attention", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(ids, attention_mask=mask).last_hidden_state.double())
    assert (found[0] - found[1]).norm() <= 0.05 * found[1].norm()
    assert [(variant.packed, variant.mask) for variant in launches] == [(is_padded, FULL)] * LAYERS


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


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_compiled_model_runs_on_sdpa(launches, device, is_padded):
    """Transformers' masks are tensors there, whatever they hide."""
    torch._dynamo.reset()
    model = model_of("Mistral", device)
    ids, mask = padded(device, "left")
    given = {"attention_mask": mask if is_padded else None, "use_cache": False}
    theirs = logits(model, "sdpa", ids, **given)
    model.set_attn_implementation("tl_attention")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        ours = compiled(ids, **given).logits.double()
    assert (ours - theirs)[mask.bool()].norm() <= 0.02 * theirs[mask.bool()].norm() and not launches
