"""Tests check what positions show of packed sequences, beside a loop over tokens, and when nobody looks at them."""

import random
from itertools import pairwise

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tl_attention.op.integrations import positions, sequences
from tl_attention.op.integrations.positions import begin_forward, with_packing
from tl_attention.op.integrations.sequences import Note, Packing, Padding


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor | None, list[list[int]]]:
    """Draws (positions, mask, the tokens of each sequence); padding may lie anywhere, and its positions be anything."""
    draw, batch, tokens = random.Random(seed), 3, 12
    mask = [[draw.random() < 0.8 for _ in range(tokens)] for _ in range(batch)]
    if seed % 3 == 0:
        mask = [[True] * tokens for _ in range(batch)]
    places, found = [], []
    for row in range(batch):
        at, before = draw.choice([0, 1, 7]), 0
        for token in range(tokens):
            places.append(draw.randrange(9))
            if not mask[row][token]:
                continue
            if draw.random() < 0.2 and found and found[-1][-1] // tokens == row:
                at = draw.choice([0, draw.randrange(max(before, 1))])
                found.append([])
            elif not found or found[-1][-1] // tokens < row:
                found.append([])
            found[-1].append(row * tokens + token)
            places[-1] = before = at
            at += draw.choice([1, 1, 1, 2])
    of_mask = None if seed % 3 == 0 and seed % 2 else torch.tensor(mask)
    return torch.tensor(places).view(batch, tokens), of_mask, found


@pytest.mark.parametrize("seed", range(60))
def test_sequences_are_what_a_loop_over_tokens_finds(seed: int) -> None:
    places, mask, expected = drawn(seed)
    packing = Packing(places, mask, positions._begin_anew)
    found = packing.sequences
    cu_seqlens = found.cu_seqlens[0].tolist()
    tokens = list(range(places.numel())) if found.rows is None else found.rows.tolist()
    parts = [tokens[begin:end] for begin, end in pairwise(cu_seqlens)]
    assert [part for part in parts if part] == expected and len(parts) <= len(expected) + len(places)
    ids = packing.ids.flatten().tolist()
    assert len({ids[part[0]] for part in expected}) == len(expected)
    assert all(len({ids[token] for token in part}) == 1 for part in expected)
    assert packing.is_none == (
        len(expected) <= sum(any(row) for row in (mask if mask is not None else places + 1).tolist())
    )
    assert packing.lowest == places[:, 0].min()


PLACES = torch.tensor([[0, 1, 2, 0, 1, 0]])
NOT_LOOKED_AT = {
    "one query": (1, 6, PLACES[:, -1:]),
    "another's keys": (6, 9, PLACES),
    "three axes": (6, 6, PLACES.expand(3, 1, 6)),
    "none": (6, 6, None),
    "others' tokens": (6, 6, PLACES[:, :5]),
}


def heads(seq: int, batch: int = 1) -> torch.Tensor:
    return torch.zeros(batch, 2, seq, 8)


@pytest.fixture
def looks(monkeypatch) -> list[torch.Tensor]:
    """Returns a list that gets the numbers that were on their way to the host."""
    found: list[torch.Tensor] = []
    read = sequences._Numbers.__init__
    monkeypatch.setattr(sequences._Numbers, "__init__", lambda self, x: found.append(x) or read(self, x))
    return found


@pytest.mark.parametrize("case", NOT_LOOKED_AT)
def test_these_positions_are_not_looked_at(looks, case: str) -> None:
    seq_q, seq_kv, places = NOT_LOOKED_AT[case]
    note = Note(causal=case != "another's keys")
    assert with_packing(note, places, heads(seq_q), heads(seq_kv)) is note and not looks


def test_positions_of_traced_code_are_not_looked_at(looks) -> None:
    with FakeTensorMode() as mode:
        places, q = mode.from_tensor(PLACES), mode.from_tensor(heads(6))
        note = Note(True)
        assert with_packing(note, places, q, q) is note and not looks


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_positions_may_have_another_dtype(dtype) -> None:
    q = heads(6)
    assert with_packing(Note(True), PLACES.to(dtype), q, q).packing.sequences.cu_seqlens[0].tolist() == [0, 3, 5, 6]


def test_they_are_looked_at_once_in_a_forward_pass(looks) -> None:
    q, places = heads(6, 2), PLACES.clone()
    begin_forward()
    notes = [with_packing(Note(True, window), places, q, q) for window in (None, 3, None)]
    assert len(looks) == 1 and {id(note.packing) for note in notes} == {id(notes[0].packing)}
    assert [note.window for note in notes] == [None, 3, None]
    assert notes[0].packing.sequences.cu_seqlens[0].tolist() == [0, 3, 5, 6, 9, 11, 12]
    begin_forward()
    padding = Padding((torch.arange(6) < 3).expand(2, -1), 6)
    assert with_packing(Note(True, padding=padding), places, q, q).packing is None and len(looks) == 3
    places.copy_(torch.arange(6))
    assert with_packing(Note(True), places, q, q).packing is None and len(looks) == 4
