"""Sequences have several lengths, some 0, and rows without a key, everywhere but in kernels, which refuse them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mutations import shipped

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import refusal_of
from tl_attention.lab.measure.records import problem_of
from tl_attention.lab.oracle.interpret import POLICIES, interpret, verify
from tl_attention.lab.oracle.reference import (
    attention_and_lse,
    attention_fp64,
    attention_same_precision,
    lse_fp64,
    make_inputs,
)
from tl_attention.lab.oracle.tile import InterpretedTile, Settings
from tl_attention.problem.lengths import Lengths, ragged
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import kv_blocks, row_tiles
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned

LENGTHS = (Lengths(70, 200), Lengths(0, 5), Lengths(3, 0), Lengths(0, 0), Lengths(90, 20), Lengths(1, 1))
MASKS = {"full": FULL, "causal": CAUSAL, "window": Mask(17, 4), "left": Mask(left=9)}
# How many rows of LENGTHS see no key.
HIDDEN = {"full": 3, "causal": 3 + 70, "window": 3 + 66, "left": 3}
masks = pytest.mark.parametrize("mask", MASKS)


def visible(mask: Mask, lengths: Lengths) -> np.ndarray:
    """Returns (seq_q, seq_kv): whether a query sees a key, by definition."""
    after = np.arange(lengths.seq_kv) - np.arange(lengths.seq_q)[:, None] - lengths.past_len
    seen = np.ones_like(after, dtype=bool)
    if mask.left is not None:
        seen &= after >= -mask.left
    if mask.right is not None:
        seen &= after <= mask.right
    return seen


# --- the problem -----------------------------------------------------------------------------------------------------


@masks
def test_a_problem_is_a_list_of_lengths(mask):
    shape = AttentionShape.ragged(LENGTHS, 4, 64, mask=MASKS[mask], heads_kv=2)
    pairs = sum(int(visible(MASKS[mask], lengths).sum()) for lengths in LENGTHS)
    assert (shape.batch, shape.seq_q, shape.seq_kv) == (6, 90, 200)
    assert (shape.pairs, shape.flops) == (pairs, 2 * 4 * pairs * 128)
    for number, lengths in enumerate(LENGTHS):
        alone = shape.sequence(number)
        assert (alone.batch, alone.seq_q, alone.seq_kv, alone.lengths) == (1, *lengths, ())
        assert alone.pairs == visible(MASKS[mask], lengths).sum()
    assert str(shape).startswith("(6, 4/2, 70/200 0/5 3/0 0 90/20 1, 64) float16")


def test_equal_lengths_are_the_usual_case():
    equal, listed = AttentionShape(3, 2, 9, 11, 64), AttentionShape.ragged([(9, 11)] * 3, 2, 64)
    assert equal.distinct_lengths == listed.distinct_lengths and equal.sequence(2) == listed.sequence(2)
    assert equal.pairs == listed.pairs and not equal.unusual and not listed.unusual


def test_no_other_number_of_lengths_or_longest_is_taken():
    with pytest.raises(InputError, match="there are no lengths, expected those of at least one sequence"):
        AttentionShape.ragged([], 1, 64)
    with pytest.raises(InputError, match=r"batch, seq_q, seq_kv are 2, 9, 9, expected .* 1, 9, 9"):
        AttentionShape(2, 1, 9, 9, 64, lengths=(Lengths(9, 9),))
    with pytest.raises(InputError, match="seq_q is -1, expected an integer of at least 0"):
        AttentionShape.ragged([(-1, 3)], 1, 64)


def test_one_tensor_and_one_row_of_results_have_no_different_lengths():
    shape = AttentionShape.ragged(LENGTHS, 4, 64)
    for takes in (lambda: make_inputs(shape, 0), lambda: problem_of(shape)):
        with pytest.raises(
            InputError, match="has sequences of different lengths, expected one of its sequences at a time"
        ):
            takes()
    assert problem_of(shape.sequence(4))["seq_q"] == 90


# --- reference and interpreter ---------------------------------------------------------------------------------------


@masks
def test_rows_without_a_key_are_0_in_the_reference(mask):
    hidden = 0
    for number, lengths in enumerate(LENGTHS):
        shape = AttentionShape.ragged([lengths], 2, 64, mask=MASKS[mask])
        q, k, v = make_inputs(shape, number)
        keyless = torch.from_numpy(~visible(MASKS[mask], lengths).any(axis=1))
        hidden += int(keyless.sum())
        for precise in (True, False):
            output, lse = attention_and_lse(q, k, v, mask=MASKS[mask], scale=0.125, precise=precise)
            assert output.shape == q.shape and lse.shape == q.shape[:3]
            assert (output[:, :, keyless] == 0).all() and lse[:, :, keyless].isneginf().all()
            assert output.isfinite().all() and lse[:, :, ~keyless].isfinite().all()
        sinks = torch.tensor([0.5, -2.0])
        of_sinks = lse_fp64(q, k, mask=MASKS[mask], scale=0.125, sinks=sinks)
        assert torch.equal(of_sinks[0, :, keyless], sinks.double()[:, None].expand(2, int(keyless.sum())))
    assert hidden == HIDDEN[mask]


@pytest.mark.parametrize("name", ["best", "seed", "mma_sync"])
@masks
def test_the_interpreter_is_right_for_each_sequence(name, mask):
    schedule = shipped()[name]
    options = {"mask": MASKS[mask], "scale": 0.125}
    shape = AttentionShape.ragged(LENGTHS, 2, 64, mask=MASKS[mask], heads_kv=1)
    hidden = 0
    for number, lengths in enumerate(LENGTHS):
        q, k, v = make_inputs(shape.sequence(number), number)
        exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
        keyless = torch.from_numpy(~visible(MASKS[mask], lengths).any(axis=1))
        for policy in POLICIES.values():
            lse = torch.empty(q.shape[:3])
            tiles = Settings(32, 16, schedule.kv_order, schedule.softmax)
            output = interpret(derive(schedule), (q, k, v), tiles, policy=policy, lse=lse, **options)
            assert (output[:, :, keyless] == 0).all() and lse[:, :, keyless].isneginf().all()
            error, of_peer = ((found.double() - exact).abs() for found in (output, peer))
            assert error.numel() == 0 or error.max() <= 2 * of_peer.max() + 2**-11 * exact.abs().max()
        hidden += int(keyless.sum())
    assert hidden == HIDDEN[mask]


def test_what_is_verified_has_empty_sequences_and_rows_without_a_key():
    for mask, block_N in ((FULL, 64), (CAUSAL, 176), (Mask(100, 3), 128)):
        lengths = ragged(mask, 128, block_N)
        rows = [~visible(mask, of_one).any(axis=1) for of_one in lengths]
        assert [len(of_one) for of_one in rows][1] == 0 and lengths[2].seq_kv == 0
        assert rows[3].any() == (mask.right is not None) and not rows[3].all()


def test_a_row_without_a_key_that_is_no_0_is_wrong(monkeypatch):
    """The result is divided as in a kernel, by a total that is 0."""
    schedule = shipped()["best_causal"]
    divided = lambda t: (t.buffers["acc_o"] / t.buffers["denominator"][:, None]).to(t.dtype)  # noqa: E731
    monkeypatch.setattr(InterpretedTile, "result", divided)
    errors = verify(derive(schedule), schedule, Variant(64, "float16", CAUSAL), seed=1)
    assert not any(error.finite for error in errors.values())


# --- lowerings and proof ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["best_causal", "seed", "mma_sync"])
def test_a_lowering_says_that_it_does_not_compute_them_yet(name):
    schedule = shipped()[name]
    of = {
        "sequences of different lengths": AttentionShape.ragged([(9, 9), (5, 5)], 1, 64),
        "a sequence of length 0": AttentionShape(1, 1, 0, 5, 64),
        "rows without a key": AttentionShape(1, 1, 9, 5, 64, mask=CAUSAL),
    }
    for words, shape in of.items():
        assert shape.unusual == (words,)
        refusal = refusal_of(Candidate(name, shape, Planned(schedule)))
        assert refusal.endswith(f"{words}, which lowering {schedule.lowering} does not compute")
    with pytest.raises(ScheduleRefused, match="rows without a key, which lowering"):
        lowering_of(schedule).check_variant(schedule, Variant(64, "float16", CAUSAL, sizes=Sizes(1, 1, 9, 5), group=1))
    assert not refusal_of(Candidate(name, AttentionShape(1, 1, 5, 9, 128, mask=CAUSAL), Planned(schedule)))


def test_a_sequence_without_queries_has_no_tile_and_one_without_keys_a_masked_block():
    assert row_tiles(AttentionShape(1, 1, 0, 5, 64), 128) == 0
    nothing = AttentionShape(1, 1, 5, 0, 64)
    assert [*kv_blocks(nothing, 128, 64, 0)] == [0] and nothing.pairs == 0 and math.isfinite(nothing.flops)
    assert replace(nothing, seq_kv=3).unusual == ()
