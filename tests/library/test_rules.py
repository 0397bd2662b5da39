"""A lowering brings its own rules, and an unknown lowering is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tl_attention.errors import InputError
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.files.schema import json_schema
from tl_attention.schedule import dialect
from tl_attention.schedule.dialect import Dialect
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.schedule import Schedule


def _no_swizzle(s: Keys) -> None:
    if s.block_N > 64:
        raise RuleBroken(f"{s.block_N}, expected at most 64: no swizzle", "block_N")


THIRD = Dialect(
    "mma_sync", "every warp multiplies its own rows", model="synchronous", options=("softmax",), rules=(_no_swizzle,)
)


def test_a_third_lowering_brings_its_rules_and_its_options(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(dialect._DIALECTS, (THIRD.loop, THIRD.name), THIRD)
    seed = yaml.safe_load(Path("schedules/seed.yaml").read_text()) | {"lowering": "mma_sync", "block_N": 64}
    for change, words in (
        ({}, None),
        # Its warps have rows of their own: the rule of wgmma is not its.
        ({"threads": 128}, None),
        ({"softmax": {"row_sum": "row"}}, None),
        ({"block_N": 80}, "block_N: 80, expected at most 64: no swizzle"),
        ({"group": []}, "group: missing or empty, lowering mma_sync needs it"),
        ({"kernel": {"cluster": 1}}, "kernel: only lowering warp_specialized takes it, remove it from lowering mma_s"),
        ({"lowering": "pipelined", "threads": 128}, "threads: 128 threads do not fit block_M 128"),
        ({"lowering": "pipelined", "softmax": {"row_sum": "row"}}, "softmax: only lowering warp_specialized or mma_s"),
    ):
        path = tmp_path / "third.yaml"
        path.write_text(yaml.safe_dump(seed | change))
        if words is None:
            assert Schedule.from_label(load(path).label) == load(path)
        else:
            with pytest.raises(InputError, match=f"third.yaml:[0-9]+: {words}"):
                load(path)
    key = json.loads(json_schema())["properties"]["lowering"]
    assert "mma_sync: every warp multiplies its own rows" in key["description"]


KNOWN = "'pipelined', 'warp_specialized', 'mma_sync' or 'inferred'"


def test_an_unknown_lowering_is_told_with_the_known_ones() -> None:
    fields = resolve("seed").schedule.model_dump()
    for name in ("fast", None, [], "Pipelined"):
        with pytest.raises(ValueError, match=KNOWN):
            Schedule(**fields | {"lowering": name})
    # A copy is not checked: whoever asks for its lowering is told.
    unchecked = resolve("seed").schedule.model_copy(update={"lowering": "fast"})
    for ask in (lowering_of, lambda s: s.has_program):
        with pytest.raises(
            InputError, match="^lowering: 'fast' is none, expected one of pipelined, warp_specialized, mma_sync, i"
        ):
            ask(unchecked)
