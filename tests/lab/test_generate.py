"""A model that generates is timed with each attention, and its tokens are compared with eager's."""

from contextlib import nullcontext

import pytest
from measurements import generate
from measurements.generate import PLAIN_SDPA, SIZES, TOKENS, measured

pytestmark = pytest.mark.transformers
SMALL = {
    **SIZES,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


class Batch:
    calls, pause_s = 3, 0.0

    def __init__(self, call) -> None:
        call()

    def sample(self) -> tuple[float, int]:
        return 0.5, 1500


def test_a_cell_has_ours_beside_sdpas_backends_and_says_how_many_tokens_are_eagers(monkeypatch) -> None:
    entries = generate.entries()
    # The CPU has one backend of SDPA.
    monkeypatch.setattr(generate, "entries", lambda: dict.fromkeys(entries, (PLAIN_SDPA, nullcontext)))
    monkeypatch.setattr(generate, "HOW", {how: (Batch, words) for how, (_, words) in generate.HOW.items()})
    graph, host = measured(SMALL, 2048, 15, {}, "cpu")
    assert [entry.name for entry in graph.entries] == ["ours", "cudnn", "flash2", "cudnn again"]
    # Some logits are as large as the largest within bf16's error.
    for entry in graph.entries:
        equal, *words = entry.what.split()
        assert TOKENS - 4 <= int(equal) <= TOKENS and words == ["of", str(TOKENS), "tokens"]
    assert (graph.cell, host.cell) == ("generate_graph-2k", "generate_host-2k")
    assert set(graph.peers.values()) == {1.0} and set(host.peers.values()) == {None}
