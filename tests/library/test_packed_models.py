"""Transformers' models keep packed sequences apart, on a Hopper GPU, or by the reference on the CPU."""

from types import SimpleNamespace

import pytest
import torch
from gradients import flash_on_cpu
from models import (
    FAMILIES,
    LAYERS,
    LENGTHS,
    check_logits,
    device,
    each,
    launches,
    logits,
    model_of,
    packed,
    padded,
    tokens,
)
from tiers import sampled
from torch.nn.functional import pad

from tl_attention import InputError
from tl_attention.op.integrations.hugging_face_masks import mask_for
from tl_attention.op.integrations.sequences import note_of

__all__ = ["device", "flash_on_cpu", "launches"]
pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore:.*`torch_dtype` is deprecated")]
wait = torch.cuda.Event.synchronize


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


@pytest.mark.parametrize("with_arguments", [True, False], ids=["cu_seq_lens", "positions"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_batch_is_what_each_sequence_is_alone(launches, device, family, with_arguments):
    model = model_of(family, device)
    batch, sequences = packed(device, with_arguments)
    ours = logits(model, "tl_attention", use_cache=False, **batch)[0]
    assert [variant.packed for variant in launches] == [True] * LAYERS
    check_logits(model, ours, sequences)


def test_only_a_causal_mask_or_a_window_of_packed_sequences_has_a_note():
    from transformers import masking_utils as masks

    ids, other = torch.tensor([[0, 0, 1, 1, 1]]), masks.sliding_window_causal_mask_function(2)
    windowed, causal = masks.sliding_window_causal_mask_function(3), masks.causal_mask_function
    apart = masks.packed_sequence_mask_function(ids)
    count = getattr(masks, "remap_positions_for_packed_sequence", lambda within, _: within)
    given = {"batch_size": 1, "q_length": 5, "kv_length": 5, "q_offset": 0, "kv_offset": 0, "attention_mask": None}
    given |= {"allow_is_causal_skip": False, "config": SimpleNamespace(sliding_window=3)}
    for within, window, is_ours in (
        (causal, None, True),
        (windowed, 3, True),
        (causal, 3, False),
        (other, 3, False),
        (windowed, None, False),
        (masks.or_masks(causal, masks.bidirectional_mask_function), None, False),
    ):
        mask_function = masks.and_masks(count(within, torch.arange(5)[None]), apart)
        note = note_of(mask_for(masks, mask_function=mask_function, local_size=window, **given))
        assert (note is not None) == is_ours
        if is_ours:
            assert note.packing.ids.tolist() == [[1, 1, 2, 2, 2]] and note.window == window


ROWS = ((13, 4, 1), (1, 1, 16))
ALONE = [
    (family, mask, cache) for family in FAMILIES for mask in ("no mask", "ones", "padding") for cache in (True, False)
]


@pytest.mark.parametrize("family, of_mask, use_cache", sampled(ALONE, [ALONE[n] for n in (0, 2, 10, 15)]))
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
