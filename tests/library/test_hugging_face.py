"""Tests check the attention and masks for Transformers without it: a layer, SDPA and masks are stand-ins."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from gradients import flash_on_cpu
from on_cpu import launches, on_cpu
from torch._subclasses import FakeTensorMode

from tl_attention import InputError, register_transformers
from tl_attention.lab.oracle.reference import attention_and_lse, make_inputs
from tl_attention.op.integrations import hugging_face
from tl_attention.op.integrations.hugging_face import attend
from tl_attention.op.integrations.hugging_face_masks import mask_for
from tl_attention.op.integrations.sequences import Note, note_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape

__all__ = ["flash_on_cpu", "launches", "on_cpu"]
LAYER = SimpleNamespace(is_causal=True)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch) -> None:
    monkeypatch.setattr(hugging_face, "_said", set())


class Sdpa:
    """This stand-in for SDPA's attention of a layer notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict] = []

    def __call__(self, module, query, key, value, attention_mask, **options):
        self.calls.append({"attention_mask": attention_mask, **options})
        return query.transpose(1, 2), None


@pytest.fixture
def sdpa() -> Sdpa:
    return Sdpa()


def inputs(heads: int, seq_q: int, seq_kv: int, heads_kv: int = 2):
    return make_inputs(AttentionShape(2, heads, seq_q, seq_kv, 64, "bfloat16", heads_kv=heads_kv), seed=1, device="cpu")


RUN = {
    "prefill": (20, 20, {}, CAUSAL, {}),
    "generation with a cache": (1, 33, {}, CAUSAL, {}),
    "a prompt behind a cache": (7, 33, {}, CAUSAL, {}),
    "a window": (30, 30, {"sliding_window": 5}, Mask(4, 0), {}),
    "a window behind a cache": (3, 30, {"sliding_window": 5}, Mask(4, 0), {}),
    "a softcap": (20, 20, {"softcap": 3.0}, CAUSAL, {"softcap": 3.0}),
    "another scale": (20, 20, {"scaling": 0.3}, CAUSAL, {"scale": 0.3}),
    "an encoder": (20, 25, {"is_causal": False}, FULL, {}),
    "what changes nothing": (20, 20, {"position_ids": torch.arange(20)[None], "use_cache": True}, CAUSAL, {}),
}


@pytest.mark.parametrize("what", RUN)
def test_what_the_kernels_run(launches, sdpa, what):
    seq_q, seq_kv, given, mask, options = RUN[what]
    q, k, v = inputs(4, seq_q, seq_kv)
    exact, _ = attention_and_lse(q, k, v, mask=mask, **{"scale": 0.125} | options, precise=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, weights = attend(sdpa, LAYER, q, k, v, None, **given)
    torch.testing.assert_close(output, exact.transpose(1, 2))
    assert output.is_contiguous() and weights is None and not sdpa.calls
    # Grouped heads, as they are.
    assert len(launches) == 1 and launches[0]["K"].shape == k.shape and launches[0]["K"].data_ptr() == k.data_ptr()


def test_sinks(launches, sdpa):
    q, k, v = inputs(4, 20, 20)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.bfloat16)
    exact, _ = attention_and_lse(q, k, v, mask=CAUSAL, scale=0.125, sinks=sinks.float(), precise=False)
    torch.testing.assert_close(attend(sdpa, LAYER, q, k, v, None, s_aux=sinks)[0], exact.transpose(1, 2))
    assert len(launches) == 1 and not sdpa.calls


def test_a_mask_that_is_noted_to_be_a_window(launches, sdpa):
    q, k, v = inputs(4, 30, 30)
    mask = Note(True, 6).put(torch.ones(2, 1, 30, 30, dtype=torch.bool))
    exact, _ = attention_and_lse(q, k, v, mask=Mask(5, 0), scale=0.125, precise=False)
    torch.testing.assert_close(attend(sdpa, LAYER, q, k, v, mask)[0], exact.transpose(1, 2))
    assert len(launches) == 1 and not sdpa.calls


SOME_MASK = torch.ones(2, 1, 20, 20, dtype=torch.bool)
INSTEAD = {
    "the mask is a tensor: a static cache, or neither causal nor a window": {"attention_mask": SOME_MASK},
    "dropout": {"dropout": 0.1},
    "a window that is not causal": {"is_causal": False, "sliding_window": 4},
    "the layer passes position_bias": {"position_bias": torch.zeros(1, 4, 20, 20)},
    "the layer passes output_attentions": {"output_attentions": True},
    "the layer passes cache": {"cache": object()},
    "attention: scale is -1.0, expected a number from 2^-126 to 2.35e+38": {"scaling": -1.0},
}


@pytest.mark.parametrize("case", INSTEAD)
def test_what_sdpa_runs_instead_is_said_once(launches, sdpa, case):
    q, k, v = inputs(4, 20, 20)
    given = {"attention_mask": None} | INSTEAD[case]
    with pytest.warns(UserWarning) as said:
        for _ in range(3):
            attend(sdpa, LAYER, q, k, v, **given)
    assert [str(warning.message) for warning in said] == [f"tl_attention: SDPA runs instead: {case}"]
    assert len(sdpa.calls) == 3 and not launches
    passed = {name: what for name, what in given.items() if name != "sliding_window"}
    assert all(sdpa.calls[0][name] is what for name, what in passed.items())


def test_a_case_whose_numbers_change_is_said_once(launches, sdpa):
    with pytest.warns(UserWarning) as said:
        for seq_kv in (20, 21, 22):
            q, k, v = inputs(4, 20, seq_kv)
            attend(sdpa, LAYER, q, k, v.transpose(2, 3).contiguous().transpose(2, 3), None)
    assert len(said) == 1 and "v has strides" in str(said[0].message) and not launches


@pytest.mark.parametrize(
    "seq_q, seq_kv, window", [(7, 20, None), (20, 20, 4), (1, 20, 4), (20, 20, None), (1, 20, None)]
)
def test_sdpa_gets_the_mask_that_none_stood_for(sdpa, seq_q, seq_kv, window):
    """The tensors are on the CPU, so no kernel takes them."""
    q, k, v = inputs(4, seq_q, seq_kv)
    with pytest.warns(UserWarning, match="the tensors are on cpu"):
        attend(sdpa, LAYER, q, k, v, None, sliding_window=window)
    found = sdpa.calls[0]["attention_mask"]
    if window is None and seq_q in (1, seq_kv):
        assert found is None
        return
    own = torch.arange(seq_kv - seq_q, seq_kv)[:, None]
    wanted = (torch.arange(seq_kv) <= own) & (torch.arange(seq_kv) > own - (window or seq_kv))
    assert found.shape == (1, 1, seq_q, seq_kv) and found[0, 0].equal(wanted)


def test_tensors_are_taken_in_autocasts_dtype(launches, sdpa):
    """Rotated queries and keys are fp32 under autocast, and V is not."""
    q, k, v = inputs(4, 20, 20)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attend(sdpa, LAYER, q.float(), k.float(), v, None)
    assert output.equal(attend(sdpa, LAYER, q, k, v, None)[0]) and len(launches) == 2 and not sdpa.calls


def test_tensors_without_data_are_sdpas_under_autocast_too(sdpa):
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match="SDPA runs instead: .* on meta"):
        attend(sdpa, LAYER, *(x.to("meta") for x in inputs(4, 20, 20)), None)
    assert len(sdpa.calls) == 1


@pytest.mark.parametrize("what, given", [("softcap", {"softcap": 2.0}), ("sinks", {"s_aux": torch.zeros(4)})])
def test_what_sdpa_has_not_either_is_refused(launches, sdpa, what, given):
    error = f"transformers: dropout, and SDPA, which would run instead, has no {what}: use attn_implementation='eager'"
    with pytest.raises(InputError) as raised:
        attend(sdpa, LAYER, *inputs(4, 20, 20), None, dropout=0.1, **given)
    assert str(raised.value) == error and not launches and not sdpa.calls


def plain() -> None:
    """Stands in for Transformers' causal mask function."""


def both_ways() -> None:
    """Stands in for Transformers' function of a mask that hides nothing."""


def masks(sdpa_gives=True, **given):
    """Returns what mask_for gives for 6 queries after 4 keys, and the arguments of its call of SDPA's mask function."""
    asked = []

    def sdpa_mask(**arguments):
        asked.append(arguments)
        return torch.ones(2, 1, 6, 10, dtype=torch.bool) if sdpa_gives else None

    functions = {"causal_mask_function": plain, "bidirectional_mask_function": both_ways, "sdpa_mask": sdpa_mask}
    functions["packed_sequence_mask_function"] = lambda ids: lambda: None
    sizes = {"batch_size": 2, "q_length": 6, "kv_length": 10, "q_offset": 4, "kv_offset": 0}
    passed = {"mask_function": plain, "attention_mask": None, "config": None, "allow_is_causal_skip": True}
    return mask_for(SimpleNamespace(**functions), **sizes | passed | given), asked


PADDED = torch.ones(2, 10, dtype=torch.bool)
PADDED[0, 0] = False
WINDOWED = {"mask_function": lambda: None, "local_size": 4, "config": SimpleNamespace(sliding_window=4)}


def test_none_is_a_causal_mask_whose_ends_meet():
    for given in ({}, {"q_offset": 7, "kv_offset": 3}):
        assert masks(**given) == (None, [])
    wide = WINDOWED | {"local_size": 10, "config": SimpleNamespace(sliding_window=10)}
    assert masks(**wide) == (None, [])


@pytest.mark.parametrize(
    "of_window, window", [({}, None), (WINDOWED, 4), (WINDOWED | {"kv_offset": 2, "kv_length": 8}, 4)]
)
@pytest.mark.parametrize("mask", [PADDED, torch.ones(2, 10, dtype=torch.long)])
def test_a_batchs_own_mask_has_a_note_of_padding_and_windows(mask, of_window, window):
    found, asked = masks(attention_mask=mask, **of_window)
    note = note_of(found)
    first = of_window.get("kv_offset", 0)
    assert found.equal(mask[:, first:].bool()) and note_of(mask) is None and not asked
    assert (note.causal, note.window) == (True, window)
    assert note.padding.is_none == (first > 0 or bool(mask.all())) and not note.padding.has_gaps


def test_another_thread_that_compiles_takes_no_note_away(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert note_of(masks(attention_mask=PADDED)[0]).causal


def test_a_traced_mask_is_sdpas():
    with FakeTensorMode():
        assert len(masks(attention_mask=torch.ones(2, 10, dtype=torch.bool))[1]) == 1


def test_of_a_mask_that_hides_nothing_all_queries_count(launches):
    """An encoder's keys may be another's tokens."""
    found, _ = masks(
        mask_function=both_ways, attention_mask=PADDED, allow_is_causal_skip=False, allow_is_bidirectional_skip=True
    )
    note = note_of(found)
    q, k, v = inputs(4, 6, 10)
    for sequences in (note.padding.sequences(q, k, v), note.padding._sequences(6, None)):
        output = sequences.attention(q, k, v)
        for row, first in ((0, 1), (1, 0)):
            of = (x[row : row + 1] for x in (q, k[:, :, first:], v[:, :, first:]))
            exact, _ = attention_and_lse(*of, mask=FULL, scale=0.125, precise=False)
            torch.testing.assert_close(output[row], exact[0].transpose(0, 1))
    assert not note.causal and len(launches) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": PADDED[:, 1:] | True},
        {"kv_length": 16},
        {"q_offset": torch.tensor(4)},
        {"q_offset": torch.tensor(4), "attention_mask": PADDED},
        {"mask_function": lambda: None},
        {"mask_function": lambda: None, "attention_mask": PADDED},
        {"mask_function": both_ways, "attention_mask": PADDED, "allow_is_causal_skip": False},
        {"allow_is_causal_skip": False},
        {"allow_is_causal_skip": False, "attention_mask": PADDED},
        WINDOWED | {"config": SimpleNamespace(attention_chunk_size=4)},
        WINDOWED | {"local_size": 40, "config": SimpleNamespace(attention_chunk_size=40)},
    ],
)
def test_any_other_is_sdpas_which_may_not_leave_a_causal_one_out(given):
    mask, asked = masks(**given)
    assert mask is not None and not note_of(mask).for_kernels and len(asked) == 1
    assert not asked[0]["allow_is_causal_skip"] and asked[0]["batch_size"] == 2
    assert all(asked[0][name] is what for name, what in given.items() if name != "allow_is_causal_skip")


def test_a_window_is_noted_on_its_mask():
    mask, asked = masks(**WINDOWED)
    assert note_of(mask).window == 4 and mask.shape == (2, 1, 6, 10) and len(asked) == 1


def test_no_mask_at_all_stays_none():
    mask, asked = masks(sdpa_gives=False, allow_is_causal_skip=False, allow_is_bidirectional_skip=True)
    assert mask is None and asked[0]["allow_is_bidirectional_skip"]


def test_a_mask_of_padding_without_its_note_is_read_again(launches, sdpa):
    """A mask that Accelerate moves to another GPU is another tensor."""
    q, k, v = inputs(4, 10, 10)
    found, _ = attend(sdpa, LAYER, q, k, v, PADDED)
    exact, _ = attention_and_lse(*(x[:1, :, 1:] for x in (q, k, v)), mask=CAUSAL, scale=0.125, precise=False)
    torch.testing.assert_close(found[:1, 1:], exact.transpose(1, 2))
    assert not found[0, 0].any() and found.shape == (2, 10, 4, 64) and len(launches) == 1 and not sdpa.calls


def test_sdpa_gets_the_mask_of_a_padded_batch(sdpa):
    """The tensors are on the CPU, so no kernel takes them."""
    with pytest.warns(UserWarning, match="the tensors are on cpu"):
        attend(sdpa, LAYER, *inputs(4, 10, 10), PADDED)
    causal = torch.ones(10, 10, dtype=torch.bool).tril()
    assert sdpa.calls[0]["attention_mask"].equal((causal & PADDED[:, None])[:, None])


def as_projected(x):
    """Returns the same numbers as a projection leaves them, the heads of a token together."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


GAPS = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
ENDS = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
# How q, and k and v lie, and the mask; then whether tokens are read where they lie.
PADDINGS = {
    "from a projection": (as_projected, as_projected, ENDS, True),
    "from a cache": (as_projected, torch.clone, ENDS, True),
    "a part of a cache": (as_projected, lambda x: torch.cat([x, x], 2)[:, :, :10], ENDS, True),
    "with gaps": (as_projected, torch.clone, GAPS, False),
    "keys and values that lie otherwise": (torch.clone, None, ENDS, False),
}


@pytest.mark.parametrize("seq_q", [10, 3, 1])
@pytest.mark.parametrize("case", PADDINGS)
def test_tokens_that_follow_each_other_are_read_where_they_lie(launches, sdpa, case, seq_q):
    of_q, of_kv, mask, in_place = PADDINGS[case]
    q, k, v = inputs(4, seq_q, 10)
    q, k, v = of_q(q), (of_kv or as_projected)(k), (of_kv or torch.clone)(v)
    found, _ = attend(sdpa, LAYER, q, k, v, mask)
    for row in range(2):
        rows, keys = mask[row, 10 - seq_q :], mask[row]
        exact, _ = attention_and_lse(
            *(x[row : row + 1][:, :, of] for x, of in ((q, rows), (k, keys), (v, keys))),
            mask=CAUSAL,
            scale=0.125,
            precise=False,
        )
        torch.testing.assert_close(found[row][rows], exact[0].transpose(0, 1))
        assert not found[row][~rows].any()
    (tensors,) = launches
    assert [tensors[name].data_ptr() == x.data_ptr() for name, x in (("K", k), ("V", v))] == [in_place] * 2


def test_a_padded_batch_may_have_one_key(launches, sdpa):
    q, k, v = inputs(4, 1, 1)
    found, _ = attend(sdpa, LAYER, q, k, v, torch.tensor([[False], [True]]))
    assert not found[0].any() and found[1, 0].equal(v[1, :, 0].repeat_interleave(2, 0)) and len(launches) == 1


def test_a_padded_batch_that_needs_a_gradient_is_taken_out(launches, sdpa, flash_on_cpu):
    q, k, v = (x.requires_grad_() for x in inputs(4, 10, 10))
    found, _ = attend(sdpa, LAYER, q, k, v, ENDS)
    grads = torch.autograd.grad(found.float().square().sum(), (q, k, v))
    alone = [x.detach()[1:, :, 1:8].requires_grad_() for x in (q, k, v)]
    output, _ = attend(sdpa, LAYER, *alone, None)
    for whole, part in zip(grads, torch.autograd.grad(output.float().square().sum(), alone), strict=True):
        # They are rounded by other kernels.
        torch.testing.assert_close(whole[1:, :, 1:8], part, atol=0.02, rtol=0.02)
        assert not whole[1, :, 0].any() and not whole[:, :, 8:9].any()


def packing(**more):
    begins = torch.tensor([0, 15, 40], dtype=torch.int32)
    return {"cu_seq_lens_q": begins, "cu_seq_lens_k": begins, "max_length_q": 25, "max_length_k": 25} | more


def test_what_is_wrong_with_packed_sequences_is_said(launches, sdpa):
    q, k, v = inputs(4, 20, 20)
    with pytest.raises(InputError) as raised:
        attend(sdpa, LAYER, q, k, v, None, **packing(max_length_q=None))
    names = "cu_seq_lens_q, cu_seq_lens_k, max_length_k"
    assert str(raised.value) == f"transformers: max_length_q is missing beside {names}, expected all of them"
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, 0] = False
    with pytest.raises(
        InputError, match="^transformers: the batch is padded and packed, and SDPA.*no packed sequences"
    ):
        attend(sdpa, LAYER, q, k, v, mask, **packing())
    assert not launches and not sdpa.calls


def test_packed_sequences_may_cross_the_rows_of_a_batch(launches, sdpa):
    q, k, v = inputs(4, 20, 20)
    found, _ = attend(sdpa, LAYER, q, k, v, None, **packing())
    together = [x.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None] for x in (q, k, v)]
    for part in (slice(0, 15), slice(15, 40)):
        exact, _ = attention_and_lse(*(x[:, :, part] for x in together), mask=CAUSAL, scale=0.125, precise=False)
        torch.testing.assert_close(found.flatten(0, 1)[part], exact[0].transpose(0, 1))
    assert len(launches) == 1


def test_without_transformers_registering_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        InputError, match=r"^transformers: .*, expected what `pip install 'tl-attention\[transformers\]'`"
    ):
        register_transformers()
