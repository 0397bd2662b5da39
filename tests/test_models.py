"""Transformers' models, tiny and with random weights, run on the kernels: on a Hopper GPU, or by the reference on the CPU."""

from typing import Any

import pytest
import torch
from counted import count_launches
from gradients import flash_on_cpu
from on_cpu import Kernels, take_for_a_gpu
from tiers import sampled
from torch.nn.functional import pad

from tl_attention import InputError, register_transformers
from tl_attention.integrations import hugging_face
from tl_attention.problem.mask import CAUSAL, FULL, Mask

__all__ = ["flash_on_cpu"]
pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore:.*`torch_dtype` is deprecated")]
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
        window = Mask(7, 0).read
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


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_forward_of_a_padded_batch_waits_once(launches, device, monkeypatch):
    """The numbers of both masks are on their way before the first layer asks for its own."""
    model = model_of("Gemma2", device)
    ids, mask = padded(device, "left")
    logits(model, "tl_attention", ids, attention_mask=mask, use_cache=False)
    waits = []
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: waits.append(event.query()) or wait(event))
    torch.cuda.set_sync_debug_mode("error")
    try:
        # A cache of windows waits by itself.
        logits(model, "tl_attention", ids, attention_mask=mask, use_cache=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # For the positions, and then for the numbers of both masks, which have come.
    assert len(waits) == 3 and all(waits[1:]) and len(launches) == 2 * LAYERS
    waits.clear()
    logits(model, "tl_attention", ids[:, :1], use_cache=False)
    assert not waits


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_graph_that_is_captured_looks_at_no_positions(launches, device):
    """A look would end the capture."""
    model = model_of("Llama", device)
    ids = tokens(device, 2, 21)
    expected = logits(model, "tl_attention", ids)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        found = model(ids, use_cache=True).logits
    graph.replay()
    assert found.double().equal(expected)


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


def packed(device: str, with_arguments: bool) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Makes a packed batch as Transformers' collator does, and the sequences in it."""
    import transformers

    sequences = [*tokens(device, sum(LENGTHS)).split(LENGTHS)]
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=with_arguments, return_position_ids=True)
    batch = collate([{"input_ids": ids.tolist()} for ids in sequences])
    batch.pop("labels")
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in batch.items()}, sequences


@pytest.mark.parametrize("with_arguments", [True, False], ids=["cu_seq_lens", "positions"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_batch_is_what_each_sequence_is_alone(launches, device, family, with_arguments):
    model = model_of(family, device)
    batch, sequences = packed(device, with_arguments)
    ours = logits(model, "tl_attention", use_cache=False, **batch)[0]
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_logits(model, ours, sequences)


ROWS = ((13, 4, 1), (1, 1, 16))
ALONE = [
    (family, mask, cache) for family in FAMILIES for mask in ("no mask", "ones", "padding") for cache in (True, False)
]


@pytest.mark.parametrize("family, of_mask, use_cache", sampled(ALONE, [ALONE[n] for n in (0, 2, 9, 10, 14)]))
def test_positions_alone_keep_sequences_apart(launches, device, family, of_mask, use_cache):
    """Two rows are packed differently; Transformers' own eager and SDPA let their sequences see each other."""
    model = model_of(family, device)
    places = torch.stack([torch.cat([torch.arange(n) for n in of]) for of in ROWS])
    ids, mask = tokens(device, *places.shape), torch.ones_like(places)
    given = {"input_ids": ids}
    if of_mask == "padding":
        given["input_ids"], places, mask = pad(ids, (0, 5)), pad(places, (0, 5), value=1), pad(mask, (0, 5))
    if of_mask != "no mask":
        given["attention_mask"] = mask.to(device)
    ours = logits(model, "tl_attention", position_ids=places.to(device), use_cache=use_cache, **given)
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_logits(model, ours[mask.bool()], [one for row, of in zip(ids, ROWS) for one in row.split(of)])


def test_what_positions_show_is_read_again_where_they_or_the_mask_change(launches, device):
    model = model_of("Llama", device)
    batch, _ = packed(device, False)
    ids, places = batch["input_ids"], batch["position_ids"]
    one = torch.arange(ids.shape[1], device=device)
    with torch.inference_mode():
        given, found = places.clone(), []
        for changed in (places, one, places):
            given.copy_(changed)
            found.append(logits(model, "tl_attention", ids, position_ids=given))
    assert [variant.packed for variant in launches] == [*[True] * LAYERS, *[False] * LAYERS, *[True] * LAYERS]
    assert found[0].equal(found[2]) and found[1].equal(logits(model, "tl_attention", ids))
    # The same positions are those of one sequence with one mask, and of three with the other.
    places = torch.tensor([[0, 0, 0, 1, 2]], device=device)
    for lengths in ([3], [1, 1, 3]):
        mask = (torch.arange(5, device=device) >= 5 - sum(lengths))[None]
        ours = logits(model, "tl_attention", ids[:, :5], attention_mask=mask, position_ids=places)[mask]
        theirs = each(model, "eager", [*ids[:, :5][mask].split(lengths)])
        assert (ours - theirs).norm() <= 0.03 * theirs.norm()


def launched_as(launches: list, whole: bool) -> bool:
    """Says whether all launches were of whole rows, or all of packed sequences, and forgets them."""
    found = {variant.packed for variant in launches}
    launches.clear()
    return found == {not whole}


def test_positions_of_one_sequence_run_as_ever(launches, device):
    """A cache whose positions begin at 7, chunks of a prompt, and candidates of an assistant."""
    model = model_of("Llama", device)
    model.set_attn_implementation("tl_attention")
    ids = tokens(device, 1, 19)
    places = torch.arange(7, 26, device=device)[None]
    with torch.no_grad():
        whole = model(ids, position_ids=places).logits
        first, cache = model(ids[:, :8], None, places[:, :8]).to_tuple()
        second, cache = model(ids[:, 8:18], torch.ones_like(ids[:, :18]), places[:, 8:18], cache).to_tuple()
        last = model(ids[:, 18:], None, places[:, 18:], cache).logits
    found = torch.cat([first, second, last], 1)
    assert (found - whole).norm() <= 0.02 * whole.norm() and launched_as(launches, whole=True)
    steps = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    plain = model.generate(ids, **steps)
    assert launched_as(launches, whole=True)
    for more in (
        {"prefill_chunk_size": 5},
        {"assistant_model": model_of("Llama", device)},
        {"prompt_lookup_num_tokens": 3},
    ):
        assert model.generate(ids, **steps, **more).equal(plain)
        assert launched_as(launches, whole=True), more


@pytest.mark.parametrize("filled", [0, 1])
def test_positions_of_left_padding_run_as_ever(launches, device, filled):
    """Transformers fills positions of padding up with 0, or with 1 before."""
    model = model_of("Llama", device)
    ids, mask = padded(device, "left")
    places = (mask.cumsum(1) - 1).masked_fill(mask == 0, filled)
    found = logits(model, "tl_attention", ids, attention_mask=mask, position_ids=places)
    check_logits(model, found[mask.bool()], [row[of.bool()] for row, of in zip(ids, mask)])
    assert launched_as(launches[:LAYERS], whole=False)


def test_packed_sequences_that_nothing_keeps_apart_are_refused(launches, device):
    model = model_of("Llama", device)
    model.set_attn_implementation("tl_attention")
    batch, _ = packed(device, False)
    ids, places = batch["input_ids"], batch["position_ids"]
    from transformers import StaticCache

    with torch.no_grad():
        cache = model(ids, None, places).to_tuple()[1]
        with pytest.raises(InputError, match="^transformers: position_ids begin anew within a row, but the cache does"):
            model(ids[:, :4], None, torch.tensor([[27, 28, 0, 1]], device=device), cache)
        with pytest.raises(InputError, match="^transformers: position_ids begin at 9, but the cache holds 31 tokens"):
            model(
                ids[:, :4], torch.ones_like(ids[:, :1]).expand(1, 35), torch.arange(9, 13, device=device)[None], cache
            )
        static = StaticCache(config=model.config, max_cache_len=40)
        with pytest.raises(InputError, match="^transformers: position_ids begin anew within a row, but the mask does"):
            model(ids, None, places, static)
        # One sequence, padded on the left, is SDPA's as before.
        static.reset()
        with pytest.warns(UserWarning, match="SDPA runs instead: the mask is a tensor"):
            mask = torch.ones_like(ids)
            mask[:, :2] = 0
            model(ids, mask, (mask.cumsum(1) - 1).clamp(min=1), static)
    # A mask of somebody's own keeps sequences apart, or does not: it is taken as it is.
    same = (places.cumsum(1) >= 0)[:, None, None].expand(1, 1, ids.shape[1], -1)
    with torch.no_grad():
        model(ids, same, places)


def test_a_packed_batch_that_sdpa_has_to_run(launches, device):
    """The positions make SDPA's mask; where a collator says where sequences lie, there is none."""
    model = model_of("Llama", device).float()
    batch, _ = packed(device, False)
    with pytest.warns(UserWarning, match="SDPA runs instead: .*float32"):
        ours = logits(model, "tl_attention", use_cache=False, **batch)
    torch.testing.assert_close(ours, logits(model, "sdpa", use_cache=False, **batch), atol=1e-3, rtol=1e-3)
    batch, _ = packed(device, True)
    with pytest.raises(InputError, match="float32.*has no packed sequences"):
        logits(model, "tl_attention", use_cache=False, **batch)
    assert not launches


def test_an_encoder_sees_no_padding(launches, device):
    import transformers

    torch.manual_seed(5)
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, vocab_size=97, initializer_range=0.15)
    model = transformers.BertModel(config, add_pooling_layer=False).to(device, torch.bfloat16).eval()
    ids, mask = padded(device, "right")
    found = []
    for implementation in ("tl_attention", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(ids, attention_mask=mask).last_hidden_state.double())
    assert (found[0] - found[1]).norm() <= 0.05 * found[1].norm()
    assert [variant.packed for variant in launches] == [True] * LAYERS


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


def test_a_packed_batch_trains(launches, device, request):
    """The gradients are those of each sequence alone."""
    if device == "cpu":
        request.getfixturevalue("flash_on_cpu")
    model = model_of("Llama", device).train()
    batch, sequences = packed(device, True)
    weights = torch.randn(sum(LENGTHS), 97, generator=torch.Generator().manual_seed(8)).to(device)
    model.set_attn_implementation("tl_attention")
    ours = model(use_cache=False, **batch).logits[0]
    found = torch.autograd.grad((ours * weights).sum(), list(model.parameters()))
    assert [variant.packed for variant in launches] == [True] * LAYERS
    model.set_attn_implementation("eager")
    theirs = torch.cat([model(ids[None]).logits[0] for ids in sequences])
    expected = torch.autograd.grad((theirs * weights).sum(), list(model.parameters()))
    for mine, other in zip(found, expected, strict=True):
        assert (mine.double() - other.double()).norm() <= 0.05 * other.double().norm()


def test_a_softcap_has_no_gradient(launches, device):
    model = model_of("Gemma2", device).train()
    batch, _ = packed(device, True)
    model.set_attn_implementation("tl_attention")
    with pytest.raises(InputError, match="an input requires a gradient, and with softcap.*there is no backward"):
        model(use_cache=False, **batch)
    assert not launches


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
